"""The formula of a score, and the bound that ends a search."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.scoring import LEAST_COVERAGE, Scoring


def test_length_penalties_are_those_that_are_written_down() -> None:
    lengths = np.array([1, 7, 13])
    assert Scoring("wu", 1.0).length_penalty(lengths).tolist() == [1.0, 2.0, 3.0]
    assert Scoring("wu", 0.5).length_penalty(lengths) == pytest.approx([1.0, math.sqrt(2), math.sqrt(3)])
    assert Scoring("divide", 1.0).length_penalty(lengths).tolist() == [1.0, 7.0, 13.0]
    assert Scoring("none", 1.0).length_penalty(lengths).tolist() == [1.0, 1.0, 1.0]
    assert Scoring("divide", 1.0).score(np.array([0.0]), np.array([0])).tolist() == [0.0]


def test_settings_reach_the_formula() -> None:
    config = DecodingConfig(length_penalty="divide", length_alpha=0.3, coverage_beta=0.2)
    assert Scoring.from_config(config) == Scoring("divide", 0.3, 0.2)


def test_coverage_counts_real_places_and_stays_finite() -> None:
    """pytorch/serve#1304: a source place that was never looked at must not make a score infinite."""
    seen = np.array([[0.5, 2.0, 0.0, 7.0], [0.25, 0.25, 0.25, 0.25]])
    terms = Scoring("none", 0.0, 2.0).coverage(seen, np.array([3, 2]))
    assert terms == pytest.approx([2 * (math.log(0.5) + math.log(LEAST_COVERAGE)), 4 * math.log(0.25)])
    assert np.isfinite(terms).all()


@settings(deadline=None)
@given(
    st.sampled_from(["wu", "divide", "none"]),
    st.floats(0, 3),
    st.floats(-30, 0),
    st.integers(0, 20),
    st.lists(st.floats(-5, 0), min_size=1, max_size=10),
)
def test_no_continuation_is_above_the_bound(
    kind: str, alpha: float, total: float, num_tokens: int, more: list[float]
) -> None:
    scoring = Scoring(kind, alpha)  # type: ignore[arg-type]
    bound = scoring.bound(np.array([total]), np.array([num_tokens]), np.array([num_tokens + 10]))[0]
    final = total
    for log_prob in more:
        final += log_prob
    assert scoring.score(np.array([final]), np.array([num_tokens + len(more)]))[0] <= bound
    # And it is reached, so that it is no looser than it must be.
    assert bound == scoring.score(np.array([total]), np.array([num_tokens + 10]))[0]
