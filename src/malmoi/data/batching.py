"""Which pairs go together, and in which order.

In: stores with weights, a token budget and a seed. Out: for each epoch the batches, as arrays of indices.

The order is a function of (stores, weights, batch_tokens, seed, epoch) alone: nothing that happened before matters. A
plan knows nothing of processes: its batches are those of the whole update, the same in every process. Which rows of
each a process makes is said by `BatchMaker.part` (every so-many-th, from `training/ranks.py`): the parts are disjoint
and of like lengths, since rows stand sorted by length within a batch.

Stores may hold more pairs than memory holds numbers. An epoch of more than `WINDOW_PAIRS` pairs is laid out as
stretches of neighbouring pairs from all over the stores, which are put in an order by chance and cut into windows. Only
the window that is read is held in memory; pairs are shuffled and sorted within it, and each byte of a store is read in
one window of an epoch alone, near to others of that window. The smaller epoch has one window, in which all its pairs
are shuffled with each other. docs/decisions/0012-windows-over-large-corpora.md tells why.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from malmoi.config.text import Stage
from malmoi.data.batch import cut
from malmoi.data.ranges import Ranges, exact, seen_in_epoch
from malmoi.data.store import PAIRS_AT_ONCE, IntArray, Store
from malmoi.errors import DataError
from malmoi.log import get_logger

State: TypeAlias = dict[str, Any]

# Pairs are sorted by length within pools of about so many batches. On 29,000 sentence pairs and 4,096 tokens a batch,
# real tokens are 91 % of the source and 99 % of the target with 256, 81 % and 98 % with 32.
POOL_BATCHES = 256
# A window takes some 20 MB while it is read; to be laid out it takes a second or two and some 120 MB.
WINDOW_PAIRS = 1 << 22
# A window is made of 64 such stretches or more, each some megabytes of a store that are read one after the other.
STRETCH_PAIRS = 1 << 16
# What is seen less than whole in an epoch is chosen by so many smaller stretches, or pair by pair where it is small.
UNITS = 1 << 12
# What random numbers are drawn for: each purpose has a stream of its own under one seed (2 is `batch.SAMPLING`).
SHUFFLE, WEIGHTS, STRETCHES = 0, 1, 3


class Place(NamedTuple):
    """Where a run stands in its data; all of it counted from 0."""

    epoch: int = 0
    position: int = 0
    """Batches of the epoch that were taken."""
    window: int = 0
    before: int = 0
    """Batches of the epoch's earlier windows."""
    taken: int = 0
    """Batches taken since the run began; decides which stage it is in."""


BEGINNING = Place()


class EpochPlan:
    """Batches in their order as arrays of indices; made of three integer arrays, not of a list."""

    def __init__(self, pairs: IntArray, bounds: IntArray, order: IntArray | None = None) -> None:
        """`pairs`: indices, batch after batch; `bounds`: where each batch starts, and the end; `order` of batches."""
        self.pairs = pairs
        self.bounds = bounds
        self.order = order

    @property
    def num_pairs(self) -> int:
        return len(self.pairs)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, position: int) -> IntArray:
        """Indices of the pairs of the batch at this position; IndexError past the last."""
        number = range(len(self))[position]
        place = number if self.order is None else int(self.order[number])
        return self.pairs[self.bounds[place] : self.bounds[place + 1]]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[position] for position in range(len(self)))


