"""Tokenisers that need no library: characters, words, bytes.

In: text. Out: ids, 0 for unknown and 1 for the end, symbols from 2 on; and back.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from malmoi.config.text import TokenizerKind
from malmoi.errors import CheckpointError, DataError
from malmoi.log import get_logger
from malmoi.text.ids import END_ID, SPACE_SYMBOL, UNKNOWN_ID, control_name, decode_bytes, forbidden_ids
from malmoi.text.lines import normalize, one_line

SYMBOLS_FILE = "symbols.json"
NUM_CONTROLS = 2


class SymbolTokenizer:
    """A list of symbols, each a character or a word between white space; what is not listed is unknown."""

    unknown_id = UNKNOWN_ID
    end_id = END_ID

    def __init__(self, kind: Literal["characters", "words"], symbols: Sequence[str]) -> None:
        self.kind: TokenizerKind = kind
        self.symbols = tuple(symbols)
        self.size = NUM_CONTROLS + len(self.symbols)
        self._ids = {symbol: index for index, symbol in enumerate(self.symbols, start=NUM_CONTROLS)}
        self._separator = " " if kind == "words" else ""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without an end symbol."""
        return [self._ids.get(symbol, UNKNOWN_ID) for symbol in cut(self.kind, text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts."""
        return [self.encode(text) for text in texts]

    def encode_sampled(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """As `encode_batch`: there is one way only to spell a text."""
        del alpha, seed
        return self.encode_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any ids; those without a symbol are left out."""
        return self._separator.join(
            self.symbols[index - NUM_CONTROLS] for index in ids if NUM_CONTROLS <= index < self.size
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One visible name for each id."""
        return [
            self.symbols[index - NUM_CONTROLS].replace(" ", SPACE_SYMBOL)
            if NUM_CONTROLS <= index < self.size
            else control_name(index, self.size)
            for index in ids
        ]

    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no output may hold."""
        return (UNKNOWN_ID,)

    def fallback_ids(self) -> tuple[int, ...]:
        """Ids that stand for what has no symbol."""
        return (UNKNOWN_ID,)

    def to_files(self) -> dict[str, bytes]:
        """The list as JSON, one symbol a line, plain ASCII so that no editor or reader can lose white space."""
        return {SYMBOLS_FILE: format_symbols(self.symbols)}


class ByteTokenizer:
    """The bytes of UTF-8: 256 symbols, nothing to learn and nothing unknown."""

    kind: TokenizerKind = "bytes"
    unknown_id = UNKNOWN_ID
    end_id = END_ID
    size = NUM_CONTROLS + 256

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without an end symbol."""
        return [byte + NUM_CONTROLS for byte in one_line(normalize(text)).encode("utf-8")]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts."""
        return [self.encode(text) for text in texts]

    def encode_sampled(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """As `encode_batch`: there is one way only to spell a text."""
        del alpha, seed
        return self.encode_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any ids; a run of bytes that spells no character gives one U+FFFD."""
        return decode_bytes(bytes(index - NUM_CONTROLS for index in ids if NUM_CONTROLS <= index < self.size))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One visible name for each id: the letter, or the byte as `<0xE2>`."""
        return [
            show_byte(index - NUM_CONTROLS) if NUM_CONTROLS <= index < self.size else control_name(index, self.size)
            for index in ids
        ]

    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no output may hold."""
        return forbidden_ids([b"", b"", *(bytes([byte]) for byte in range(256))])

    def fallback_ids(self) -> tuple[int, ...]:
        """All but the end: any byte may be one that training never saw."""
        return (UNKNOWN_ID, *range(NUM_CONTROLS, self.size))

    def to_files(self) -> dict[str, bytes]:
        """Nothing needs to be stored."""
        return {}


def cut(kind: TokenizerKind, text: str) -> Sequence[str]:
    """A text as characters, or as words between any white space."""
    text = one_line(normalize(text))
    return text.split() if kind == "words" else text


def show_byte(byte: int) -> str:
    """A byte as people read it."""
    return SPACE_SYMBOL if byte == 0x20 else chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"


def train_symbols(
    kind: Literal["characters", "words"], texts: Iterable[str], *, vocabulary_size: int, minimum_count: int
) -> SymbolTokenizer:
    """The most frequent symbols of the texts, at most `vocabulary_size` with the two controls; ties by code point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(cut(kind, text))
    if not counts:
        raise DataError("there is no text to build a vocabulary from")
    frequent = [symbol for symbol, count in counts.items() if count >= minimum_count]
    if not frequent:
        raise DataError(f"none of {len(counts):,} {kind} occurs {minimum_count} times: lower text.minimum_count")
    if vocabulary_size <= NUM_CONTROLS:
        raise DataError(f"text.vocabulary_size = {vocabulary_size} has room for <unk> and </s> alone: raise it")
    symbols = sorted(frequent, key=lambda symbol: (-counts[symbol], symbol))[: vocabulary_size - NUM_CONTROLS]
    if len(symbols) < len(counts):
        get_logger().info(f"vocabulary: {len(symbols):,} of {len(counts):,} {kind}; the rarer ones become unknown")
    return SymbolTokenizer(kind, symbols)


def format_symbols(symbols: Sequence[str]) -> bytes:
    """A list of symbols as the bytes of its file; entry k (from 0) stands on line k + 2."""
    return ("[\n" + ",\n".join(json.dumps(symbol) for symbol in symbols) + "\n]\n").encode("ascii")


def load_symbols(kind: Literal["characters", "words"], files: Mapping[str, bytes], where: str) -> SymbolTokenizer:
    """The tokeniser that `to_files` stored; a fault is a `CheckpointError` that names file and line."""
    place = f"{where}-{SYMBOLS_FILE}"
    if SYMBOLS_FILE not in files:
        raise CheckpointError(f"{place}: the file is missing")
    rows = files[SYMBOLS_FILE].rstrip().split(b"\n")
    if len(rows) < 2 or rows[0].strip() != b"[" or rows[-1].strip() != b"]":
        raise CheckpointError(f"{place}: expected a list in brackets, one symbol a line")
    first_lines: dict[str, int] = {}
    for line, row in enumerate(rows[1:-1], start=2):
        symbol = read_symbol(kind, row, f"{place}:{line}")
        if symbol in first_lines:
            raise CheckpointError(f"{place}:{line}: {json.dumps(symbol)} stands on line {first_lines[symbol]} already")
        first_lines[symbol] = line
    return SymbolTokenizer(kind, list(first_lines))


def read_symbol(kind: Literal["characters", "words"], row: bytes, where: str) -> str:
    """The symbol on one line of the file."""
    try:
        symbol: Any = json.loads(row.strip().removesuffix(b","))
    except (ValueError, RecursionError):
        raise CheckpointError(f"{where}: expected one symbol in quotes") from None
    # A symbol is right exactly if cutting it gives it back: neither blank, nor cut in two, nor changed by NFC.
    if not isinstance(symbol, str) or list(cut(kind, symbol)) != [symbol]:
        raise CheckpointError(f"{where}: {json.dumps(symbol)} cannot be one of {kind}")
    return symbol
