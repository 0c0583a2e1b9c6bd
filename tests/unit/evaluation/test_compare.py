"""The bootstrap against sacrebleu's own, against counting, and against luck."""

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from malmoi.errors import ConfigError, DataError
from malmoi.evaluation.compare import compare_outputs
from malmoi.evaluation.metrics import MetricOptions, TextMetric
from malmoi.evaluation.references import References

WORDS = ["bano", "dori", "felu", "gasi", "hemo", "jipu", "kato", "luni"]


def corpus(num_lines: int, wrong: float, seed: int) -> tuple[list[str], list[str]]:
    """Right lines, and the same with a share of the words replaced."""
    generator = random.Random(seed)
    right = [[generator.choice(WORDS) for _ in range(generator.randint(4, 9))] for _ in range(num_lines)]
    spoilt = [[("xx" if generator.random() < wrong else word) for word in line] for line in right]
    return [" ".join(line) for line in right], [" ".join(line) for line in spoilt]


def test_samples_are_those_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seed, same samples: scores of the samples agree with `sacrebleu --paired-bs`."""
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    right, first = corpus(30, 0.2, 1)
    _, second = corpus(30, 0.3, 1)
    metrics = {"BLEU": BLEU(force=True), "chrF2++": CHRF(word_order=2), "TER": TER()}
    _, theirs = PairedTest([("base", second), ("new", first)], metrics, [right], test_type="bs", n_samples=200)()
    ours = compare_outputs(first, second, References.from_sets([right]), num_samples=200)
    assert [one.label for one in ours.differences] == list(metrics)
    for one in ours.differences:
        base, new = theirs[one.label]
        assert not isinstance(base, str)
        assert not isinstance(new, str)
        assert one.baseline == pytest.approx(base.score)
        assert one.system == pytest.approx(new.score)
        half_width = (one.system_interval[1] - one.system_interval[0]) / 2
        assert half_width == pytest.approx(new.ci, rel=1e-4)
        assert one.signature.endswith("|bs:200|seed:12345")


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "exact", "segment_error", "wer", "ser"])
def test_a_system_does_not_differ_from_itself(metric: TextMetric) -> None:
    right, spoilt = corpus(20, 0.3, 2)
    comparison = compare_outputs(spoilt, spoilt, References.from_sets([right]), metrics=[metric], num_samples=100)
    (one,) = comparison.differences
    assert one.difference == 0.0
    assert one.p_value == 1.0
    assert one.interval == (0.0, 0.0)
    assert one.wins == 0.0


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "exact", "segment_error", "wer", "ser"])
def test_a_clear_winner_is_told_in_the_right_direction(metric: TextMetric) -> None:
    right, spoilt = corpus(40, 0.4, 3)
    (one,) = compare_outputs(
        right, spoilt, References.from_sets([right]), metrics=[metric], num_samples=100
    ).differences
    assert one.p_value < 0.02
    assert one.wins == 1.0
    assert (one.difference > 0) == one.higher_is_better
    assert one.interval[0] <= one.difference <= one.interval[1]
    assert one.num_segments == 40


def test_error_rates_are_resampled_by_segment() -> None:
    """By counting: a sample's difference is the mean of drawn differences of single segments."""
    outputs, baseline, answers = ["a", "b", "c", "d"], ["a", "x", "x", "d"], ["a", "b", "x", "d"]
    (one,) = compare_outputs(
        outputs, baseline, References.from_sets([answers]), metrics=["segment_error"], num_samples=500, seed=7
    ).differences
    wrong, wrong_baseline = np.array([0, 0, 1, 0]), np.array([0, 1, 0, 0])
    drawn = np.random.default_rng(7).choice(4, size=(500, 4), replace=True)
    differences = 100.0 * (wrong[drawn].mean(axis=1) - wrong_baseline[drawn].mean(axis=1))
    assert one.difference == 0.0
    assert one.p_value == 1.0
    assert one.wins == pytest.approx((differences < 0).mean())
    assert one.interval == pytest.approx((np.sort(differences)[12], np.sort(differences)[-13]))


def test_memory_is_bounded_without_changing_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    right, spoilt = corpus(10, 0.4, 4)
    arguments = (right, spoilt, References.from_sets([right]))
    whole = compare_outputs(*arguments, metrics=["bleu"], num_samples=100)
    monkeypatch.setattr("malmoi.evaluation.compare.SAMPLES_AT_ONCE", 35)
    assert compare_outputs(*arguments, metrics=["bleu"], num_samples=100) == whole


def test_what_cannot_be_compared_is_refused() -> None:
    references = References.from_sets([["a", "b"]])
    with pytest.raises(DataError, match="the output has 1 lines"):
        compare_outputs(["a", "b"], ["a"], references)
    with pytest.raises(ConfigError, match="at least 100"):
        compare_outputs(["a", "b"], ["a", "b"], references, num_samples=10)


def test_the_table_and_the_json_name_both_systems() -> None:
    comparison = compare_outputs(
        ["a b"], ["a c"], References.from_sets([["a b"]]),
        metrics=["ser"], options=MetricOptions(symbols="words"), names=("new", "old"), num_samples=100,
    )  # fmt: skip
    assert comparison.lines()[0] == "new against old"
    assert "difference -50.00" in comparison.lines()[1]
    fields = comparison.to_json()
    assert fields["system"] == "new"
    assert fields["differences"][0]["metric"] == "ser"
