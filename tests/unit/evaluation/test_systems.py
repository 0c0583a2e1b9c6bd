"""Several systems on the same segments: what is added up, what is called clear, which segments are shown."""

import numpy as np
import pytest

from compare_toys import outputs_of, sources_of
from malmoi.errors import DataError
from malmoi.evaluation.compare import compare_outputs
from malmoi.evaluation.metrics import MetricOptions, measure_all
from malmoi.evaluation.references import References
from malmoi.evaluation.systems import SIGNIFICANCE, Quality, compare_systems, pooled, samples_for

SOURCES = sources_of(60)
ANSWERS = References(tuple((text,) for text in SOURCES))


def compared(num_seeds: int = 1) -> Quality:
    return compare_systems(outputs_of(SOURCES, num_seeds), SOURCES, ANSWERS, metrics=("bleu", "chrf"), num_samples=100)


def test_one_seed_gives_what_evaluating_and_comparing_give() -> None:
    quality, outputs = compared(), outputs_of(SOURCES, 1)
    (bleu,) = measure_all(["bleu"], outputs["transformer"][0], ANSWERS)
    score = quality.scores["transformer"][0]
    assert score.values == (bleu.score().value,) and score.mean == bleu.score().value and score.deviation is None
    assert score.interval[0] <= score.mean <= score.interval[1]
    expected = compare_outputs(
        outputs["transformer"][0], outputs["seq2seq"][0], ANSWERS, metrics=("bleu",), num_samples=100
    ).differences[0]
    found = next(one for one in quality.pairings if (one.system, one.baseline) == ("transformer", "seq2seq"))
    assert found.difference == expected and found.is_clear


def test_every_system_stands_against_each_other_once() -> None:
    pairs = [(one.system, one.baseline) for one in compared().pairings if one.difference.metric == "bleu"]
    assert pairs == [
        ("seq2seq-attention", "seq2seq"),
        ("transformer", "seq2seq"),
        ("transformer", "seq2seq-attention"),
    ]


def test_luck_is_shared_out_among_the_pairs() -> None:
    """A p-value that would do for two systems alone need not do for one pair among many."""
    texts = [text if number % 12 else "xx" for number, text in enumerate(SOURCES)]
    outputs = {"same": [SOURCES], "less": [texts], "third": [SOURCES], "fourth": [SOURCES], "fifth": [SOURCES]}
    of_two, of_five = (
        compare_systems(dict(list(outputs.items())[:count]), SOURCES, ANSWERS, metrics=("exact",), num_samples=1000)
        for count in (2, 5)
    )
    first = of_five.pairings[0]
    assert (first.system, first.baseline) == ("less", "same") and len(of_five.pairings) == 10
    assert first.difference == of_two.pairings[0].difference and 0.005 < first.difference.p_value < 0.05
    assert of_two.pairings[0].is_clear and not first.is_clear


@pytest.mark.parametrize("num_systems", [2, 5, 11, 20])
def test_a_difference_can_be_clear_among_any_number_of_systems(num_systems: int) -> None:
    """The least p-value that samples can give, 1 / (samples + 1), is below what each pair is allowed."""
    num_pairs = num_systems * (num_systems - 1) // 2
    assert samples_for(num_systems) >= 1000
    assert num_pairs / (samples_for(num_systems) + 1) < SIGNIFICANCE


def test_seeds_are_added_up_segment_by_segment() -> None:
    outputs = outputs_of(SOURCES, 3)
    score = compared(3).scores["seq2seq"][0]
    assert len(set(score.values)) == 3
    assert score.mean == pytest.approx(np.mean(score.values))
    assert score.deviation == pytest.approx(np.std(score.values, ddof=1))
    seeds = [measure_all(["bleu"], texts, ANSWERS)[0] for texts in outputs["seq2seq"]]
    everything = [text for texts in outputs["seq2seq"] for text in texts]
    (whole,) = measure_all(["bleu"], everything, References(ANSWERS.answers * 3))
    assert pooled(seeds).score().value == pytest.approx(whole.score().value)
    assert pooled(seeds).score().num_segments == len(SOURCES)


def test_scores_by_length_are_those_of_the_segments_of_that_length() -> None:
    quality = compared()
    rows = [place for place, source in enumerate(SOURCES) if 6 <= len(source.split()) <= 10]
    outputs = outputs_of(SOURCES, 1)["seq2seq"][0]
    (bleu,) = measure_all(
        ["bleu"], [outputs[place] for place in rows], References(tuple(ANSWERS.answers[place] for place in rows))
    )
    found = next(row for row in quality.lengths.rows if row.label == "6-10")
    assert found.num_segments == len(rows)
    assert found.values["seq2seq"] == pytest.approx(bleu.score().value)
    low, high = found.intervals["seq2seq"]
    assert low < found.values["seq2seq"] < high


def test_examples_are_chosen_by_their_place_or_by_their_spread() -> None:
    quality = compared()
    assert [one.number for one in quality.evenly] == [6, 16, 26, 36, 46, 56]
    spreads = [one.spread for one in quality.apart]
    assert spreads == sorted(spreads, reverse=True) and len({SOURCES[one.number - 1] for one in quality.apart}) == 6
    outputs = {"one": [SOURCES], "other": [SOURCES]}
    equal = compare_systems(outputs, SOURCES, ANSWERS, metrics=("exact",), options=MetricOptions(), num_samples=100)
    assert equal.apart == () and len(equal.evenly) == 6
    assert not equal.pairings[0].is_clear and equal.pairings[0].difference.p_value == 1.0


def test_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="2 sources"):
        compare_systems({"a": [["x"]], "b": [["x"]]}, ["x", "y"], References((("x",),)), metrics=("bleu",))
    with pytest.raises(DataError, match="1 lines"):
        compare_systems({"a": [["x"]], "b": [["x"]]}, SOURCES, ANSWERS, metrics=("bleu",))
