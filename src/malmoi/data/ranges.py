"""Stretches of consecutive pairs: what an epoch sees of a store, and how an epoch is cut into windows.

In: how many pairs a store holds, its weight, an epoch. Out: `Ranges`, two integers for each stretch, so that an epoch
over any number of pairs is laid out without a list of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Ranges:
    """Stretches in a row, each from its start on; none is empty."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def every(cls, num_pairs: int, longest: int) -> "Ranges":
        """All of so many pairs, in stretches of `longest` pairs, the last of what remains."""
        starts = np.arange(0, num_pairs, longest, dtype=np.int64)
        return cls(starts, np.minimum(longest, num_pairs - starts))

    @classmethod
    def joined(cls, parts: "Sequence[Ranges]") -> "Ranges":
        """Those of each part, one part after the other."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([nothing, *(part.starts for part in parts)]),
            np.concatenate([nothing, *(part.lengths for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_pairs(self) -> int:
        return int(self.lengths.sum())

    def take(self, which: npt.NDArray[Any]) -> "Ranges":
        """The stretches at these places, or those that are marked."""
        return Ranges(self.starts[which], self.lengths[which])

    def moved(self, distance: int) -> "Ranges":
        """The same, beginning so many pairs later."""
        return Ranges(self.starts + distance, self.lengths)

    def part(self, begin: int, end: int) -> "Ranges":
        """Pairs `begin` to `end` - 1 of all pairs as they stand in a row."""
        ends = np.cumsum(self.lengths)
        firsts = ends - self.lengths
        first, last = np.maximum(firsts, begin), np.minimum(ends, end)
        is_inside = first < last
        return Ranges((self.starts + first - firsts)[is_inside], (last - first)[is_inside])

    def window(self, number: int, count: int) -> "Ranges":
        """The stretches of one of `count` windows with about as many pairs each, in the order of their starts."""
        before = np.cumsum(self.lengths) - self.lengths
        found = self.take(before * count // max(1, self.num_pairs) == number)
        return found.take(np.argsort(found.starts, kind="stable"))

    def indices(self) -> npt.NDArray[np.int64]:
        """Every pair's index, stretch after stretch."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.starts - before, self.lengths) + np.arange(self.num_pairs)


def exact(weight: float) -> Fraction:
    """The decimal that the user wrote, so that 0.1 of 10 pairs is 1 pair in each epoch."""
    return Fraction(str(weight))


def seen_in_epoch(num_pairs: int, weight: float, epoch: int, *, longest: int, unit: int, key: Sequence[int]) -> Ranges:
    """What an epoch sees of a store: all of it as often as the weight's integer part says, then some more.

    For the fraction f, its pairs are cut into stretches of `unit`, laid in an order drawn by `key`, and epoch e takes
    places e f n to (e + 1) f n of that row, going around. So after any number of epochs no pair has been seen more
    than once more than another. The full passes are cut into stretches of at most `longest`.
    """
    share = exact(weight)
    times = int(share)
    parts = [Ranges.every(num_pairs, longest)] * times if num_pairs else []
    begin, end = (int((share - times) * num_pairs * count) for count in (epoch, epoch + 1))
    if end > begin:
        units = Ranges.every(num_pairs, unit)
        around = units.take(np.random.default_rng(key).permutation(len(units)))
        first = begin % num_pairs
        last = first + end - begin
        parts += [around.part(first, min(last, num_pairs)), around.part(0, last - num_pairs)]
    return Ranges.joined(parts)
