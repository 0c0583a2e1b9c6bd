"""Standard output: results and nothing else, one line at a time.

In: text and plain values. Out: lines of UTF-8, and JSON that every strict parser reads: no NaN, no infinity.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast


def write_line(text: str, *, flush: bool = False) -> None:
    """One line of results; `flush` hands it over at once."""
    write_text(text + "\n", flush=flush)


def write_text(text: str, *, flush: bool = False) -> None:
    """Whole lines of results, each with its LF."""
    sys.stdout.write(text)
    if flush:
        sys.stdout.flush()


def write_json(value: Mapping[str, Any], *, flush: bool = False) -> None:
    """One JSON object on one line."""
    write_line(json_text(value), flush=flush)


def json_text(value: Mapping[str, Any]) -> str:
    """A JSON object without a line break."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Plain data in which a number that JSON cannot spell has become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(one) for one in cast(Sequence[Any], value)]
    return value
