"""Edit distance between two sequences of symbols.

In: two sequences of hashable symbols. Out: how many insertions, deletions and substitutions turn one into the other.
"""

from collections.abc import Hashable, Sequence


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Levenshtein's distance, each edit counting 1.

    The columns of the usual table are kept as bits of whole numbers: bit i of `rise` says that the entry of row i + 1
    is one above the entry of row i, bit i of `fall` that it is one below (Myers, 1999, in the form of Hyyrö, 2003).
    A column costs a dozen operations on whole numbers, whatever the length of `first`.
    """
    if not first:
        return len(second)
    places: dict[Hashable, int] = {}
    for row, symbol in enumerate(first):
        places[symbol] = places.get(symbol, 0) | (1 << row)
    every_row, last_row = (1 << len(first)) - 1, 1 << (len(first) - 1)
    rise, fall = every_row, 0
    distance = len(first)
    for symbol in second:
        equal = places.get(symbol, 0)
        diagonal = (((equal & rise) + rise) ^ rise) | equal | fall
        level_rise = fall | (every_row & ~(diagonal | rise))
        level_fall = diagonal & rise
        distance += bool(level_rise & last_row) - bool(level_fall & last_row)
        # The row above the first grows by one with every column, hence the bit that enters from below.
        level_rise = level_rise << 1 | 1
        level_fall <<= 1
        rise = every_row & (level_fall | ~(diagonal | level_rise))
        fall = level_rise & diagonal & every_row
    return distance
