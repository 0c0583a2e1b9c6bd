"""Sentences of a text, and the text put together again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.serving.segments import Span, join, split, whole

TEXTS = st.text(st.one_of(st.sampled_from(list("ab .!?。\n\r\t\u00a0\u2028\"'«(“")), st.characters(codec="utf-8")))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.booleans(), st.integers(min_value=1, max_value=12))
def test_sentences_and_the_space_between_them_are_the_text(text: str, at_lines: bool, longest: int) -> None:
    spans = split(text, "en", longest, at_lines=at_lines)
    sentences = [text[span.start : span.end] for span in spans]
    assert all(sentence and sentence == sentence.strip() and len(sentence) <= longest for sentence in sentences)
    assert join(text, spans, sentences)[0] == text
    behind = [0, *(span.end for span in spans)]
    ahead = [*(span.start for span in spans), len(text)]
    assert all(not text[start:end].strip() for start, end in zip(behind, ahead, strict=True))


def test_each_sentence_stands_alone() -> None:
    text = "Hello world. 🤗 Dr. Smith is here!\n\n  And this?"
    spans = split(text, "en", 1000)
    assert [text[span.start : span.end] for span in spans] == ["Hello world.", "🤗 Dr. Smith is here!", "And this?"]
    assert join(text, spans, ["a", "b", "c"]) == ("a b\n\n  c", [0, 2, 7])


def test_lines_end_sentences_unless_told_otherwise() -> None:
    text = "one\ntwo"
    assert split(text, "en", 100) == [Span(0, 3), Span(4, 7)]
    assert split(text, "en", 100, at_lines=False) == [Span(0, 7)]
    assert whole(" one. two ") == [Span(1, 10 - 1)] and whole(" \n") == []


def test_a_sentence_that_became_nothing_leaves_no_space() -> None:
    text = "x. Hello. y"
    assert join(text, [Span(0, 2), Span(3, 9), Span(10, 11)], ["", "Hallo.", "z"])[0] == "Hallo. z"


@pytest.mark.parametrize("unit", ['"a ', "“a ", "(a ", "a. ", "a"])
def test_a_text_of_any_kind_is_cut_in_pieces_of_bounded_length(unit: str) -> None:
    text = unit * (60_000 // len(unit))
    spans = split(text, "en", 1000)
    assert max(span.end - span.start for span in spans) <= 1000
    assert "".join(text[span.start : span.end] for span in spans).replace(" ", "") == text.replace(" ", "")
