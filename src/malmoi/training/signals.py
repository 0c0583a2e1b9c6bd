"""Requests to stop that arrive as signals.

In: SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (what some clusters send before time is up). Out: a flag that a run looks at
after each update. Work that may be thrown away (validation, waiting for data) is cut short at once. A second signal
ends the program on the spot; that does no harm, as whatever is written gets its name only when it is complete.

Under a launcher the first signal is the only one that counts: torchrun passes on what its processes have heard already,
and asks those that are still there to stop as soon as one has left. It ends who takes too long by SIGKILL.
"""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")


class WorkCutShort(BaseException):
    """Raised by a first signal inside `interruptible`; no one but `cut_short` catches it."""


class StopSignals:
    """Context manager: the handlers stand inside and the former ones are put back at the end.

    Outside of the main thread no handler can be set; then nothing is caught here.
    """

    def __init__(self, *, is_launched: bool = False) -> None:
        """`is_launched`: by something that repeats signals."""
        self.is_launched = is_launched
        self.received: int | None = None
        self.is_interruptible = False
        self.former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
                self.former[number] = signal.signal(number, self.handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.former.items():
            # None: the handler was not set from Python and cannot be put back from here.
            former = handler if handler is not None else signal.SIG_DFL
            # Who was told to stop is on the way out; a repetition would take the exit status away.
            signal.signal(number, signal.SIG_IGN if self.is_launched and self.received is not None else former)
        self.former.clear()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What happens when a signal arrives; called in the main thread between two operations."""
        if self.received is not None:
            if self.is_launched:
                return
            raise SystemExit(128 + number)
        self.received = number
        if self.is_interruptible:
            self.is_interruptible = False
            raise WorkCutShort

    def cut_short(self, work: Callable[[], T]) -> T | None:
        """The result of `work`, or None if a signal came before or during it."""
        try:
            with self.interruptible():
                return work()
        except WorkCutShort:
            return None

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """A first signal raises `WorkCutShort` inside, also one that came before."""
        self.is_interruptible = True
        try:
            if self.received is not None:
                raise WorkCutShort
            yield
        finally:
            self.is_interruptible = False
