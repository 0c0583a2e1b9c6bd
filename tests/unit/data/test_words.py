"""Encoding word by word gives what the tokeniser gives for whole texts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malmoi.data import words
from malmoi.data.encoding import Encoder, fast_encoder, join_rows
from malmoi.data.words import WordTable, can_use_words
from malmoi.text.lines import normalize
from malmoi.text.tokenizer import Tokenizers, train_tokenizer

TRAINING = ["the theory of the other", "there is no other the", "a b ab ba  abab", "é ñ\u2581x", "x\u00a0y"] * 3
BPE = train_tokenizer("bpe", TRAINING, vocabulary_size=320)
UNSEEN = tuple(
    index
    for index in BPE.fallback_ids()
    if index not in {seen for text in TRAINING for symbol in text for seen in BPE.encode(symbol)}
)
TOKENIZERS = Tokenizers(BPE, BPE, shared=True, unseen_source_ids=UNSEEN)
PARTS = [
    "the",
    "other",
    "theory",
    "ab",
    "é",
    "e\u0301",
    "中",
    "😀",
    "\u2581",
    "\x1a0",
    "\u00a0",
    "\t",
    "\r",
    "\n",
    "\0",
]
texts_of_parts = st.lists(st.sampled_from([*PARTS, " ", " ", "  ", "x" * 50]), max_size=12).map("".join).map(normalize)


@given(st.lists(texts_of_parts, max_size=6))
def test_equal_to_whole_texts(texts: list[str]) -> None:
    encoded = Encoder(TOKENIZERS).encode(texts, texts)
    source_ids, source_lengths = join_rows(TOKENIZERS.encode_sources(texts), BPE)
    target_ids, target_lengths = join_rows(TOKENIZERS.encode_targets(texts), BPE)
    assert encoded.source_lengths.tolist() == source_lengths.tolist()
    assert encoded.source_ids.tolist() == source_ids.tolist()
    assert encoded.target_lengths.tolist() == target_lengths.tolist()
    assert encoded.target_ids.tolist() == target_ids.tolist()
    assert encoded.target_ids.dtype == target_ids.dtype


def test_ordinary_text_does_not_go_through_as_a_whole() -> None:
    whole: list[str] = []

    def encode_rows(texts: Sequence[str]) -> list[list[int]]:
        whole.extend(texts)
        return BPE.encode_batch(texts)

    table = WordTable(BPE, encode_rows)
    table.encode(["the other theory", "the  other", "ab"])
    assert whole == ["the  other"]


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 5)
    table = WordTable(BPE, BPE.encode_batch)
    for text in ("the other", "a b ab ba x y", "the ab", "one two three four", "the other one", "ba x"):
        ids, lengths = table.encode([text])
        assert ids.tolist() == [*BPE.encode(text), 1]
        assert lengths.tolist() == [len(ids)]
        assert len(table.numbers) <= 5 + len(text.split())
    table.encode(["the"])
    assert list(table.numbers) == ["the", "other", "a", "b", "ab"]
    assert len(table.lengths) == len(table.starts) == len(table.is_plain) == 5
    assert len(table.ids) == table.lengths.sum()


def test_only_bpe_is_cut_at_spaces() -> None:
    assert can_use_words(BPE)
    unigram = train_tokenizer("unigram", TRAINING, vocabulary_size=300)
    assert not can_use_words(unigram)
    ids, lengths = fast_encoder(unigram, unigram.encode_batch, ())(["the other", ""])
    assert ids.tolist() == [*unigram.encode("the other"), 1, 1]
    assert lengths.tolist() == [len(ids) - 1, 1]


def test_nothing_gives_nothing() -> None:
    encoded = Encoder(TOKENIZERS).encode([], [])
    assert len(encoded.source_ids) == len(encoded.target_lengths) == 0
