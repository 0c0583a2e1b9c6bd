"""One request on its way through the search: its sentences, its deadline, and who is told when it is done.

In: requests to search for. Out: their hypotheses, or why there are none. A ticket is filled by a searching thread and
read by whoever waits for it; each side only ever writes what is its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.serving.limits import RefusedError


@dataclass(frozen=True)
class Group:
    """What sentences must have in common to be searched in one batch."""

    config: DecodingConfig
    keep_attention: bool = False


@dataclass(frozen=True, eq=False)
class Job:
    """One sentence of a ticket."""

    ticket: "Ticket"
    place: int
    request: Request

    @property
    def length(self) -> int:
        return len(self.request.source)


class Ticket:
    """The sentences of one request, wanted until the clock stands at `ends_at`. `tell` is called by the searching
    thread: once all is done, after every change where somebody `watches`; it must not block."""

    def __init__(
        self,
        group: Group,
        requests: Sequence[Request],
        tell: Callable[[], None],
        *,
        ends_at: float,
        watches: bool = False,
    ) -> None:
        self.group = group
        self.tell = tell
        self.watches = watches
        self.ends_at = ends_at
        jobs = [Job(self, place, request) for place, request in enumerate(requests)]
        # Like lengths go well together; who watches reads from the front.
        self.waiting = deque(jobs if watches else sorted(jobs, key=lambda job: -job.length))
        self.results: list[list[Hypothesis] | None] = [None] * len(jobs)
        self.partial: dict[int, Ids] = {}
        self.num_missing = len(jobs)
        self.maybe_error: Exception | None = None
        self.is_left = False

    @property
    def is_open(self) -> bool:
        """Whether anybody still wants what is missing."""
        return self.num_missing > 0 and self.maybe_error is None and not self.is_left

    @property
    def is_done(self) -> bool:
        """Whether all answers are there, or none will come."""
        return self.num_missing == 0 or self.maybe_error is not None

    def leave(self) -> None:
        """Nobody waits any more."""
        self.is_left = True

    def answer(self, place: int, hypotheses: list[Hypothesis]) -> None:
        self.results[place] = hypotheses
        self.partial.pop(place, None)
        self.num_missing -= 1
        if self.watches or not self.num_missing:
            self.tell()

    def fail(self, error: Exception) -> None:
        if self.is_open:
            self.maybe_error = error
            self.tell()

    def expire(self, now: float) -> None:
        """Give up after the deadline."""
        if now > self.ends_at:
            self.fail(late())

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All results in the order of the requests; raises what went wrong."""
        if self.maybe_error is not None:
            raise self.maybe_error
        return [one for one in self.results if one is not None]


def late() -> RefusedError:
    """What is said after the deadline."""
    return RefusedError(503, "deadline", "the translation took longer than is allowed here; try again later", 5)
