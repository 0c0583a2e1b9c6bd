"""Tokens as words, and weights between words."""

import numpy as np
import pytest

from malmoi.config.text import TextConfig, TokenizerKind
from malmoi.explain.words import Side, group, make_side, merge
from malmoi.text.ids import END_ID
from malmoi.text.tokenizer import train_tokenizers

LINES = ["two small dogs sleep.", "one small cat sleeps.", "작은 개 두 마리가 잡니다."]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words"])
@pytest.mark.parametrize(
    "text", ["two small dogs", "one", "작은 개", " two  small ", "a dog", "<b>two</b> &amp;", "</s> two"]
)
def test_words_are_what_stands_between_spaces(kind: TokenizerKind, text: str) -> None:
    tokenizer = train_tokenizers(
        TextConfig(tokenizer=kind, vocabulary_size=300), [*LINES, text], [*LINES, text], 1
    ).source
    side = make_side(tokenizer, (*tokenizer.encode(text), END_ID))
    assert side.words == (*text.split(), "</s>")
    assert [place for span in side.spans for place in range(*span)] == list(range(len(side.ids)))


def test_what_a_decoder_reads_is_one_behind() -> None:
    side = Side((5, 6, 7, 1), ("▁a", "b", "▁c", "</s>"), ("ab", "c", "</s>"), ((0, 2), (2, 3), (3, 4)))
    read = side.as_input()
    assert read.tokens == ("<s>", "▁a", "b", "▁c")
    assert (read.words, read.spans) == (("<s>", "ab", "c"), ((0, 1), (1, 3), (3, 4)))


def test_a_word_that_was_cut_keeps_what_was_read_of_it() -> None:
    side = Side((5, 6, 7), ("▁a", "▁b", "c"), ("a", "bc"), ((0, 1), (1, 3)))
    assert side.as_input().spans == ((0, 1), (1, 2), (2, 3))


def test_one_word_is_left_out_token_by_token() -> None:
    side = Side((5, 6, 1), ("h", "i", "</s>"), ("hi", "</s>"), ((0, 2), (2, 3)))
    assert side.units == ((0, 1), (1, 2))
    assert side.names(side.units) == ("h", "i")


def test_spaces_alone_make_no_word() -> None:
    assert group((3, 3, 4, 3, 3, 1), ("▁", "▁", "a", "▁", "▁", "</s>"), "characters") == [(0, 5), (5, 6)]
    assert group((3, 3), ("▁", "▁"), "words") == [(0, 1), (1, 2)]
    assert group((), (), "bpe") == []


def test_merging_adds_up_what_is_looked_at_and_takes_the_mean_of_who_looks() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], dtype=np.float32)
    merged = merge(weights, [(0, 2)], [(0, 2), (2, 3)])
    assert np.allclose(merged, [[(0.3 + 0.7) / 2, (0.7 + 0.3) / 2]])
    heads = merge(np.stack([weights, weights[::-1]]), [(0, 1), (1, 2)], [(0, 1), (1, 3)])
    assert heads.shape == (2, 2, 2)
    assert np.allclose(heads.sum(-1), 1.0)
