"""Bytes to lines of text, and the rules that every text passes through.

In: a path, or `-` for standard input; plain, gzip or zstd. Out: strings without line feed or carriage return, one for
each line of the file. Lines are cut at the byte LF alone, whatever Unicode or the platform call a line break.
"""

import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Protocol, cast

import zstandard

from malmoi.errors import DataError
from malmoi.log import get_logger

CHUNK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = "\ufeff"
LINE_BREAKS = str.maketrans({"\n": " ", "\r": " ", "\0": None})


class ByteStream(Protocol):
    """What is read: `read1` hands over what is there without waiting for a full chunk, as a pipe needs it."""

    def read1(self, size: int = -1, /) -> bytes: ...


class Decompressor(Protocol):
    """The part of a decompressor that gzip and zstd share."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def read_lines(path: str | Path, maybe_name: str | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, one after another; `-` is standard input.

    Whether the file is gzip or zstd is told by its first bytes, not by its name. One CR before an LF is dropped, any
    other CR becomes a space, a byte-order mark at the start of any line is removed and told. Messages name the path, or
    `maybe_name` where that would say nothing to the user.
    Errors: `DataError` for a missing or unreadable file, a damaged or cut archive, bytes that are not UTF-8.
    """
    name = maybe_name or describe(path)
    num_marks = first_mark = 0
    for number, line in enumerate(split_lines(read_chunks(path, name)), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: {describe_bad_bytes(line, error)}") from None
        if text.startswith(BYTE_ORDER_MARK):
            text = text.lstrip(BYTE_ORDER_MARK)
            num_marks, first_mark = num_marks + 1, first_mark or number
        yield text.removesuffix("\r").replace("\r", " ")
    if num_marks:
        get_logger().info(f"{name}: removed a byte-order mark from {num_marks} line(s), first from line {first_mark}")


def count_lines(path: str | Path) -> int:
    """How many lines `read_lines` would give."""
    return sum(1 for _ in split_lines(read_chunks(path, describe(path))))


def normalize(text: str) -> str:
    """Text in Unicode's composed form (NFC); half a surrogate pair, which no UTF-8 can hold, becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # By way of UTF-16 two halves that belong together become the character that they mean.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def one_line(text: str) -> str:
    """Text that cannot break a line-based file: LF and CR become spaces, NUL goes."""
    return text.translate(LINE_BREAKS) if "\n" in text or "\r" in text or "\0" in text else text


def is_blank(text: str) -> bool:
    """Whether nothing can be seen: white space of any kind, control characters, invisible marks such as U+200B."""
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text)


def describe(path: str | Path) -> str:
    """A path as messages name it."""
    return "standard input" if str(path) == "-" else str(path)


def read_chunks(path: str | Path, name: str) -> Iterator[bytes]:
    """The bytes of a file, which messages call `name`, as they come; decompressed where the first bytes say so."""
    with open_bytes(path) as stream:
        chunk = stream.read1(CHUNK_BYTES)
        # A pipe may hand over a single byte; more is awaited only while that can still become a magic number.
        while chunk and any(magic.startswith(chunk) for magic in (GZIP_MAGIC, ZSTD_MAGIC)) and chunk != GZIP_MAGIC:
            more = stream.read1(CHUNK_BYTES)
            if not more:
                break
            chunk += more
        chunks = continue_chunks(chunk, stream)
        if chunk.startswith(GZIP_MAGIC):
            yield from decompress(chunks, lambda: zlib.decompressobj(wbits=31), name)
        elif chunk.startswith(ZSTD_MAGIC):
            decompressor = zstandard.ZstdDecompressor()
            yield from decompress(chunks, decompressor.decompressobj, name)
        else:
            yield from chunks


@contextmanager
def open_bytes(path: str | Path) -> Generator[ByteStream]:
    """A file or standard input for reading bytes; faults of the system are told as `DataError`."""
    try:
        if str(path) == "-":
            yield cast(BufferedReader, sys.stdin.buffer)
        else:
            with Path(path).open("rb") as stream:
                yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{describe(path)}: cannot be read ({error.strerror or error})") from error


def continue_chunks(first: bytes, stream: ByteStream) -> Iterator[bytes]:
    """The chunk that was read already, then the rest."""
    chunk = first
    while chunk:
        yield chunk
        chunk = stream.read1(CHUNK_BYTES)


def decompress(chunks: Iterable[bytes], start: Callable[[], Decompressor], name: str) -> Iterator[bytes]:
    """Decompressed chunks of an archive of one or several members; an archive that ends early is an error."""
    maybe_member: Decompressor | None = None
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                if maybe_member is None:
                    # Some programs fill the last block behind a gzip member with zeros.
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    maybe_member = start()
                data = maybe_member.decompress(rest)
                if data:
                    yield data
                rest = maybe_member.unused_data if maybe_member.eof else b""
                if maybe_member.eof:
                    maybe_member = None
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{name}: the archive is damaged ({error}); make or fetch it again") from None
    if maybe_member is not None:
        raise DataError(f"{name}: the archive ends too early; make or fetch it again")


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Byte lines without their LF; what stands behind the last LF is a line if it is not empty."""
    pending: list[bytes] = []
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        if rest:
            yield b"".join(pending)
            yield from rest[:-1]
            pending = [rest[-1]]
    last = b"".join(pending)
    if last:
        yield last


def describe_bad_bytes(line: bytes, error: UnicodeDecodeError) -> str:
    """What to do about a line that is not UTF-8."""
    if re.match(rb"\xff\xfe|\xfe\xff", line):
        return "this is UTF-16; save the file as UTF-8"
    return f"not UTF-8 at byte {error.start + 1} of the line (0x{line[error.start]:02X}); save the file as UTF-8"