class BatchPlan:
    """Which pairs are in which batch, for every epoch.

    A batch costs its pairs times its longest source or target, end symbols included, and no batch costs more than
    `batch_tokens`. A pair that alone costs more is left out of training; that is counted and told here, before the
    first step.

    A weight w means that a pair is seen w times per epoch on average, as `ranges.seen_in_epoch` says. After any number
    of epochs of one stage no pair of a store has been seen more than once more than another.

    A stage brings other weights once so many batches were taken (skipped updates count): the epoch ends there, and the
    next begins with them.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        batch_tokens: int,
        seed: int,
        weights: Sequence[float] | None = None,
        stages: Sequence[Stage] = (),
    ) -> None:
        """`weights`: one per store, before the first stage; left out, those of the stores. `DataError` if no pair fits.

        Each stage has one weight per store too.
        """
        self.stores = tuple(stores)
        self.batch_tokens = batch_tokens
        self.seed = seed
        first = tuple(store.weight for store in stores) if weights is None else tuple(weights)
        self.weights = (first, *(stage.weights for stage in stages))
        """By stage; number 0 is what comes before the first."""
        self.begins = (0, *(stage.after_steps for stage in stages))
        assert all(len(one) == len(self.stores) for one in self.weights)
        self.window_counts = [self.count_windows(weights) for weights in self.weights]
        self.bounds = np.cumsum([0, *(store.num_pairs for store in stores)])
        self.index_type = np.int32 if self.bounds[-1] < 2**31 else np.int64
        self.num_too_long = sum(store.count_longer(batch_tokens) for store in stores)
        self.check()

    def check(self) -> None:
        """Tell of pairs that never fit; `DataError` where none does."""
        num_pairs = int(self.bounds[-1])
        if self.num_too_long == num_pairs:
            names = ", ".join(str(store.folder) for store in self.stores)
            long = f"all {num_pairs} pairs are longer than batch_tokens = {self.batch_tokens}"
            raise DataError(f"{names}: nothing to train on: {long if num_pairs else 'no pairs'}")
        if self.num_too_long:
            get_logger().warning(
                "%d of %d pairs are longer than batch_tokens = %d and left out of training",
                self.num_too_long,
                num_pairs,
                self.batch_tokens,
            )

    def stage_at(self, taken: int) -> int:
        """The stage of the batch that comes after so many."""
        return bisect_right(self.begins, taken) - 1

    def num_windows(self, stage: int = 0) -> int:
        """In how many windows an epoch is laid out."""
        return self.window_counts[stage]

    def count_windows(self, weights: Sequence[float]) -> int:
        """As many as it takes, where stores have these weights."""
        sizes = zip(self.stores, weights, strict=True)
        num_pairs = sum(exact(weight) * store.num_pairs for store, weight in sizes)
        return max(1, -(-int(num_pairs) // WINDOW_PAIRS))

    def window(self, epoch: int, number: int = 0, stage: int = 0) -> EpochPlan:
        """The batches of one window of an epoch, both from 0."""
        ranges = self.seen(epoch, stage)
        count = self.num_windows(stage)
        key = [self.seed, SHUFFLE, epoch]
        if count > 1:
            order = np.random.default_rng([self.seed, STRETCHES, epoch]).permutation(len(ranges))
            ranges = ranges.take(order).window(number, count)
            key.append(number)
        randomness = np.random.default_rng(key)
        pairs = ranges.indices().astype(self.index_type)
        source, target = self.lengths(pairs)
        if self.num_too_long:
            fits = np.maximum(source, target) <= self.batch_tokens
            pairs, source, target = pairs[fits], source[fits], target[fits]
        shuffled = np.arange(len(pairs), dtype=np.int32)
        randomness.shuffle(shuffled)
        pairs, bounds = self.sort_and_cut(pairs[shuffled], source[shuffled], target[shuffled])
        return EpochPlan(pairs, bounds, randomness.permutation(len(bounds) - 1).astype(np.int32))

    def epoch(self, epoch: int, stage: int = 0) -> EpochPlan:
        """All batches of an epoch at once, for those who look at small data as a whole."""
        windows = [self.window(epoch, number, stage) for number in range(self.num_windows(stage))]
        if len(windows) == 1:
            return windows[0]
        batches = [batch for window in windows for batch in window]
        return EpochPlan(np.concatenate(batches), np.cumsum([0, *map(len, batches)]))

    def seen(self, epoch: int, stage: int) -> Ranges:
        """What an epoch sees, store after store, not yet shuffled."""
        is_large = self.num_windows(stage) > 1
        parts: list[Ranges] = []
        for number, (store, weight) in enumerate(zip(self.stores, self.weights[stage], strict=True)):
            size = store.num_pairs
            longest = STRETCH_PAIRS if is_large else max(1, size)
            unit = max(1, min(STRETCH_PAIRS, size // UNITS)) if is_large else 1
            key = [self.seed, WEIGHTS, number]
            part = seen_in_epoch(size, weight, epoch, longest=longest, unit=unit, key=key)
            parts.append(part.moved(int(self.bounds[number])))
        return Ranges.joined(parts)

    def lengths(self, pairs: IntArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Tokens of the sources and of the targets of these pairs, end symbols included."""
        source, target = np.empty(len(pairs), dtype=np.int32), np.empty(len(pairs), dtype=np.int32)
        for first in range(0, len(pairs), PAIRS_AT_ONCE):
            some = pairs[first : first + PAIRS_AT_ONCE]
            owners = np.searchsorted(self.bounds, some, side="right") - 1
            for number in np.unique(owners):
                store, mine = self.stores[number], owners == number
                local = some[mine] - self.bounds[number]
                rows = first + np.flatnonzero(mine)
                source[rows] = store.source_offsets[local + 1] - store.source_offsets[local]
                target[rows] = store.target_offsets[local + 1] - store.target_offsets[local]
        return source, target

    def costs(self, pairs: IntArray) -> npt.NDArray[np.int32]:
        """Longest side of each pair, end symbol included."""
        return np.maximum(*self.lengths(pairs))

    def sort_and_cut(
        self, pairs: IntArray, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32]
    ) -> tuple[IntArray, IntArray]:
        """Shuffled pairs sorted by length within pools, in place, and the bounds of batches within the pools."""
        if not len(pairs):
            return pairs, np.zeros(1, dtype=np.int64)
        mean_cost = float(np.maximum(source[:100_000], target[:100_000]).mean())
        pool = max(1, int(POOL_BATCHES * self.batch_tokens / mean_cost))
        bounds: list[npt.NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
        for first in range(0, len(pairs), pool):
            inside = slice(first, first + pool)
            sources, targets = source[inside], target[inside]
            # Sources go up in length for even target lengths and down for odd ones: no jump where the target's
            # length changes, hence less padding. Ties stay shuffled, as the sort is stable.
            order = np.lexsort((np.where(targets % 2, -sources, sources), targets))
            pairs[inside] = pairs[inside][order]
            ends = [end for _, end in cut(np.maximum(sources, targets)[order], self.batch_tokens)]
            bounds.append(first + np.array(ends, dtype=np.int64))
        return pairs, np.concatenate(bounds)

    def fingerprint(self) -> str:
        """Changes with anything that decides which batch stands at which position."""
        settings: tuple[Any, ...] = (self.batch_tokens, self.seed, self.weights[0])
        if len(self.weights) > 1 or self.num_windows() > 1:
            settings += (self.weights[1:], self.begins, WINDOW_PAIRS, STRETCH_PAIRS, UNITS)
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8)
        for store in self.stores:
            digest.update(f"{store.manifest.key} {store.num_pairs} ".encode())
        return digest.hexdigest()

    def state(self, place: Place) -> State:
        """Where a run stands, as JSON."""
        return {**place._asdict(), "plan": self.fingerprint()}

    def resume(self, state: Mapping[str, Any]) -> Place:
        """Where to go on.

        A position means nothing in another plan (other data, batch size, seed or weights): then the epoch starts
        anew, and a message says so.
        """
        place = Place(**{name: int(state[name]) for name in Place._fields})
        if state["plan"] != self.fingerprint():
            get_logger().warning(
                "data, weights, seed or batch_tokens changed since this run was saved: epoch %d starts anew",
                place.epoch,
            )
            return Place(epoch=place.epoch, taken=place.taken)
        return place


def joined(arrays: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """One array after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.empty(0, dtype=np.int32)])


def in_order(stores: Sequence[Store], batch_tokens: int) -> EpochPlan:
    """Batches for validation: each pair exactly once, in the order of the corpora.

    A pair above `batch_tokens` is alone in its batch.
    """
    costs = np.maximum(
        joined([store.source_lengths for store in stores]), joined([store.target_lengths for store in stores])
    )
    bounds = np.array([0, *(last for _, last in cut(costs, batch_tokens))], dtype=np.int64)
    return EpochPlan(np.arange(len(costs)), bounds)
