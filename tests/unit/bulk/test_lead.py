"""Every block is done once, whatever becomes of the workers."""

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from malmoi.bulk.lead import MOST_LOSSES, lead
from malmoi.bulk.work import Answer, Event, Lost, Ready, Refusal
from malmoi.errors import ConfigError, DataError
from malmoi.wishes import Window

Behave = Callable[[int, Window], Event]


class Stage:
    """A crew whose workers do as `behave` says: (times that this block was given, block) to an event."""

    def __init__(self, num_seats: int, behave: Behave, never_ready: frozenset[int] = frozenset()) -> None:
        self.num_seats = num_seats
        self.behave = behave
        self.never_ready = never_ready
        self.events: deque[tuple[int, Event]] = deque()
        self.given: list[int] = []
        self.num_hired = 0

    def hire(self, seat: int) -> None:
        self.num_hired += 1
        # A second worker of such a seat never comes, as on a machine that has left a cluster.
        if seat not in self.never_ready or self.num_hired <= self.num_seats:
            self.events.append((seat, Ready()))

    def give(self, seat: int, block: Window) -> None:
        self.given.append(block.first_line)
        # The latest first: blocks are done in another order than they are given.
        self.events.appendleft((seat, self.behave(self.given.count(block.first_line), block)))

    def next_event(self) -> tuple[int, Event]:
        return self.events.popleft()


def blocks(count: int, size: int = 2) -> Iterator[Window]:
    for number in range(count):
        yield Window([f"{number} {place}" for place in range(size)], None, None, 1 + number * size)


def answer(block: Window) -> Answer:
    return Answer(" ".join(block.texts).encode(), (), ())


def kept(crew: Stage, count: int = 7) -> list[int]:
    found: list[int] = []

    def keep(block: Window, one: Answer) -> None:
        assert one == answer(block)
        found.append(block.first_line)

    lead(crew, blocks(count), keep)
    return sorted(found)


@pytest.mark.parametrize("num_seats", [1, 2, 3, 10])
def test_every_block_is_done_once(num_seats: int) -> None:
    crew = Stage(num_seats, lambda _, block: answer(block))
    assert kept(crew) == [1, 3, 5, 7, 9, 11, 13]
    assert len(crew.given) == 7


@pytest.mark.parametrize("num_seats", [1, 2, 3, 10])
@pytest.mark.parametrize("num_losses", [1, MOST_LOSSES - 1])
def test_a_lost_workers_block_is_done_by_another(num_seats: int, num_losses: int) -> None:
    def behave(times: int, block: Window) -> Event:
        return Lost("was killed") if block.first_line in (1, 13) and times <= num_losses else answer(block)

    crew = Stage(num_seats, behave)
    assert kept(crew) == [1, 3, 5, 7, 9, 11, 13]
    assert sorted(crew.given) == sorted([*[1, 13] * num_losses, 1, 3, 5, 7, 9, 11, 13])
    assert crew.num_hired == num_seats + 2 * num_losses


def test_who_is_idle_takes_the_block_of_a_worker_that_nobody_replaces() -> None:
    def behave(times: int, block: Window) -> Event:
        return Lost("its machine has left") if block.first_line == 3 and times == 1 else answer(block)

    crew = Stage(2, behave, never_ready=frozenset({0, 1}))
    assert kept(crew, count=2) == [1, 3]


def test_a_block_that_ends_every_worker_is_told_with_its_longest_line() -> None:
    crew = Stage(2, lambda _, block: Lost("ran out of memory") if block.first_line == 5 else answer(block))
    found: list[int] = []
    with pytest.raises(DataError, match=r"lines 5 to 6: 3 workers ended .* ran out of memory.* line 6 with 40 char"):
        lead(
            crew,
            (Window(["a", "b" * 40], None, None, first) for first in (1, 3, 5, 7)),
            lambda block, _: found.append(block.first_line),
        )
    assert {1, 3} <= set(found)


def test_workers_that_never_begin_end_the_job() -> None:
    class Stillborn(Stage):
        def hire(self, seat: int) -> None:
            self.events.append((seat, Lost("ended with status 1")))

    with pytest.raises(DataError, match="no worker can be kept: 6 ended one after another; the last ended with status"):
        kept(Stillborn(2, lambda _, block: answer(block)))


def test_a_refusal_is_not_tried_again() -> None:
    crew = Stage(1, lambda _, __: Refusal(ConfigError("replace_unknown needs words")))
    with pytest.raises(ConfigError, match="replace_unknown"):
        kept(crew)
    assert crew.given == [1]
