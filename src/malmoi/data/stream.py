"""Batches without end, made ahead of whoever takes them, and how far a run has come.

In: a plan, a function that makes a batch of indices, a place to begin at. Out: batches, each with its epoch and
position; a place, as JSON, from which another stream goes on with the very next batch.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self, TypeAlias

from malmoi.data.batch import Batch
from malmoi.data.batching import BEGINNING, BatchPlan, EpochPlan, Place, State
from malmoi.data.store import IntArray
from malmoi.errors import DataError

MakeBatch: TypeAlias = Callable[[IntArray, int, int], Batch]
"""(indices, epoch, position) -> batch; it must depend on these three alone, or resuming would not be exact."""
Item: TypeAlias = tuple[int, int, Batch]
"""(epoch, position in the epoch, batch), both from 0."""

# Batches made ahead of the consumer.
PREFETCH = 4


class Made(NamedTuple):
    """A batch, and where a run stands that has used it."""

    item: Item
    place: Place
    num_batches: int
    """In its epoch; an estimate while later windows are not laid out."""


class BatchStream(Iterator[Item]):
    """(epoch, position, batch) without end, made by one thread ahead of the consumer.

    What goes wrong in that thread is raised where its batch was due, and the stream never goes on behind it.
    Use it as a context manager, or call `close`: the thread has then ended. `prefetch` 0 makes batches without one.
    """

    def __init__(
        self, plan: BatchPlan, make_batch: MakeBatch, start: Place = BEGINNING, prefetch: int = PREFETCH
    ) -> None:
        """`start`: what `BatchPlan.resume` gives."""
        self.plan = plan
        self.place = start
        self.num_batches = 0
        """Batches in the epoch of the last batch that was handed out."""
        self.cursor = Cursor(plan, make_batch, start)
        self.prefetch = prefetch
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="batches") if prefetch else None
        self.waiting: deque[Future[Made]] = deque()
        self.closed = False

    def __next__(self) -> Item:
        if self.closed:
            raise StopIteration
        if self.executor is None:
            made = self.cursor.advance()
        else:
            while len(self.waiting) < self.prefetch:
                self.waiting.append(self.executor.submit(self.cursor.advance))
            # Taken off only when it is there: an interrupt while waiting loses no batch.
            made = self.waiting[0].result()
            self.waiting.popleft()
            self.waiting.append(self.executor.submit(self.cursor.advance))
        self.place, self.num_batches = made.place, made.num_batches
        return made.item

    def state(self) -> State:
        """Where a run goes on that has used every batch handed out so far."""
        return self.plan.state(self.place)

    def close(self) -> None:
        """End the thread and forget the batches that nobody took."""
        self.closed = True
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
        self.waiting.clear()
        self.cursor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Cursor:
    """Walks through the windows and epochs of a plan; used by one thread at a time."""

    def __init__(self, plan: BatchPlan, make_batch: MakeBatch, place: Place) -> None:
        self.plan = plan
        self.make_batch = make_batch
        self.place = place
        # A stage begins with the batch after those that it waits for, so the one before decides.
        self.stage = plan.stage_at(max(0, place.taken - 1))
        self.batches: EpochPlan | None = None
        self.ahead = Ahead(plan)

    def advance(self) -> Made:
        """The next batch; after a failure the same batch is next."""
        place, batches = self.find()
        indices = batches[place.position - place.before]
        item = (place.epoch, place.position, self.make_batch(indices, place.epoch, place.position))
        self.place = place._replace(position=place.position + 1, taken=place.taken + 1)
        return Made(item, self.place, self.estimate(place, len(batches)))

    def find(self) -> tuple[Place, EpochPlan]:
        """The next batch's place and the window that holds it."""
        place, stage = self.place, self.plan.stage_at(self.place.taken)
        if stage != self.stage:
            self.stage, self.batches = stage, None
            if place.position:
                self.place = place = Place(epoch=place.epoch + 1, taken=place.taken)
        if self.batches is None:
            self.batches = self.ahead.take(place.epoch, place.window, stage)
            if place.position - place.before > len(self.batches):
                raise DataError(
                    f"epoch {place.epoch} has {place.before + len(self.batches)} batches up to here, so a run cannot "
                    f"have taken {place.position} of them: the saved state belongs to other data"
                )
        # An epoch without a batch is possible where a small corpus has a small weight.
        while place.position == place.before + len(self.batches):
            if place.window + 1 < self.plan.num_windows(stage):
                place = place._replace(window=place.window + 1, before=place.position)
            else:
                place = Place(epoch=place.epoch + 1, taken=place.taken)
            self.batches, self.place = None, place
            self.batches = self.ahead.take(place.epoch, place.window, stage)
        return place, self.batches

    def estimate(self, place: Place, num_batches: int) -> int:
        """Batches of the epoch, as windows hold about as many each."""
        return (place.before + num_batches) * self.plan.num_windows(self.stage) // (place.window + 1)

    def close(self) -> None:
        self.ahead.close()


class Ahead:
    """Lays out the next window while batches of the present one are made, where an epoch has several."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.executor: ThreadPoolExecutor | None = None
        self.waiting: dict[tuple[int, int, int], Future[EpochPlan]] = {}

    def take(self, epoch: int, window: int, stage: int) -> EpochPlan:
        """A window's batches, made by now or at once; and the one behind it is begun."""
        waiting = self.waiting.pop((epoch, window, stage), None)
        found = waiting.result() if waiting is not None else self.plan.window(epoch, window, stage)
        self.waiting.clear()
        count = self.plan.num_windows(stage)
        if count > 1:
            following = (epoch, window + 1, stage) if window + 1 < count else (epoch + 1, 0, stage)
            if self.executor is None:
                self.executor = ThreadPoolExecutor(1, thread_name_prefix="windows")
            self.waiting[following] = self.executor.submit(self.plan.window, *following)
        return found

    def close(self) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
