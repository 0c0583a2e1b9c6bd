"""Work in threads, and for how long somebody waits for it.

In: functions. Out: their values, or a `RefusedError` when the time is over, the client has left or the service ends.
Nobody can stop a thread: work of many pieces asks its `Leash` between them, and what is one piece is left behind.
"""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from malmoi.serving.limits import RefusedError
from malmoi.serving.tickets import late

P = ParamSpec("P")
T = TypeVar("T")


class ClientGoneError(RefusedError):
    """The client has left; nobody will read what we say."""

    def __init__(self) -> None:
        super().__init__(499, "client_gone", "the client has left")


class Leash:
    """Until when a request is worked for: one clock for all that it needs, from the moment that its body is there."""

    def __init__(self, seconds: float) -> None:
        self.ends_at = time.monotonic() + seconds
        self.maybe_error: RefusedError | None = None

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def check(self) -> None:
        """`RefusedError` where nobody waits any more; from any thread."""
        if self.maybe_error is not None:
            raise self.maybe_error
        if time.monotonic() > self.ends_at:
            raise late()


class Pool:
    """Threads for one kind of work. Where `most` are inside already, others are refused (429)."""

    def __init__(self, num_threads: int, name: str, most: int = 2**30) -> None:
        self.most = most
        self.lock = threading.Lock()
        self.num_inside = 0
        self.threads: list[threading.Thread] = []
        self.executor = ThreadPoolExecutor(
            num_threads, name, initializer=lambda: self.threads.append(threading.current_thread())
        )

    def submit(self, function: Callable[P, T], *arguments: P.args, **words: P.kwargs) -> concurrent.futures.Future[T]:
        """Let a function wait for its turn. It is inside until it has ended, whether or not anybody waits for it."""
        with self.lock:
            if self.num_inside >= self.most:
                raise RefusedError(429, "queue_full", "too many requests of this kind are waiting; try again later", 5)
            self.num_inside += 1
        future = self.executor.submit(function, *arguments, **words)
        future.add_done_callback(self.leave)
        return future

    def leave(self, future: "concurrent.futures.Future[T]") -> None:
        del future
        with self.lock:
            self.num_inside -= 1

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)

    def has_ended(self, ends_at: float) -> bool:
        """Whether all threads of a closed pool are over by then."""
        for thread in self.threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)


async def wait_for(
    working: asyncio.Future[T], request: Request, leash: Leash, ending: asyncio.Event, ends: RefusedError
) -> T:
    """The value of work, unless its time is over, the client leaves, or `ending` is set (then `ends` is raised)."""
    leaving, stopping = asyncio.create_task(until_gone(request)), asyncio.create_task(ending.wait())
    try:
        await asyncio.wait(
            (working, leaving, stopping), timeout=leash.seconds_left, return_when=asyncio.FIRST_COMPLETED
        )
        if working.done():
            return working.result()
        raise ClientGoneError if leaving.done() else ends if stopping.done() else late()
    finally:
        leaving.cancel()
        stopping.cancel()
        if not working.done():
            leash.maybe_error = ClientGoneError()
            working.cancel()


async def until_gone(request: Request) -> None:
    """Ends when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
