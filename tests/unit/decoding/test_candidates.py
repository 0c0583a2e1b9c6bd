"""The best continuations, without sorting everything."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.decoding import topk
from malmoi.decoding.candidates import BLOCK, SMALL, best_candidates, merge_best, stable_topk
from malmoi.decoding.interface import Best
from malmoi.errors import CheckpointError


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, -1.0, -2.5, -math.inf]), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_equal_values_go_to_the_lower_place(rows: list[list[float]], count: int) -> None:
    values, places = stable_topk(np.array(rows), count)
    for row, top, where in zip(rows, values.tolist(), places.tolist(), strict=True):
        expected = sorted(range(7), key=lambda place: (-row[place], place))[:count]
        assert top == [row[place] for place in expected]
        alive = [place for place in expected if row[place] > -math.inf]
        assert where[: len(alive)] == alive


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([5, 60, BLOCK, 2 * BLOCK + 1, 1000, SMALL + 3]),
    st.integers(1, 12),
    st.booleans(),
)
def test_candidates_are_those_of_a_full_sort(
    seed: int, num_sentences: int, width: int, size: int, count: int, coarse: bool
) -> None:
    """Also where many values are equal, rows are dead and tokens forbidden, on both sides of the size of blocks."""
    generator = np.random.default_rng(seed)
    log_probs = generator.normal(size=(num_sentences * width, size)).astype(np.float32)
    if coarse:
        log_probs = log_probs.round()
    log_probs[generator.random(log_probs.shape) < 0.2] = -np.inf
    # The last block is shorter than others, and must not count its last token twice.
    log_probs[0, -1] = 4.0
    totals = generator.normal(size=(num_sentences, width)).round()
    totals[generator.random(totals.shape) < 0.2] = -np.inf
    found = best_candidates(log_probs, totals, count)
    # The same from what a scorer chose in each row that is alive.
    alive = np.flatnonzero(totals > -np.inf)
    values, ids = topk.best_of_rows(torch.from_numpy(log_probs[alive]), count)
    assert (np.diff(ids.numpy()) > 0).all()
    best = Best(values.double().numpy(), ids.numpy(), np.zeros(len(alive)))
    merged = merge_best(best, None if len(alive) == totals.size else alive, totals, count) if len(alive) else found
    for sentence in range(num_sentences):
        pairs = [(row, token) for row in range(width) for token in range(size)]
        sums = {
            (row, token): totals[sentence, row].item() + log_probs[sentence * width + row, token].item()
            for row, token in pairs
        }
        expected = sorted(pairs, key=lambda pair: (-sums[pair], pair))[:count]
        expected = [pair for pair in expected if sums[pair] > -math.inf]
        alive = found.totals_BC[sentence] > -math.inf
        pairs_found = list(zip(found.rows_BC[sentence].tolist(), found.ids_BC[sentence].tolist(), strict=True))
        assert pairs_found[: alive.sum()] == expected
        assert alive.sum() == len(expected)
        assert found.totals_BC[sentence][alive].tolist() == [sums[pair] for pair in expected]
        for mine, theirs in zip(merged[:4], found[:4], strict=True):
            assert mine[sentence][: alive.sum()].tolist() == theirs[sentence][: alive.sum()].tolist()
        for (row, token), log_prob in zip(expected, found.log_probs_BC[sentence].tolist(), strict=False):
            assert log_prob == log_probs[sentence * width + row, token].item()


@pytest.mark.parametrize("size", [10, SMALL + 1])
def test_what_is_not_a_number_is_refused(size: int) -> None:
    """pytorch/serve#1304 and sgl-project/sglang#4097: scores that are not numbers go no further."""
    log_probs = np.zeros((2, size))
    log_probs[1, 7] = math.nan
    with pytest.raises(CheckpointError, match="not numbers"):
        best_candidates(log_probs, np.zeros((1, 2)), 3)
