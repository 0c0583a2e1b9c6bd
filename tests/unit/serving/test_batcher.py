"""Who comes into a running batch, who leaves it, and who waits: by a batch whose every step the test allows."""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.serving.batcher import Batcher
from malmoi.serving.limits import RefusedError, ServingConfig
from malmoi.serving.metrics import Metrics
from malmoi.serving.tickets import Group, Ticket
from serving_server import PATIENCE, wait

CONFIG = DecodingConfig(beam_size=1, batch_tokens=100)
GROUP = Group(CONFIG)


@dataclass
class Steps:
    """Lets a batch make steps, and sees what was in it."""

    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    seen: list[list[Ids]] = field(default_factory=list[list[Ids]])
    calls: list[str] = field(default_factory=list[str])
    is_free: bool = False

    def allow(self, count: int = 1) -> None:
        """So many further steps; returns when they have been made."""
        wanted = len(self.seen) + count
        self.allowed.release(count)
        wait(lambda: len(self.seen) >= wanted)


class FakeBatch:
    """Answers a sentence of length n after n steps; a sentence that begins with 13 breaks it."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.left: dict[int, tuple[Request, int]] = {}

    @property
    def num_sentences(self) -> int:
        return len(self.left)

    def add(self, requests: Sequence[tuple[int, Request]]) -> None:
        self.steps.calls.append(f"add {len(requests)}")
        if any(request.source[0] == 13 for _, request in requests):
            raise ValueError("broken by a sentence")
        self.left.update({number: (request, len(request.source)) for number, request in requests})

    def remove(self, numbers: Collection[int]) -> None:
        for number in numbers:
            del self.left[number]

    def best_rows(self) -> dict[int, Ids]:
        return {number: (7,) * (len(request.source) - left) for number, (request, left) in self.left.items()}

    def step(self) -> dict[int, list[Hypothesis]]:
        if not self.steps.is_free:
            assert self.steps.allowed.acquire(timeout=PATIENCE)
        self.steps.seen.append(sorted(request.source for request, _ in self.left.values()))
        self.left = {number: (request, left - 1) for number, (request, left) in self.left.items()}
        done = {number: request for number, (request, left) in self.left.items() if not left}
        for number in done:
            del self.left[number]
        return {number: [Hypothesis(request.source, 0.0, (), True)] for number, request in done.items()}


class Bench:
    """A batcher over fake batches."""

    def __init__(self, workers: int = 1, **limits: Any) -> None:
        self.steps = Steps()
        self.metrics = Metrics()
        self.batcher = Batcher(self.make, ServingConfig(**limits), self.metrics, workers=workers)

    def make(self, group: Group) -> SearchBatch:
        return cast(SearchBatch, FakeBatch(self.steps))

    def ticket(self, sources: Sequence[Ids], group: Group = GROUP, **options: Any) -> Ticket:
        requests = [Request(source) for source in sources]
        ends_at = time.monotonic() + options.pop("seconds", PATIENCE)
        return Ticket(group, requests, options.pop("tell", lambda: None), ends_at=ends_at, **options)

    def submit(self, *sources: Ids, **options: Any) -> Ticket:
        ticket = self.ticket(sources, **options)
        self.batcher.submit(ticket)
        return ticket


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.steps.is_free = True
    made.steps.allowed.release(1000)
    made.batcher.close(PATIENCE)
    assert not any(thread.is_alive() for thread in made.batcher.threads)


def of_length(length: int, first: int = 2) -> Ids:
    return (first, *[3] * (length - 1))


def test_answers_come_in_the_order_of_the_sentences(bench: Bench) -> None:
    ticket = bench.submit(of_length(2), of_length(4), of_length(1), of_length(3))
    bench.steps.allow(4)
    wait(lambda: ticket.is_done)
    assert [found[0].ids for found in ticket.hypotheses()] == [of_length(n) for n in (2, 4, 1, 3)]


def test_a_long_request_leaves_room_for_the_next_one(bench: Bench) -> None:
    """OpenNMT/OpenNMT-py#2001, marian-nmt/marian#117: half of a batch of 100 tokens is 5 sentences of 10."""
    long = bench.submit(*[of_length(10)] * 300)
    bench.steps.allow(1)
    assert len(bench.steps.seen[0]) == 5
    short = bench.submit(of_length(2, first=9))
    bench.steps.allow(3)
    wait(lambda: short.is_done)
    assert not long.is_done and long.num_missing >= 295
    assert any(of_length(2, first=9) in seen for seen in bench.steps.seen[1:3])


def test_long_requests_share_what_there_is(bench: Bench) -> None:
    bench.steps.is_free = True
    tickets = [bench.ticket([of_length(10, first=first)] * 40) for first in (2, 4, 5)]
    for ticket in tickets:
        bench.batcher.submit(ticket)
    wait(lambda: all(ticket.is_done for ticket in tickets))
    middle = [{ids[0] for ids in seen} for seen in bench.steps.seen]
    assert max(map(len, middle)) >= 2
    assert all(10 * len(seen) <= 100 for seen in bench.steps.seen)


def test_a_sentence_longer_than_the_budget_is_searched_alone(bench: Bench) -> None:
    bench.steps.is_free = True
    ticket = bench.submit(of_length(150), of_length(2))
    wait(lambda: ticket.is_done)
    assert max(map(len, bench.steps.seen)) <= 2 and [of_length(150)] in bench.steps.seen


