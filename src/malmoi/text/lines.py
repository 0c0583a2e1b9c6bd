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
LONGEST_LINE_BYTES = 1 << 24
"""16 MiB: a longer line is refused, since it can only be held whole."""
ARCHIVE_BYTES = 1 << 10
"""Archives are given to the decompressor in pieces of this size: a zstd block of a few bytes may stand for 128 KiB, so
that even one made to fill the memory gives at most some 32 MiB at a time."""
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = "\ufeff"
UTF16_MARK = re.compile(rb"\xff\xfe|\xfe\xff")
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


def read_lines(path: str | Path, maybe_name: str | None = None, longest: int = LONGEST_LINE_BYTES) -> Iterator[str]:
    """The lines of a UTF-8 file, one after another; `-` is standard input.

    Whether the file is gzip or zstd is told by its first bytes, not by its name. One CR before an LF is dropped, any
    other CR becomes a space, a byte-order mark at the start of any line is removed and told. Messages name the path, or
    `maybe_name` where that would say nothing to the user.
    Errors: `DataError` for a missing or unreadable file, a damaged or cut archive, bytes that are not UTF-8 or look
    like UTF-16, a line of more than `longest` bytes.
    """
    name = maybe_name or describe(path)
    num_marks = first_mark = 0
    for number, line in enumerate(split_lines(read_chunks(path, name), name, longest), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: {describe_bad_bytes(line, number, error)}") from None
        if "\0" in text and (maybe_encoding := guess_wide(line, number)) is not None:
            raise DataError(f"{name}:{number}: {describe_wide(maybe_encoding)}")
        if text.startswith(BYTE_ORDER_MARK):
            text = text.lstrip(BYTE_ORDER_MARK)
            num_marks, first_mark = num_marks + 1, first_mark or number
        yield text.removesuffix("\r").replace("\r", " ")
    if num_marks:
        get_logger().info(f"{name}: removed a byte-order mark from {num_marks} line(s), first from line {first_mark}")


def count_lines(path: str | Path) -> int:
    """How many lines `read_lines` would give."""
    return sum(1 for _ in split_lines(read_chunks(path, describe(path)), describe(path)))


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
        for piece in pieces_of(chunks, ARCHIVE_BYTES):
            rest = piece
            while rest:
                if maybe_member is None:
                    # Some programs fill the last block behind a gzip member with zeros.
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    maybe_member = start()
                yield from pieces_of([maybe_member.decompress(rest)], CHUNK_BYTES)
                rest = maybe_member.unused_data if maybe_member.eof else b""
                if maybe_member.eof:
                    maybe_member = None
    except (zlib.error, zstandard.ZstdError) as error:
        if "too much memory" in str(error):
            raise DataError(
                f"{name}: the archive needs more than 128 MiB of memory to be read; make it without `zstd --long`"
            ) from None
        raise DataError(f"{name}: the archive is damaged ({error}); make or fetch it again") from None
    if maybe_member is not None:
        raise DataError(f"{name}: the archive ends too early; make or fetch it again")


def pieces_of(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at most `size`, none of them empty."""
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def split_lines(chunks: Iterable[bytes], name: str, longest: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """Byte lines without their LF; what stands behind the last LF is a line if it is not empty.

    `DataError` for a line of more than `longest` bytes, as soon as so many were read.
    """
    pending: list[bytes] = []
    num_pending = num_lines = 0
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        num_pending += len(first)
        # Lines within a chunk are shorter than it, so that only those across chunks are measured.
        if num_pending > longest or (rest and len(chunk) > longest and max(map(len, rest)) > longest):
            lengths = [num_pending, *map(len, rest)]
            number = num_lines + next(place for place, size in enumerate(lengths, start=1) if size > longest)
            raise DataError(
                f"{name}:{number}: this line has more than {longest:,} bytes; one sentence is expected on each line, "
                "ended by a line feed"
            )
        if rest:
            yield b"".join(pending)
            yield from rest[:-1]
            num_lines += len(rest)
            pending, num_pending = [rest[-1]], len(rest[-1])
    last = b"".join(pending)
    if last:
        yield last


def guess_wide(line: bytes, number: int) -> str | None:
    """The encoding of a line with zero bytes beside its letters, as iconv names it; None if they mean something else.

    Behind the first line both orders of UTF-16 look alike: one of the two bytes of each line feed is not taken for it.
    """
    if UTF16_MARK.match(line):
        return None
    num_even, num_odd = line[::2].count(0), line[1::2].count(0)
    most, fewest = max(num_even, num_odd), min(num_even, num_odd)
    if most >= 2 and not fewest and 4 * most >= len(line):
        return "UTF-16BE" if number == 1 and num_even else "UTF-16LE"
    if fewest >= 2 and most + fewest < len(line) and 2 * fewest + 2 >= most and 5 * (most + fewest) >= 3 * len(line):
        return "UTF-32BE" if number == 1 and line.startswith(b"\0") else "UTF-32LE"
    return None


def describe_wide(encoding: str) -> str:
    """What to do about text in an encoding that has zero bytes."""
    return f"looks like {encoding[:6]} (zero bytes beside the letters); {describe_conversion(encoding)}"


def describe_conversion(encoding: str) -> str:
    return f"save the file as UTF-8, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`"


def describe_bad_bytes(line: bytes, number: int, error: UnicodeDecodeError) -> str:
    """What to do about a line that is not UTF-8."""
    if UTF16_MARK.match(line):
        return f"this is UTF-16; {describe_conversion('UTF-16')}"
    if (maybe_encoding := guess_wide(line, number)) is not None:
        return describe_wide(maybe_encoding)
    place = f"not UTF-8 at byte {error.start + 1} of the line (0x{line[error.start]:02X})"
    return f"{place}; if it is Latin-1, {describe_conversion('WINDOWS-1252')}"
