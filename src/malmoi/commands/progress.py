"""A progress bar on a terminal, and nothing at all anywhere else.

In: a title and how much there is to do. Out: a bar on standard error that disappears when it is done; lines of the log
appear above it.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from malmoi.log import get_logger


class Bar(Protocol):
    """What work reports to."""

    def __call__(self, done: float, note: str = "") -> None:
        """How much is done by now, of the total; `note` stands beside the bar."""
        ...


@contextmanager
def progress_bar(title: str, total: float | None, *, quiet: bool = False) -> Generator[Bar]:
    """A bar for as long as the `with` block lasts; `total` None is a bar without an end."""
    if quiet or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %" if total else "{task.completed:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    logger = get_logger()
    # While the bar is drawn, messages must be printed by whoever draws it, or both would share a line.
    plain = [handler for handler in logger.handlers if getattr(handler, "stream", None) is sys.stderr]
    above = RichHandler(
        console=console, show_time=False, show_level=False, show_path=False, highlighter=NullHighlighter()
    )
    above.setLevel(plain[0].level if plain else 0)
    for handler in plain:
        logger.removeHandler(handler)
    logger.addHandler(above)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(title, total=total, note="")

            def advance(done: float, note: str = "") -> None:
                progress.update(task, completed=done, note=note)

            yield advance
    finally:
        logger.removeHandler(above)
        for handler in plain:
            logger.addHandler(handler)


def silent(done: float, note: str = "") -> None:
    """Says nothing."""
    del done, note
