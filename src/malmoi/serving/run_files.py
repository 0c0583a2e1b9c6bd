"""Files of run folders, which anybody may have put there: opened with care, and their values as JSON has them.

In: a run folder and the name of a file in it. Out: bytes of a regular file that lies in that folder itself, at most so
many; and plain values.
"""

import datetime
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
"""What waits for a writer is not waited for."""
MOST_LINE = 2**16
"""A longer line is no row."""
MOST_DEPTH = 16
MOST_INTEGER = 2**64


def open_inside(run: Path, name: str) -> BinaryIO:
    """A file of a run to be read; `OSError` unless it is a regular one that lies in the folder, whatever links say."""
    inside = (run / name).resolve()
    if not inside.is_relative_to(run.resolve()):
        raise PermissionError(f"{name} leads out of its run")
    number = os.open(inside, FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise PermissionError(f"{name} is no regular file")
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def maybe_read(run: Path, name: str, most: int) -> bytes | None:
    """The whole of a small file; None where there is none, or where it is not one to be read."""
    try:
        with open_inside(run, name) as file:
            content = file.read(most + 1)
    except (OSError, RuntimeError, ValueError):
        return None
    return content if len(content) <= most else None


def whole_lines(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines between two places, each behind where the next one begins; one that is too long is empty."""
    file.seek(begin)
    while begin < end:
        line = piece = file.readline(MOST_LINE)
        begin += len(piece)
        while piece and not piece.endswith(b"\n"):
            line, piece = b"", file.readline(MOST_LINE)
            begin += len(piece)
            if begin > end:
                return
        if not piece:
            return
        yield begin, line


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it: what is no number is null, and so is an integer of too many digits, or what is nested too
    deep; dates are text, and half of a pair of surrogates is a question mark."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        return value if abs(value) < MOST_INTEGER else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if depth >= MOST_DEPTH:
        return None
    if isinstance(value, dict):
        pairs = cast(dict[object, Any], value).items()
        return {plain(str(key)): plain(inner, depth + 1) for key, inner in pairs}
    return [plain(inner, depth + 1) for inner in cast(list[Any], value)] if isinstance(value, list) else None
