"""Forced scoring of given outputs."""

import math

import numpy as np
import pytest

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import IMPOSSIBLE
from malmoi.errors import CheckpointError, ConfigError, DataError
from reference.exhaustive import END, Formula, TableScorer, random_attention, random_table

SOURCES = [(2, 3, END), (4, END), (5, 5, 5, END), (2, END)]
TARGETS = [(3, 2, END), (), (4, 4, 4, 4, END), (5,)]


@pytest.mark.parametrize("budget", [1, 12, 4096])
def test_scores_follow_the_formula_whatever_the_batch(budget: int) -> None:
    """awslabs/sockeye#483 and huggingface/transformers#16413: one formula, finished or not."""
    table, attention = random_table(1, 6), random_attention(1)
    scorer = TableScorer(table, 6, attention)
    config = DecodingConfig(length_penalty="wu", length_alpha=0.8, coverage_beta=0.3, batch_tokens=budget)
    found = force(scorer, SOURCES, TARGETS, config, keep_attention=True)
    for source, target, one in zip(SOURCES, TARGETS, found, strict=True):
        log_probs = [float(table(source, target[:place])[token]) for place, token in enumerate(target)]
        looks = [attention(source, target[:place]) for place in range(len(target))]
        assert one.ids == target
        assert one.finished == (target[-1:] == (END,))
        assert one.log_probs == pytest.approx(log_probs, abs=1e-12)
        score = Formula("wu", 0.8, 0.3).score(log_probs, looks or [np.zeros(len(source))])
        assert one.score == pytest.approx(score, abs=1e-9)
        assert one.attention is not None
        assert one.attention.shape == (len(target), len(source))
        if looks:
            assert np.allclose(one.attention, np.stack(looks), atol=1e-6)


def test_a_token_of_probability_zero_counts_a_finite_number() -> None:
    """pytorch/serve#1304 and sgl-project/sglang#4097: a score of minus infinity is not valid JSON."""
    never = np.array([-math.inf, -math.log(2), -math.inf, -math.log(2)])
    scorer = TableScorer(lambda source, prefix: never, 4)
    one = force(scorer, [(2, END)], [(2, 3, END)], DecodingConfig(length_penalty="none"))[0]
    assert one.log_probs[0] == IMPOSSIBLE
    assert one.score == pytest.approx(IMPOSSIBLE - 2 * math.log(2))


def test_targets_that_no_search_could_give_are_refused() -> None:
    scorer = TableScorer(random_table(1, 6), 6, max_steps=3)
    for target, message in [((3, 6), "6 is not an id"), ((END, 3), "end symbol"), ((3,) * 4, "4 tokens.*3 at most")]:
        with pytest.raises(DataError, match=f"target 2: .*{message}"):
            force(scorer, [(2, END)] * 2, [(3, END), target])
    with pytest.raises(DataError, match=r"2 sources .* 1 targets"):
        force(scorer, [(2, END)] * 2, [(3, END)])


def test_attention_that_is_not_there_is_refused_by_name() -> None:
    scorer = TableScorer(random_table(1, 6), 6)
    with pytest.raises(ConfigError, match="no attention"):
        force(scorer, [(2, END)], [(3, END)], DecodingConfig(coverage_beta=0.1))


def test_a_damaged_model_is_named() -> None:
    scorer = TableScorer(lambda source, prefix: np.full(6, math.nan), 6)
    with pytest.raises(CheckpointError, match="NaN"):
        force(scorer, [(2, END)], [(3, END)])


def test_nothing_asked_nothing_answered() -> None:
    assert force(TableScorer(random_table(1, 6), 6), [], []) == []
