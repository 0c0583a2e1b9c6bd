"""Continuous batching: sentences of many requests searched together, who joins and leaves at every step.

In: tickets. Out: tickets that are filled. One thread searches, or several where the scorer allows it; each has a batch
for every group of settings that is in use. Rules of admission:

* Requests take turns, sentence by sentence: a long one cannot be in front of a short one with more than its share.
* A batch holds live tokens (sentences times beam times longest source) up to the budget of its settings, and one
  request at most `share` of them, so that the next request finds room at any time.
* A request that has sentences in a batch brings more when half of its share is free, since coming in has its own cost.
* What nobody waits for any more leaves the batch before the next step.
"""

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.batch import SearchBatch
from malmoi.log import get_logger
from malmoi.serving.limits import RefusedError, ServingConfig
from malmoi.serving.metrics import Metrics
from malmoi.serving.tickets import Group, Job, Ticket

LONGEST_RETRY = 60


@dataclass
class Flight:
    """A batch of one group, and whose its sentences are."""

    batch: SearchBatch
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])

    @property
    def longest(self) -> int:
        return max((job.length for job in self.jobs.values()), default=0)


class Batcher:
    """The searching threads of one model, and the tickets that wait for them."""

    def __init__(
        self,
        make_batch: Callable[[Group], SearchBatch],
        limits: ServingConfig,
        metrics: Metrics,
        *,
        name: str = "model",
        workers: int = 1,
    ) -> None:
        self.make_batch = make_batch
        self.limits = limits
        self.metrics = metrics
        self.name = name
        self.changed = threading.Condition()
        self.tickets: list[Ticket] = []
        self.num_waiting = 0
        self.waiting_tokens = 0
        self.num_live = 0
        self.numbers = itertools.count()
        self.is_closed = False
        self.gives_up = False
        self.busy_since = time.monotonic()
        self.done_tokens = 0
        self.threads = [
            threading.Thread(target=self.work, name=f"search-{name}-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Let a ticket wait for its turn; `RefusedError` where too much waits already, or nothing is taken any more."""
        with self.changed:
            if self.is_closed:
                raise stopping()
            if self.waiting_tokens >= self.limits.queue_tokens:
                raise RefusedError(
                    429, "queue_full", "too many requests are waiting; try again later", self.seconds_to_wait()
                )
            if ticket.waiting:
                if not self.num_waiting and not self.num_live:
                    self.busy_since, self.done_tokens = time.monotonic(), 0
                self.tickets.append(ticket)
                self.num_waiting += len(ticket.waiting)
                self.waiting_tokens += sum(job.length for job in ticket.waiting)
                self.tell_gauges()
                self.changed.notify_all()
        if not ticket.num_missing:
            ticket.tell()

    def seconds_to_wait(self) -> int:
        """How long what waits will take, as fast as it went since there was last nothing to do."""
        speed = self.done_tokens / max(time.monotonic() - self.busy_since, 0.001)
        return 1 + int(min(LONGEST_RETRY - 1, self.waiting_tokens / max(speed, 1.0)))

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for a ticket any more; it leaves before the next step."""
        ticket.leave()
        with self.changed:
            self.changed.notify_all()

    def give_up(self) -> None:
        """Tell all who still wait that nothing comes any more."""
        with self.changed:
            self.is_closed = self.gives_up = True
            self.changed.notify_all()

    def look_at(self, ticket: Ticket) -> None:
        """Whether a ticket's time is over."""
        if self.gives_up:
            ticket.fail(stopping())
        ticket.expire(time.monotonic())

    def close(self, seconds: float) -> None:
        """Take nothing more, finish what is here, and end the threads."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        ends_at = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def work(self) -> None:
        """One thread: step after step while there is anything to do."""
        flights: dict[Group, Flight] = {}
        while True:
            with self.changed:
                while not (self.tickets or flights or self.is_closed):
                    self.changed.wait()
                if self.is_closed and not self.tickets and not flights:
                    return
                coming = self.take(flights)
                is_idle = not coming and not flights
                if is_idle:
                    # What waits has its turn when another thread has room.
                    self.changed.wait(0.05)
            if not is_idle:
                self.turn(flights, coming)

    def turn(self, flights: dict[Group, Flight], coming: dict[Group, list[Job]]) -> None:
        """Those who leave, those who come, and one step of every batch."""
        for group, jobs in coming.items():
            self.guarded(flights, group, self.admit, jobs)
        for group in list(flights):
            self.guarded(flights, group, self.step, ())

    def guarded(
        self,
        flights: dict[Group, Flight],
        group: Group,
        action: Callable[[dict[Group, Flight], Group, Sequence[Job]], None],
        jobs: Sequence[Job],
    ) -> None:
        """Whatever goes wrong in a batch ends this batch and nothing else."""
        try:
            action(flights, group, jobs)
        except Exception as error:  # noqa: BLE001
            # The message of an error may hold text of a user; the places in the program do not.
            places = "".join(traceback.format_tb(error.__traceback__))
            get_logger().error("%s: a batch failed with %s\n%s", self.name, type(error).__name__, places)
            maybe_flight = flights.pop(group, None)
            lost = {*jobs, *(maybe_flight.jobs.values() if maybe_flight else ())}
            with self.changed:
                self.num_live -= len(lost)
                self.tell_gauges()
            for job in lost:
                job.ticket.fail(error)

    def admit(self, flights: dict[Group, Flight], group: Group, jobs: Sequence[Job]) -> None:
        """Sentences come into the batch of their group."""
        if group not in flights:
            flights[group] = Flight(self.make_batch(group))
        flight = flights[group]
        numbered = {next(self.numbers): job for job in jobs}
        flight.jobs.update(numbered)
        flight.batch.add([(number, job.request) for number, job in numbered.items()])

    def step(self, flights: dict[Group, Flight], group: Group, jobs: Sequence[Job]) -> None:
        """Drop what nobody wants, make one step, hand out what is done."""
        del jobs
        flight = flights[group]
        for ticket in {job.ticket for job in flight.jobs.values()}:
            self.look_at(ticket)
        unwanted = [number for number, job in flight.jobs.items() if not job.ticket.is_open]
        flight.batch.remove(unwanted)
        for number in unwanted:
            del flight.jobs[number]
        if unwanted:
            self.metrics.add("left_sentences", len(unwanted), model=self.name)
            with self.changed:
                self.num_live -= len(unwanted)
                self.tell_gauges()
        finished = flight.batch.step() if flight.batch.num_sentences else {}
        if any(job.ticket.watches for job in flight.jobs.values()):
            for number, ids in flight.batch.best_rows().items():
                flight.jobs[number].ticket.partial[flight.jobs[number].place] = ids
        changed = {job.ticket for number, job in flight.jobs.items() if job.ticket.watches and number not in finished}
        done = [(flight.jobs.pop(number), hypotheses) for number, hypotheses in finished.items()]
        if not flight.jobs:
            del flights[group]
        with self.changed:
            self.num_live -= len(done)
            self.done_tokens += sum(job.length for job, _ in done)
            self.tell_gauges()
        self.metrics.add("steps", model=self.name)
        self.metrics.add("sentences", len(done), model=self.name)
        self.metrics.add("tokens", sum(len(found[0].ids) for _, found in done if found), model=self.name)
        for job, hypotheses in done:
            job.ticket.answer(job.place, hypotheses)
        for ticket in changed:
            ticket.tell()

    def take(self, flights: dict[Group, Flight]) -> dict[Group, list[Job]]:
        """Sentences that come in now, by group; the caller holds the lock."""
        self.forget_closed()
        if not self.num_waiting:
            self.tell_gauges()
            return {}
        # Threads that search share the sentences out, so that none takes all and leaves the others idle.
        own = sum(len(flight.jobs) for flight in flights.values())
        room = -(-(self.num_waiting + self.num_live) // len(self.threads)) - own
        seats = Seats(flights, self.limits)
        coming: dict[Group, list[Job]] = {}
        turn = list(self.tickets)
        while turn and room > 0:
            later: list[Ticket] = []
            for ticket in turn:
                if room <= 0 or not ticket.waiting or not seats.take(ticket, ticket.waiting[0]):
                    continue
                coming.setdefault(ticket.group, []).append(ticket.waiting.popleft())
                room -= 1
                later.append(ticket)
            turn = later
        taken = [job for jobs in coming.values() for job in jobs]
        self.num_waiting -= len(taken)
        self.num_live += len(taken)
        self.waiting_tokens -= sum(job.length for job in taken)
        # Whoever came in now goes behind those that did not.
        seated = {job.ticket for job in taken}
        self.tickets = [one for one in self.tickets if one not in seated] + [
            one for one in self.tickets if one in seated and one.waiting
        ]
        self.tell_gauges()
        return coming

    def forget_closed(self) -> None:
        """Tickets that nobody waits for, or not any more, give their places up."""
        for ticket in self.tickets:
            self.look_at(ticket)
        for ticket in [one for one in self.tickets if not one.is_open]:
            self.tickets.remove(ticket)
            self.num_waiting -= len(ticket.waiting)
            self.waiting_tokens -= sum(job.length for job in ticket.waiting)
            self.metrics.add("left_sentences", len(ticket.waiting), model=self.name)
            ticket.waiting.clear()

    def tell_gauges(self) -> None:
        self.metrics.set("waiting_tokens", self.waiting_tokens, model=self.name)
        self.metrics.set("waiting_sentences", self.num_waiting, model=self.name)
        self.metrics.set("live_sentences", self.num_live, model=self.name)


def stopping() -> RefusedError:
    return RefusedError(503, "stopping", "the service is stopping", 5)


class Seats:
    """The room in a thread's batches while it takes sentences in."""

    def __init__(self, flights: dict[Group, Flight], limits: ServingConfig) -> None:
        self.limits = limits
        self.counts = {group: len(flight.jobs) for group, flight in flights.items()}
        self.longest = {group: flight.longest for group, flight in flights.items()}
        self.of_tickets: dict[Ticket, int] = {}
        self.closed: set[Ticket] = set()
        for group, flight in flights.items():
            width = width_of(group.config)
            for job in flight.jobs.values():
                self.of_tickets[job.ticket] = self.of_tickets.get(job.ticket, 0) + 1
            for ticket, count in self.of_tickets.items():
                if ticket.group == group and 2 * count * width * self.longest[group] > self.share_of(group):
                    self.closed.add(ticket)

    def share_of(self, group: Group) -> float:
        """Live tokens of one request."""
        return self.limits.share * group.config.batch_tokens

    def take(self, ticket: Ticket, job: Job) -> bool:
        """Give a sentence a place, if there is one."""
        group, width = ticket.group, width_of(ticket.group.config)
        if ticket in self.closed or (group not in self.counts and len(self.counts) >= self.limits.groups):
            return False
        count, mine = self.counts.get(group, 0), self.of_tickets.get(ticket, 0)
        longest = max(self.longest.get(group, 0), job.length)
        if count and (count + 1) * width * longest > group.config.batch_tokens:
            return False
        if mine and (mine + 1) * width * longest > self.share_of(group):
            return False
        self.counts[group], self.of_tickets[ticket], self.longest[group] = count + 1, mine + 1, longest
        return True


def width_of(config: DecodingConfig) -> int:
    """Rows of one sentence."""
    return config.n_best if config.method == "sample" else config.beam_size
