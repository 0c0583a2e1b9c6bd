"""One look through corpora: facts to choose settings from, and a bounded, even sample of text."""

from collections import Counter
from pathlib import Path

import numpy as np

from malmoi.config.text import CleaningConfig, DataSource
from malmoi.data.prepare import Sample, scan
from malmoi.text.corpus import Corpus, open_corpus

CLEANING = CleaningConfig()


def write_corpus(folder: Path, sources: list[str], targets: list[str]) -> Corpus:
    for name, lines in (("train.src", sources), ("train.tgt", targets)):
        (folder / name).write_bytes("".join(line + "\n" for line in lines).encode())
    return open_corpus(DataSource(source=str(folder / "train.src"), target=str(folder / "train.tgt")))


def test_facts_of_words_and_phonemes(tmp_path: Path) -> None:
    sources = ["hello", "cat", "cats", "a"] * 10
    targets = ["HH AH L OW", "K AE T", "K AE T S", "AH"] * 10
    facts, sample_sources, sample_targets, report = scan([write_corpus(tmp_path, sources, targets)], CLEANING)
    assert facts.num_pairs == 40
    assert (sample_sources, sample_targets) == (sources, targets)
    assert report.kept == 40
    assert facts.source.is_words
    assert not facts.source.is_symbols
    assert facts.target.is_symbols is False  # each symbol is seen about a dozen times: too little to tell
    assert facts.source.mean_characters == (5 + 3 + 4 + 1) / 4
    assert (facts.source.median_characters, facts.source.max_characters) == (3, 5)
    assert facts.target.distinct_words == 8
    assert facts.target.mean_words == 3.0
    many = scan([write_corpus(tmp_path, sources * 3, targets * 3)], CLEANING).facts
    assert many.target.is_symbols
    assert not many.target.is_words


def test_sentences_are_neither_words_nor_symbols(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    lines = [" ".join(f"word{index}" for index in generator.integers(0, 2000, 10)) for _ in range(300)]
    facts = scan([write_corpus(tmp_path, lines, lines)], CLEANING).facts
    assert not facts.source.is_words
    assert not facts.source.is_symbols
    # Sentences of a script without spaces are not words.
    lines = ["말" * 40] * 10
    assert not scan([write_corpus(tmp_path, lines, lines)], CLEANING).facts.source.is_words


def test_scan_counts_over_all_corpora(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    first = write_corpus(tmp_path, ["a b", "", "c d"], ["x", "y", "z"])
    second = write_corpus(tmp_path / "second", ["e f", "g h"], ["u", "v"])
    counts: list[int] = []
    result = scan([first, second], CLEANING, progress=counts.append)
    assert result.sources == ["a b", "c d", "e f", "g h"]
    assert result.targets == ["x", "z", "u", "v"]
    assert result.facts.num_pairs == 4
    assert result.report.dropped == {"empty": 1}
    assert counts[-1] == 4


def test_scan_of_nothing(tmp_path: Path) -> None:
    facts = scan([write_corpus(tmp_path, [], [])], CLEANING).facts
    assert facts.num_pairs == facts.source.max_characters == 0
    assert not facts.source.is_symbols


def test_sample_is_bounded_even_and_repeatable() -> None:
    def draw(seed: int) -> list[int]:
        sample = Sample(seed, max_pairs=100, max_characters=10**6)
        for number in range(3000):
            sample.add(str(number), "x")
            assert len(sample.sources) == len(sample.targets) <= 100
        return [int(text) for text in sample.sources]

    chosen = draw(1)
    assert 50 <= len(chosen) <= 100
    assert chosen == draw(1) == sorted(chosen)
    assert chosen != draw(2)
    # Over many seeds each third of the stream is chosen as often: 8 standard deviations are allowed.
    thirds = Counter(number // 1000 for seed in range(40) for number in draw(seed))
    expected = thirds.total() / 3
    assert all(abs(count - expected) < 8 * expected**0.5 for count in thirds.values())


def test_sample_is_bounded_in_characters() -> None:
    sample = Sample(1, max_pairs=1000, max_characters=500)
    for _ in range(100):
        sample.add("a" * 50, "b" * 50)
        assert sample.num_characters <= 500
    sample.add("a" * 1000, "b")
    assert sample.sources
