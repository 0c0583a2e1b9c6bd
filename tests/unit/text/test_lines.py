"""Lines out of bytes: where they are cut, what is taken out, how faults are told."""

import gzip
import io
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.errors import DataError
from malmoi.text import lines
from malmoi.text.lines import is_blank, normalize, one_line, read_lines

# The same examples in every run.
FIXED = settings(derandomize=True, database=None, deadline=None)

PACKERS: list[Callable[[bytes], bytes]] = [
    gzip.compress,
    zstandard.ZstdCompressor(write_checksum=True).compress,
]
UNICODE_BREAKS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def write(folder: Path, content: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_unicode_line_breaks_do_not_cut(tmp_path: Path) -> None:
    """tensorflow/datasets#2633, rsennrich/subword-nmt#92, allenai/allennlp#338, python/cpython#82921."""
    lines = ["bano dori one", *(f"bano{mark} dori {place}" for place, mark in enumerate(UNICODE_BREAKS)), "felu last"]
    path = write(tmp_path, ("\n".join(lines) + "\n").encode())
    assert list(read_lines(path)) == lines


def test_carriage_return_is_white_space_or_the_end(tmp_path: Path) -> None:
    """facebookresearch/flores#9, mjpost/sacrebleu#24, tensorflow/tensor2tensor#1395."""
    content = b"bano one\ndori\rfelu two\ngasi three\nhemo four\r\njipu \r\r five\nkato six\n"
    expected = ["bano one", "dori felu two", "gasi three", "hemo four", "jipu    five", "kato six"]
    assert list(read_lines(write(tmp_path, content))) == expected
    assert list(read_lines(write(tmp_path, b"a\r\r\nb\r"))) == ["a ", "b"]


def test_byte_order_marks_are_removed_and_told(tmp_path: Path, messages: list[str]) -> None:
    """common-voice/CorporaCreator#39, UniversalDependencies/UD_German-GSD#29, sokcuri/anemone#10."""
    path = write(tmp_path, b"\xef\xbb\xbfbano\ndori\n\xef\xbb\xbffelu\nga\xef\xbb\xbfsi\n")
    assert list(read_lines(path)) == ["bano", "dori", "felu", "ga\ufeffsi"]
    assert messages == [f"{path}: removed a byte-order mark from 2 line(s), first from line 1"]


@pytest.mark.parametrize(("content", "expected"), [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n\n", ["a", ""])])
def test_ends_of_files(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert list(read_lines(write(tmp_path, content))) == expected


def test_lines_longer_than_a_chunk(tmp_path: Path) -> None:
    long = "é" * 100_000
    assert list(read_lines(write(tmp_path, f"a\n{long}\nb".encode()))) == ["a", long, "b"]


@pytest.mark.parametrize("name", ["text.gz", "text.zst", "text.txt"])
def test_archives_are_known_by_their_first_bytes(tmp_path: Path, name: str) -> None:
    content = "über\ngröße\n".encode()
    packed = [gzip.compress(content), zstandard.ZstdCompressor().compress(content), content]
    for data in packed:
        assert list(read_lines(write(tmp_path, data, name))) == ["über", "größe"]


def test_archives_of_several_members(tmp_path: Path) -> None:
    zipped = gzip.compress(b"a\nb") + gzip.compress(b"c\n") + b"\0" * 512
    assert list(read_lines(write(tmp_path, zipped, "a.gz"))) == ["a", "bc"]
    pack = zstandard.ZstdCompressor().compress
    assert list(read_lines(write(tmp_path, pack(b"a\nb") + pack(b"c\n"), "a.zst"))) == ["a", "bc"]


@pytest.mark.parametrize("pack", PACKERS, ids=["gzip", "zstd"])
def test_cut_and_damaged_archives_are_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    content = "\n".join(str(number * 7919 % 10_007) for number in range(20_000)).encode()
    whole = pack(content)
    with pytest.raises(DataError, match=r"cut\.gz: the archive ends too early"):
        list(read_lines(write(tmp_path, whole[:-5], "cut.gz")))
    damaged = whole[:1000] + bytes(byte ^ 0xFF for byte in whole[1000:1400]) + whole[1400:]
    with pytest.raises(DataError, match=r"damaged|too early|not UTF-8"):
        list(read_lines(write(tmp_path, damaged, "damaged")))


def test_an_archive_with_a_huge_window_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = write(tmp_path, compressor.compress(b"hello\n") + compressor.flush(), "long.zst")
    with pytest.raises(DataError, match=r"long\.zst: .*without `zstd --long`"):
        list(read_lines(path))


def test_bad_bytes_are_located(tmp_path: Path) -> None:
    path = write(tmp_path, b"good\nba\xffd\n")
    with pytest.raises(DataError, match=r"text\.txt:2: not UTF-8 at byte 3 of the line \(0xFF\)"):
        list(read_lines(path))
    with pytest.raises(DataError, match=r"text\.txt:1: not UTF-8 .*Latin-1.*iconv -f WINDOWS-1252 -t UTF-8"):
        list(read_lines(write(tmp_path, "gr\u00f6\u00dfe\n".encode("latin-1"))))
    with pytest.raises(DataError, match=r"text\.txt:1: this is UTF-16"):
        list(read_lines(write(tmp_path, "hello\n".encode("utf-16"))))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["hello there\n", "\nca\u0159i \u0159e\u0159\u00ed, dnes\n", "ab\ncd\nef"])
def test_wide_text_without_a_mark_is_refused(tmp_path: Path, encoding: str, text: str) -> None:
    """Its zero bytes would be cleaned away, and half of the letters with them where they are not Latin."""
    name = encoding[:6].upper()
    with pytest.raises(DataError, match=rf"text\.txt:\d: looks like {name} .*iconv -f {name}[LB]E -t UTF-8"):
        list(read_lines(write(tmp_path, text.encode(encoding))))
    if not text.startswith("\n"):
        with pytest.raises(DataError, match=rf":1: .*-f {encoding.upper().replace('-', '').replace('UTF', 'UTF-')} "):
            list(read_lines(write(tmp_path, text.encode(encoding))))


def test_zero_bytes_alone_are_not_wide_text(tmp_path: Path) -> None:
    for line in (b"a\0b", b"\0\0\0\0", b"hello\0", b"a\0\0", b"two\0 words and\0 more", b"\0"):
        assert list(read_lines(write(tmp_path, line + b"\n"))) == [line.decode()]


@pytest.mark.parametrize("pack", [bytes, *PACKERS], ids=["plain", "gzip", "zstd"])
def test_a_line_without_end_is_refused_before_it_is_held(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of some kilobytes may stand for gigabytes without a line feed."""
    path = write(tmp_path, pack(b"short\n" + b"a" * 3_000_000 + b"\nend"), "bomb.txt")
    with pytest.raises(DataError, match=r"bomb\.txt:2: this line has more than 100,000 bytes"):
        list(read_lines(path, longest=100_000))
    assert list(map(len, read_lines(path, longest=3_000_000))) == [5, 3_000_000, 3]
    sizes: list[int] = []
    read = lines.read_chunks

    def measured(*arguments: Any) -> Iterator[bytes]:
        for chunk in read(*arguments):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr(lines, "read_chunks", measured)
    with pytest.raises(DataError):
        list(read_lines(path, longest=100_000))
    assert sum(sizes) <= 100_000 + 2 * lines.CHUNK_BYTES
    assert max(sizes) <= lines.CHUNK_BYTES


def test_long_lines_inside_of_one_chunk_are_measured(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\nbbbbbb\ncc\n")
    assert list(read_lines(path, longest=6)) == ["a", "bbbbbb", "cc"]
    with pytest.raises(DataError, match=r":2: .*more than 5 bytes"):
        list(read_lines(path, longest=5))


def test_missing_files_and_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read_lines(tmp_path / "missing"))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_lines(tmp_path))


def test_standard_input_is_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """joeynmt/joeynmt#62, OpenNMT/OpenNMT-py#1948, OpenNMT/OpenNMT-tf#126: the locale's encoding plays no part."""
    stream = io.TextIOWrapper(io.BytesIO("größe\n한국어\u2028x\n".encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stream)
    assert list(read_lines("-")) == ["größe", "한국어\u2028x"]


def test_a_pipe_is_answered_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream, encoding="utf-8"))
        received: list[str] = []
        lines = read_lines("-")
        os.write(writer, b"(\n")
        thread = threading.Thread(target=lambda: received.append(next(lines)), daemon=True)
        thread.start()
        thread.join(timeout=30)
        answered = list(received)
        os.write(writer, b"rest")
        # Closed before anything is asserted, so that a reader that waits for the end gets it.
        os.close(writer)
        thread.join()
        assert answered == ["("]
        assert list(lines) == ["rest"]


@FIXED
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"))))
def test_lines_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = write(tmp_path_factory.mktemp("lines"), "".join(line + "\n" for line in lines).encode())
    assert list(read_lines(path)) == lines


@FIXED
@given(st.text(alphabet=st.characters()))
def test_normalize_gives_composed_text_that_utf8_can_hold(text: str) -> None:
    result = normalize(text)
    result.encode("utf-8")
    assert unicodedata.is_normalized("NFC", result)
    assert normalize(result) == result


def test_normalize_by_example() -> None:
    """huggingface/transformers#8886 and #43459, openai/tiktoken#82: half a surrogate pair is replaced."""
    assert normalize("u\u0308ber") == "über"
    assert normalize("u\u0308 ﬁ ½ \uff21") == "ü ﬁ ½ \uff21"
    assert normalize("\u1112\u1161\u11ab") == "한"
    assert normalize("bano \ud83d dori") == "bano \ufffd dori"
    assert normalize("a\ud83d") == "a\ufffd"
    assert normalize("bano \ud83d\ude00 dori") == "bano 😀 dori"


def test_one_line_and_blank() -> None:
    assert one_line("a\nb\rc\0d\u2028e\tf") == "a b cd\u2028e\tf"
    for text in ["", "   ", "\t", "\xa0", "\u3000 \u3000", "\u200b", "\ufeff\u2060", "\0"]:
        assert is_blank(text)
    for text in ["a", " . ", "\u3042", "😀"]:
        assert not is_blank(text)
