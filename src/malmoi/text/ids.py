"""What all tokenisers agree on: the two control ids, bytes that become text, ids that no output may hold.

In: bytes that a model produced, in any order. Out: text that stays on its line.
"""

import re
from collections.abc import Sequence

from malmoi.text.lines import one_line

UNKNOWN_ID = 0
END_ID = 1
UNKNOWN_SYMBOL = "<unk>"
END_SYMBOL = "</s>"
START_SYMBOL = "<s>"
"""Not part of any tokeniser: its id is the tokeniser's size."""
SPACE_SYMBOL = "\u2581"
REPLACEMENT = "\ufffd"
BREAKING_BYTES = re.compile(rb"[\n\r\0]")
STRAY_BYTES = re.compile("[\udc80-\udcff]+")


def decode_bytes(data: bytes) -> str:
    """UTF-8 as text on one line; each run of bytes that spells no character becomes one U+FFFD."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = STRAY_BYTES.sub(REPLACEMENT, data.decode("utf-8", "surrogateescape"))
    return one_line(text)


def forbidden_ids(contents: Sequence[bytes]) -> tuple[int, ...]:
    """Ids that no output may hold, given the bytes of every id: unknown, and whatever would break the line."""
    breaking = (index for index, content in enumerate(contents) if BREAKING_BYTES.search(content))
    return (UNKNOWN_ID, *breaking)


def control_name(index: int, size: int) -> str:
    """The visible name of an id that holds no text."""
    names = {UNKNOWN_ID: UNKNOWN_SYMBOL, END_ID: END_SYMBOL, size: START_SYMBOL}
    return names.get(index, f"<{index}>")
