"""Requests to stop that arrive as signals.

In: SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (what some clusters send before time is up). Out: a flag that a run looks at
after each update. Work that may be thrown away (validation, waiting for data) is cut short at once. A second signal
ends the program on the spot; that does no harm, as whatever is written gets its name only when it is complete.
"""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from malmoi.log import get_logger

T = TypeVar("T")
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")


class WorkCutShort(BaseException):
    """Raised by a first signal inside `interruptible`; no one but `cut_short` catches it."""


class StopSignals:
    """Context manager: the handlers stand inside and the former ones are put back at the end.

    Outside of the main thread no handler can be set; then nothing is caught here.
    """

    def __init__(self) -> None:
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
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self.former.clear()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What happens when a signal arrives; called in the main thread between two operations."""
        if self.received is not None:
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

    def announce(self, what_follows: str) -> None:
        """Say which signal came and what is done about it; not from the handler, where logging could block."""
        if self.received is not None:
            get_logger().warning("received %s: %s", signal.Signals(self.received).name, what_follows)
