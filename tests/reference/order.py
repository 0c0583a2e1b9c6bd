"""Which pairs are in which batch, with lists of all pairs: slow, and as `data/batching.py` tells it."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

Pair = tuple[int, int]
Stretch = list[int]


@dataclass(frozen=True)
class Sizes:
    """The constants of the plan."""

    window_pairs: int
    stretch_pairs: int
    units: int
    pool_batches: int


def windows_of_epoch(
    stores: list[list[Pair]], weights: list[float], batch_tokens: int, seed: int, epoch: int, sizes: Sizes
) -> list[list[list[int]]]:
    """For each window its batches, each a list of indices; `stores` holds both lengths of each pair."""
    shares = [Fraction(str(weight)) for weight in weights]
    total = int(sum(share * len(store) for share, store in zip(shares, stores, strict=True)))
    count = max(1, ceil(total / sizes.window_pairs))
    lengths = [pair for store in stores for pair in store]
    seen: list[Stretch] = []
    first = 0
    for number, (store, share) in enumerate(zip(stores, shares, strict=True)):
        every = list(range(first, first + len(store)))
        first += len(store)
        whole = sizes.stretch_pairs if count > 1 else max(1, len(every))
        for _ in range(int(share)):
            seen += cut_evenly(every, whole)
        unit = min(sizes.stretch_pairs, max(1, len(every) // sizes.units)) if count > 1 else 1
        units = cut_evenly(every, unit)
        order = np.random.default_rng([seed, 1, number]).permutation(len(units))
        around = [(place, index) for place in order for index in units[place]]
        begin, end = (int((share - int(share)) * len(every) * turn) for turn in (epoch, epoch + 1))
        last = None
        for place in range(begin, end):
            turn, (unit_number, index) = place // len(every), around[place % len(every)]
            # A stretch is what follows each other within one unit and one turn around.
            if (turn, unit_number) != last:
                seen.append([])
            seen[-1].append(index)
            last = turn, unit_number
    if count == 1:
        return [shuffled(seen, lengths, batch_tokens, [seed, 0, epoch], sizes)]
    mixed = [seen[place] for place in np.random.default_rng([seed, 3, epoch]).permutation(len(seen))]
    num_seen = sum(map(len, mixed))
    windows: list[list[Stretch]] = [[] for _ in range(count)]
    before = 0
    for stretch in mixed:
        windows[before * count // num_seen].append(stretch)
        before += len(stretch)
    return [
        shuffled(sorted(window, key=lambda one: one[0]), lengths, batch_tokens, [seed, 0, epoch, number], sizes)
        for number, window in enumerate(windows)
    ]


def cut_evenly(indices: list[int], size: int) -> list[Stretch]:
    return [indices[first : first + size] for first in range(0, len(indices), size)]


def shuffled(
    stretches: list[Stretch], lengths: list[Pair], batch_tokens: int, key: list[int], sizes: Sizes
) -> list[list[int]]:
    """Batches of all pairs of a window."""
    pairs = [index for stretch in stretches for index in stretch]
    pairs = [index for index in pairs if max(lengths[index]) <= batch_tokens]
    randomness = np.random.default_rng(key)
    order = np.arange(len(pairs), dtype=np.int32)
    randomness.shuffle(order)
    pairs = [pairs[place] for place in order]
    batches: list[list[int]] = []
    if pairs:
        mean = sum(max(lengths[index]) for index in pairs) / len(pairs)
        pool = max(1, int(sizes.pool_batches * batch_tokens / mean))
        for first in range(0, len(pairs), pool):
            inside = sorted(pairs[first : first + pool], key=lambda index: snake(*lengths[index]))
            batch: list[int] = []
            for index in inside:
                longest = max(max(lengths[one]) for one in [*batch, index])
                if batch and longest * (len(batch) + 1) > batch_tokens:
                    batches.append(batch)
                    batch = []
                batch.append(index)
            batches.append(batch)
    return [batches[place] for place in randomness.permutation(len(batches))]


def snake(source: int, target: int) -> tuple[int, int]:
    """By target length; sources go up for even ones and down for odd ones."""
    return target, -source if target % 2 else source
