"""What the ranks of a run must all know before they go on: whether a signal came to any, and what time it is.

In: this rank's signals and clock. Out: the same answers in every rank, asked for once per update, so that all leave the
loop in the same place. Work that a signal cuts short must not speak to other ranks itself.
"""

import signal
from collections.abc import Callable, Sequence
from typing import TypeVar

from malmoi.log import get_logger
from malmoi.training.ranks import Ranks
from malmoi.training.signals import StopSignals, WorkCutShort

T = TypeVar("T")


class Agreement:
    """The signals and the clock of all ranks as one."""

    def __init__(self, ranks: Ranks, signals: StopSignals, clock: Callable[[], float]) -> None:
        """`clock`: seconds of the run; the first rank's counts."""
        self.ranks, self.signals, self.clock = ranks, signals, clock
        self.signal: int | None = None
        """The signal that all know of; later ones are not heard."""
        self.seconds = 0.0
        """When they last agreed."""

    def agree(self) -> None:
        """Tell the others and hear from them."""
        rows = self.ranks.gather(self.signals.received or 0, self.clock())
        arrived = [int(number) for number, _ in rows if number]
        if arrived and self.signal is None:
            self.signal = arrived[0]
        self.seconds = rows[0][1]

    def cut_short(self, work: Callable[[], T]) -> T | None:
        """The result of this rank's work, or None in every rank if a signal came to any before all were done."""
        result = self.signals.cut_short(work)
        self.agree()
        return None if self.signal is not None else result

    def divide(self, texts: Sequence[str], work: Callable[[Sequence[str]], list[str]]) -> list[str]:
        """`work(texts)`, of which each rank does its part, in order; `WorkCutShort` in all if a signal came."""
        mine = texts[self.ranks.part]
        maybe_done = self.cut_short(lambda: work(mine) if mine else [])
        if maybe_done is None:
            raise WorkCutShort
        return self.ranks.merge(maybe_done)

    def announce(self, what_follows: str) -> None:
        """Say which signal came and what is done about it; not from a handler, where logging could block."""
        if self.signal is not None:
            get_logger().warning("received %s: %s", signal.Signals(self.signal).name, what_follows)
