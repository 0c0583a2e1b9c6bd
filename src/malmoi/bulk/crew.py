"""Workers in processes of this machine, and what any kind of crew can do.

In: blocks for free workers. Out: events, in the order in which they happen. Each worker has a seat; a worker that was
lost leaves its seat to a new one.
"""

import multiprocessing
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Protocol

from malmoi.bulk.work import Event, Lost, Plan, Refusal, Worker
from malmoi.wishes import Window

LEAVE_SECONDS = 5.0


class Crew(Protocol):
    """Workers that do what they are given; where they are, only the crew knows."""

    @property
    def num_seats(self) -> int: ...

    def hire(self, seat: int) -> None:
        """Put a new worker into a seat; `next_event` tells when it is ready."""
        ...

    def give(self, seat: int, block: Window) -> None:
        """Let the worker of a seat translate a block; it must be ready, and have none."""
        ...

    def next_event(self) -> tuple[int, Event]:
        """Wait for whatever happens next, and in which seat."""
        ...


class LocalCrew:
    """A process for each seat, started anew for each worker; all of them end with this one, however it ends."""

    def __init__(self, plan: Plan, num_seats: int) -> None:
        self.plan = plan
        self.num_seats = num_seats
        # A fork would take over locks of torch's threads in whatever state they are.
        self.context = multiprocessing.get_context("spawn")
        self.seats: dict[int, tuple[BaseProcess, Connection]] = {}

    @classmethod
    @contextmanager
    def at_work(cls, plan: Plan, num_seats: int) -> Generator["LocalCrew"]:
        """A crew whose processes are gone behind the `with` block."""
        crew = cls(plan, num_seats)
        try:
            yield crew
        finally:
            for process, connection in crew.seats.values():
                process.terminate()
                connection.close()
            for process, _ in crew.seats.values():
                process.join(LEAVE_SECONDS)

    def hire(self, seat: int) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(self.plan, theirs), daemon=True, name=f"worker {seat + 1}")
        process.start()
        # Once the worker is gone nobody holds its end, which is how its loss is seen.
        theirs.close()
        self.seats[seat] = (process, ours)

    def give(self, seat: int, block: Window) -> None:
        try:
            self.seats[seat][1].send(block)
        except OSError:
            # It is gone already: the end of its pipe, which is read next, tells of it.
            return

    def next_event(self) -> tuple[int, Event]:
        seats = {connection: seat for seat, (_, connection) in self.seats.items()}
        for connection in wait(list(seats)):
            assert isinstance(connection, Connection)
            seat = seats[connection]
            try:
                event: Event = connection.recv()
            except (EOFError, OSError):
                event = Lost(self.bury(seat))
            return seat, event
        raise AssertionError("somebody is waited for")

    def bury(self, seat: int) -> str:
        """Clear a seat, and say how its worker ended."""
        process, connection = self.seats.pop(seat)
        connection.close()
        process.join(LEAVE_SECONDS)
        status = process.exitcode
        if status is not None and status < 0:
            return f"ended by signal {-status} ({signal.Signals(-status).name}); 9 also means that memory ran out"
        return f"ended with status {status}"


def serve(plan: Plan, connection: Connection) -> None:
    """A worker's process: one event for each block, until the other side is gone."""
    # Ctrl-C reaches all processes of a terminal; whoever leads the job sees to the end of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    worker = Worker(plan)
    event: Event = worker.open()
    while send(connection, event) and not isinstance(event, Refusal):
        maybe_block = receive(connection)
        if maybe_block is None:
            return
        event = worker.answer(maybe_block)


def end_with_parent() -> None:
    """Let this process end at once when the one that started it is gone: nobody takes the block that it works on."""
    maybe_parent = multiprocessing.parent_process()
    assert maybe_parent is not None, "a worker was started by somebody"

    def watch() -> None:
        maybe_parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def send(connection: Connection, event: Event) -> bool:
    """False where nobody waits for an answer any more."""
    try:
        connection.send(event)
    except OSError:
        return False
    return True


def receive(connection: Connection) -> Window | None:
    """The next block, None where nobody will give one."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