def test_who_leaves_is_out_before_the_next_step(bench: Bench) -> None:
    gone = bench.submit(*[of_length(10)] * 50)
    stays = bench.submit(of_length(6, first=9))
    bench.steps.allow(2)
    bench.batcher.leave(gone)
    # One step may have begun before.
    bench.steps.allow(2)
    assert bench.steps.seen[-1] == [of_length(6, first=9)]
    bench.steps.allow(2)
    wait(lambda: stays.is_done)
    wait(lambda: bench.batcher.num_live == 0)
    assert bench.batcher.waiting_tokens == bench.batcher.num_waiting == 0
    assert gone.num_missing == 50 and not gone.is_done
    assert "malmoi_left_sentences_total" in bench.metrics.as_text()


def test_a_deadline_ends_what_waits_and_what_runs(bench: Bench) -> None:
    late = bench.submit(*[of_length(10)] * 50, seconds=0.05)
    other = bench.submit(of_length(4, first=9))
    bench.steps.allow(1)
    time.sleep(0.06)
    bench.steps.allow(2)
    wait(lambda: late.is_done)
    with pytest.raises(RefusedError) as refused:
        late.hypotheses()
    assert (refused.value.status, refused.value.code) == (503, "deadline")
    bench.steps.allow(1)
    wait(lambda: other.is_done)
    assert other.hypotheses()[0][0].ids == of_length(4, first=9)
    wait(lambda: bench.batcher.num_live == 0)


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    bench = Bench(queue_tokens=100)
    # However long one request is, it comes in where little waits.
    first = bench.submit(*[of_length(10)] * 30)
    wait(lambda: bench.batcher.num_live > 0)
    with pytest.raises(RefusedError) as refused:
        bench.submit(of_length(1))
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.retry_after is not None and 1 <= refused.value.retry_after <= 60
    bench.batcher.leave(first)
    bench.steps.is_free = True
    bench.steps.allowed.release(1000)
    wait(lambda: bench.batcher.waiting_tokens == 0)
    second = bench.submit(of_length(1))
    wait(lambda: second.is_done)
    bench.batcher.close(PATIENCE)


def test_closing_answers_what_was_accepted_and_nothing_more(bench: Bench) -> None:
    ticket = bench.submit(*[of_length(10)] * 12)
    wait(lambda: bench.batcher.num_live > 0)
    closing = threading.Thread(target=bench.batcher.close, args=(PATIENCE,))
    closing.start()
    wait(lambda: bench.batcher.is_closed)
    with pytest.raises(RefusedError) as refused:
        bench.submit(of_length(1))
    assert (refused.value.status, refused.value.code) == (503, "stopping")
    bench.steps.is_free = True
    bench.steps.allowed.release(1000)
    closing.join(PATIENCE)
    assert ticket.is_done and len(ticket.hypotheses()) == 12


def test_a_batch_that_breaks_takes_nobody_else_along(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.steps.is_free = True
    other_group = Group(DecodingConfig(beam_size=2, batch_tokens=100))
    broken = bench.submit(of_length(3, first=13))
    fine = bench.submit(of_length(3), group=other_group)
    wait(lambda: broken.is_done and fine.is_done)
    with pytest.raises(ValueError, match="broken"):
        broken.hypotheses()
    assert len(fine.hypotheses()) == 1
    again = bench.submit(of_length(3))
    wait(lambda: again.is_done)
    assert len(again.hypotheses()) == 1
    wait(lambda: bench.batcher.num_live == 0)


def test_settings_are_searched_with_side_by_side_up_to_a_number() -> None:
    bench = Bench(groups=2)
    groups = [Group(DecodingConfig(beam_size=width, batch_tokens=100)) for width in (1, 2, 3)]
    tickets = [bench.submit(of_length(4, first=width), group=group) for width, group in enumerate(groups, start=4)]
    bench.steps.is_free = True
    bench.steps.allowed.release(1000)
    wait(lambda: all(ticket.is_done for ticket in tickets))
    assert [ticket.hypotheses()[0][0].ids[0] for ticket in tickets] == [4, 5, 6]
    bench.batcher.close(PATIENCE)


def test_who_watches_is_told_after_every_step(bench: Bench) -> None:
    told: list[dict[int, Ids]] = []
    tickets: list[Ticket] = []
    ticket = bench.ticket(
        [of_length(3), of_length(2)], watches=True, tell=lambda: told.append(dict(tickets[0].partial))
    )
    tickets.append(ticket)
    bench.batcher.submit(ticket)
    bench.steps.allow(3)
    wait(lambda: ticket.is_done)
    assert {0: (7,), 1: (7,)} in told and {0: (7, 7)} in told and told[-1] == {}


def test_nothing_to_search_is_done_at_once(bench: Bench) -> None:
    told = threading.Event()
    ticket = bench.submit(tell=told.set)
    assert told.is_set() and ticket.is_done and ticket.hypotheses() == []


def test_threads_share_the_sentences_out() -> None:
    bench = Bench(workers=2)
    ticket = bench.submit(*[of_length(5)] * 8)
    bench.steps.allow(2)
    assert [len(seen) for seen in bench.steps.seen[:2]] == [4, 4]
    bench.steps.is_free = True
    bench.steps.allowed.release(1000)
    wait(lambda: ticket.is_done)
    bench.batcher.close(PATIENCE)
    assert len(ticket.hypotheses()) == 8


def test_what_is_told_of_those_who_wait_is_so_when_all_have_left(bench: Bench) -> None:
    gone = bench.submit(*[of_length(10)] * 50)
    bench.steps.allow(1)
    bench.batcher.leave(gone)
    bench.steps.allowed.release()
    for name in ("waiting_tokens", "waiting_sentences", "live_sentences"):
        wait(lambda name=name: f'malmoi_{name}{{model="model"}} 0' in bench.metrics.as_text())
    assert not gone.is_done and gone.num_missing == 50
