"""Which pairs go together, in which order, and how far a run has come.

In: stores with weights, a token budget and a seed. Out: batches without end, each with its epoch and position.

The order is a function of (stores, weights, batch_tokens, seed, epoch) alone: nothing that happened before matters, so
that a run resumes from two numbers. A plan knows nothing of processes: its batches are those of the whole update, the
same in every process. Which rows of each a process makes is said by `BatchMaker.part` (every so-many-th, from
`training/ranks.py`): the parts are disjoint and of like lengths, since rows stand sorted by length within a batch.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from malmoi.data.batch import Batch, cut
from malmoi.data.store import IntArray, Store
from malmoi.errors import DataError
from malmoi.log import get_logger

State: TypeAlias = dict[str, Any]
MakeBatch: TypeAlias = Callable[[IntArray, int, int], Batch]
"""(indices, epoch, position) -> batch; it must depend on these three alone, or resuming would not be exact."""
Item: TypeAlias = tuple[int, int, Batch]
"""(epoch, position in the epoch, batch), both from 0."""

# Pairs are sorted by length within pools of about so many batches. On 29,000 sentence pairs and 4,096 tokens a batch,
# real tokens are 91 % of the source and 99 % of the target with 256, 81 % and 98 % with 32.
POOL_BATCHES = 256
# Batches made ahead of the consumer.
PREFETCH = 4
# What random numbers are drawn for: each purpose has a stream of its own under one seed.
SHUFFLE, WEIGHTS = 0, 1


class EpochPlan:
    """The batches of one epoch as arrays of indices; made of three integer arrays, not of a list."""

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

    A weight w means that a pair is seen w times per epoch on average: its integer part in each epoch, and for the
    fraction f the next f * n pairs of a fixed permutation of the n pairs, going around from epoch to epoch. After any
    number of epochs E no pair of a corpus has been seen more than once more than another.
    """

    def __init__(
        self, stores: Sequence[Store], batch_tokens: int, seed: int, weights: Sequence[float] | None = None
    ) -> None:
        """`weights`: one per store; left out, those of the stores. `DataError` if no pair fits."""
        self.stores = tuple(stores)
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.weights = tuple(store.weight for store in stores) if weights is None else tuple(weights)
        assert len(self.weights) == len(self.stores)
        num_pairs = sum(store.num_pairs for store in stores)
        self.index_type = np.int32 if num_pairs < 2**31 else np.int64
        self.source_lengths = joined([store.source_lengths for store in stores])
        self.target_lengths = joined([store.target_lengths for store in stores])
        # Per store, indices of the pairs that fit; None where all do, which saves 4 bytes a pair.
        self.fitting: list[IntArray | None] = []
        self.num_too_long = 0
        first = 0
        for store in stores:
            fits = self.costs(slice(first, first + store.num_pairs)) <= batch_tokens
            num_fitting = int(np.count_nonzero(fits))
            self.num_too_long += store.num_pairs - num_fitting
            everything = num_fitting == store.num_pairs
            self.fitting.append(None if everything else (first + np.flatnonzero(fits)).astype(self.index_type))
            first += store.num_pairs
        if self.num_too_long == num_pairs:
            names = ", ".join(str(store.folder) for store in stores)
            reason = f"all {num_pairs} pairs are longer than batch_tokens = {batch_tokens}" if num_pairs else "no pairs"
            raise DataError(f"{names}: nothing to train on: {reason}")
        if self.num_too_long:
            get_logger().warning(
                "%d of %d pairs are longer than batch_tokens = %d and left out of training",
                self.num_too_long,
                num_pairs,
                batch_tokens,
            )

    def costs(self, pairs: IntArray | slice) -> npt.NDArray[np.int32]:
        """Longest side of each pair, end symbol included."""
        return np.maximum(self.source_lengths[pairs], self.target_lengths[pairs])

    def epoch(self, epoch: int) -> EpochPlan:
        """The batches of an epoch, from 0."""
        pairs = self.pairs_of(epoch)
        randomness = np.random.default_rng([self.seed, SHUFFLE, epoch])
        randomness.shuffle(pairs)
        bounds = self.sort_and_cut(pairs)
        order = randomness.permutation(len(bounds) - 1).astype(np.int32)
        return EpochPlan(pairs, bounds, order)

    def pairs_of(self, epoch: int) -> IntArray:
        """Indices of the pairs seen in an epoch, as often as they are seen, not yet shuffled."""
        parts: list[IntArray] = [np.empty(0, dtype=self.index_type)]
        first = 0
        for number, (store, weight) in enumerate(zip(self.stores, self.weights, strict=True)):
            fitting = self.fitting[number]
            if fitting is None:
                fitting = np.arange(first, first + store.num_pairs, dtype=self.index_type)
            first += store.num_pairs
            # The decimal that the user wrote, so that 0.1 of 10 pairs is 1 pair in each epoch.
            exact = Fraction(str(weight))
            whole = int(exact)
            parts += [fitting] * whole
            begin, end = (int((exact - whole) * len(fitting) * count) for count in (epoch, epoch + 1))
            if end > begin:
                rotation = np.random.default_rng([self.seed, WEIGHTS, number]).permutation(fitting)
                parts.append(np.take(rotation, np.arange(begin, end), mode="wrap"))
        return np.concatenate(parts)

    def sort_and_cut(self, pairs: IntArray) -> IntArray:
        """Sort shuffled pairs by length within pools, in place, and return the bounds of batches within them."""
        if not len(pairs):
            return np.zeros(1, dtype=np.int64)
        mean_cost = float(self.costs(pairs[:100_000]).mean())
        pool = max(1, int(POOL_BATCHES * self.batch_tokens / mean_cost))
        bounds: list[npt.NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
        for first in range(0, len(pairs), pool):
            inside = pairs[first : first + pool]
            source, target = self.source_lengths[inside], self.target_lengths[inside]
            # Sources go up in length for even target lengths and down for odd ones: no jump where the target's
            # length changes, hence less padding. Ties stay shuffled, as the sort is stable.
            inside[:] = inside[np.lexsort((np.where(target % 2, -source, source), target))]
            ends = [end for _, end in cut(self.costs(inside), self.batch_tokens)]
            bounds.append(first + np.array(ends, dtype=np.int64))
        return np.concatenate(bounds)

    def fingerprint(self) -> str:
        """Changes with anything that decides which batch stands at which position."""
        digest = hashlib.blake2b(repr((self.batch_tokens, self.seed, self.weights)).encode(), digest_size=8)
        for store in self.stores:
            digest.update(f"{store.manifest.key} {store.num_pairs} ".encode())
        return digest.hexdigest()

    def state(self, epoch: int, position: int) -> State:
        """Where a run stands, as JSON: the epoch, and how many of its batches were taken."""
        return {"epoch": epoch, "position": position, "plan": self.fingerprint()}

    def resume(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and position to go on from.

        A position means nothing in another plan (other data, batch size, seed or weights): then the epoch starts
        anew, and a message says so.
        """
        epoch, position = int(state["epoch"]), int(state["position"])
        if state["plan"] != self.fingerprint():
            get_logger().warning(
                "data, weights, seed or batch_tokens changed since this run was saved: epoch %d starts anew", epoch
            )
            return epoch, 0
        return epoch, position


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


class BatchStream(Iterator[Item]):
    """(epoch, position, batch) without end, made by one thread ahead of the consumer.

    What goes wrong in that thread is raised where its batch was due, and the stream never goes on behind it.
    Use it as a context manager, or call `close`: the thread has then ended. `prefetch` 0 makes batches without one.
    """

    def __init__(
        self, plan: BatchPlan, make_batch: MakeBatch, start: tuple[int, int] = (0, 0), prefetch: int = PREFETCH
    ) -> None:
        """`start`: epoch, and number of its batches to pass over (what `BatchPlan.resume` gives)."""
        self.plan = plan
        self.epoch, self.position = start
        self.num_batches = 0
        """Batches in the epoch of the last batch that was handed out."""
        self.cursor = Cursor(plan, make_batch, *start)
        self.prefetch = prefetch
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="batches") if prefetch else None
        self.waiting: deque[Future[tuple[Item, int]]] = deque()
        self.closed = False

    def __next__(self) -> Item:
        if self.closed:
            raise StopIteration
        if self.executor is None:
            item, self.num_batches = self.cursor.advance()
        else:
            while len(self.waiting) < self.prefetch:
                self.waiting.append(self.executor.submit(self.cursor.advance))
            # Taken off only when it is there: an interrupt while waiting loses no batch.
            item, self.num_batches = self.waiting[0].result()
            self.waiting.popleft()
            self.waiting.append(self.executor.submit(self.cursor.advance))
        self.epoch, self.position = item[0], item[1] + 1
        return item

    def state(self) -> State:
        """Where a run goes on that has used every batch handed out so far."""
        return self.plan.state(self.epoch, self.position)

    def close(self) -> None:
        """End the thread and forget the batches that nobody took."""
        self.closed = True
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
        self.waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Cursor:
    """Walks through the epochs of a plan; used by one thread at a time."""

    def __init__(self, plan: BatchPlan, make_batch: MakeBatch, epoch: int, position: int) -> None:
        self.plan = plan
        self.make_batch = make_batch
        self.epoch = epoch
        self.position = position
        self.batches: EpochPlan | None = None

    def advance(self) -> tuple[Item, int]:
        """The next batch, and how many there are in its epoch; after a failure the same batch is next."""
        if self.batches is None:
            self.batches = self.plan.epoch(self.epoch)
            if self.position > len(self.batches):
                raise DataError(
                    f"epoch {self.epoch} has {len(self.batches)} batches, so a run cannot have taken {self.position} "
                    "of them: the saved state belongs to other data"
                )
        # An epoch without a batch is possible where a small corpus has a small weight.
        while self.position == len(self.batches):
            self.batches = None
            self.epoch, self.position = self.epoch + 1, 0
            self.batches = self.plan.epoch(self.epoch)
        indices = self.batches[self.position]
        item = (self.epoch, self.position, self.make_batch(indices, self.epoch, self.position))
        self.position += 1
        return item, len(self.batches)
