"""Scores against sacrebleu's public functions and against counting by hand."""

import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from malmoi.errors import ConfigError, DataError
from malmoi.evaluation.metrics import MetricOptions, TextMetric, measure, measure_all, perplexity
from malmoi.evaluation.references import References

OUTPUTS = ["the cat sat down", "it rains all day", "we went home late"]
SET_A = ["the cat sat down", "the sun never shone", "they walked back at night"]
SET_B = ["a cat sat down", "it rains the whole day", "we got home late"]
ALL: tuple[TextMetric, ...] = ("bleu", "chrf", "ter", "exact", "segment_error", "wer", "ser")


@pytest.mark.parametrize("sets", [[SET_A], [SET_B], [SET_A, SET_B]])
def test_scores_and_signatures_are_those_of_sacrebleu(sets: list[list[str]]) -> None:
    references = References.from_sets(sets)
    for metric, theirs in (("bleu", BLEU()), ("chrf", CHRF(word_order=2)), ("ter", TER())):
        ours = measure(metric, OUTPUTS, references).score()
        assert ours.value == pytest.approx(theirs.corpus_score(OUTPUTS, sets).score, abs=1e-9)
        assert ours.signature == str(theirs.get_signature())
        assert ours.num_segments == 3


def test_options_change_score_and_signature() -> None:
    references = References.from_sets([["The cat , sat ."]])
    lowered = measure("bleu", ["the cat, sat ."], references, MetricOptions(lowercase=True)).score()
    plain = measure("bleu", ["the cat, sat ."], references, MetricOptions(tokenize="none")).score()
    assert lowered.value == pytest.approx(100.0)
    assert "case:lc" in lowered.signature
    assert plain.value < 50.0
    assert "tok:none" in plain.signature
    assert "case:lc" in measure("exact", ["a"], References.from_sets([["A"]]), MetricOptions(lowercase=True)).signature


def test_only_one_line_of_three_matches() -> None:
    """mjpost/sacrebleu#220, #275 and #272: read the other way round the first line alone would score 100."""
    only_a = measure("bleu", OUTPUTS, References.from_sets([SET_A])).score()
    only_b = measure("bleu", OUTPUTS, References.from_sets([SET_B])).score()
    both = measure("bleu", OUTPUTS, References.from_sets([SET_A, SET_B])).score()
    assert only_a.value < 60.0
    assert both.value >= max(only_a.value, only_b.value)
    assert both.num_segments == 3
    assert "nrefs:2" in both.signature


@pytest.mark.parametrize("metric", ALL)
def test_an_output_line_too_few_is_refused_by_every_metric(metric: TextMetric) -> None:
    """mjpost/sacrebleu#220."""
    with pytest.raises(DataError, match="the output has 2 lines, but the references have 3"):
        measure(metric, OUTPUTS[:2], References.from_sets([SET_A]))


@pytest.mark.parametrize("metric", ALL)
def test_empty_texts_have_finite_scores(metric: TextMetric) -> None:
    for outputs, answers in ((["", ""], ["a b", ""]), (["a", ""], ["", ""]), (["", ""], ["", ""])):
        assert math.isfinite(measure(metric, outputs, References.from_sets([answers])).score().value)


def test_any_listed_answer_is_right() -> None:
    options = MetricOptions(symbols="words")
    references = References.from_answers([["T AH M EY T OW", "T AH M AA T OW"], ["R UW T", "R AW T"], ["K AE T"]])
    outputs = ["T AH M AA T OW", "R UW  T ", "K AE T S"]
    assert measure("exact", outputs, references, options).score().value == pytest.approx(200 / 3)
    segment_error = measure("segment_error", outputs, references, options).score()
    assert segment_error.value == pytest.approx(100 / 3)
    assert segment_error.signature.startswith("nrefs:var|case:mixed|symbols:words|version:malmoi-")
    assert not segment_error.higher_is_better
    # One insertion over the lengths of the nearest answers: 6 + 3 + 3.
    assert measure("ser", outputs, references, options).score().value == pytest.approx(100 / 12)


def test_word_error_is_edits_over_words() -> None:
    """As for transcripts of speech: one word too many, one wrong, two missing, of 4 + 3 + 5."""
    outputs = ["the cat sat down there", "it pours today", "we went home"]
    answers = ["the cat sat down", "it rains today", "then we went home late"]
    score = measure("wer", outputs, References.from_sets([answers])).score()
    assert score.value == pytest.approx(100 * 4 / 12)
    assert "symbols:words" in score.signature and not score.higher_is_better
    assert measure("wer", ["The"], References.from_sets([["the"]]), MetricOptions(lowercase=True)).score().value == 0.0


def test_word_error_of_symbols_is_refused_as_it_could_mean_two_things() -> None:
    with pytest.raises(ConfigError, match=r"ser .*segment_error "):
        measure("wer", ["K AE T"], References.from_sets([["K AE T"]]), MetricOptions(symbols="words"))


def test_symbol_error_takes_the_nearest_answer_and_its_length() -> None:
    options = MetricOptions(symbols="words")
    # One edit from both answers: the longer one counts.
    score = measure("ser", ["A B C"], References.from_answers([["A B", "A B C D"]]), options).score()
    assert score.value == pytest.approx(100 / 4)
    # Far from the long one, near to the short one.
    score = measure("ser", ["A"], References.from_answers([["A B", "X Y Z W"]]), options).score()
    assert score.value == pytest.approx(100 / 2)


def test_symbol_error_of_characters_counts_inner_spaces_alone() -> None:
    score = measure("ser", [" ab c "], References.from_sets([["ab  c"]])).score()
    assert score.value == pytest.approx(100 / 5)
    assert "symbols:characters" in score.signature


def test_a_part_of_the_segments_is_scored_alone() -> None:
    references = References.from_sets([SET_A])
    for metric in ALL:
        measurement = measure(metric, OUTPUTS, references)
        alone = measure(metric, OUTPUTS[1:], References.from_sets([SET_A[1:]])).score()
        assert measurement.score(np.array([False, True, True])) == alone


def test_text_that_is_not_nfc_is_the_same_text_and_the_signature_says_so() -> None:
    """mjpost/sacrebleu#178: scores of two spellings of one text must not differ in silence."""
    decomposed = References.from_sets([["u\u0308ber"]])
    (score,) = [one.score() for one in measure_all(["exact"], ["\u00fcber"], decomposed)]
    assert score.value == 100.0
    assert "norm:nfc" in score.signature
    (score,) = [one.score() for one in measure_all(["exact"], ["\u00fcber"], References.from_sets([["\u00fcber"]]))]
    assert "norm" not in score.signature


def test_unknown_tokenisers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="13b"):
        MetricOptions(tokenize="13b")


def test_perplexity() -> None:
    assert perplexity(4 * math.log(8.0), 4) == pytest.approx(8.0)
    assert perplexity(1e6, 1) == math.inf
    with pytest.raises(ValueError, match="at least 1"):
        perplexity(1.0, 0)
