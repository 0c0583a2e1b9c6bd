"""The engine says what the network says, and what a row gets depends on its own sentence and past alone.

In fp32 its numbers follow the float64 network within 1e-4; neighbours change nothing to the last bit, in int8 too.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import (
    EACH,
    END,
    PRECISIONS,
    TOLERANCE,
    TablesAlone,
    draw_sources,
    engine,
    network,
    options,
    sentence,
    walk,
    widen,
)
from malmoi.config.decoding import Precision
from malmoi.decoding import batch
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.beam import is_plain
from malmoi.decoding.candidates import merge_best
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Request
from malmoi.decoding.scorer import ModelScorer
from malmoi.decoding.search import search
from malmoi.engine.scorer import EngineScorer, StepsAlone


@EACH
def test_each_step_equals_that_of_the_network_in_float64(name: str) -> None:
    mine, theirs = walk(engine(name), 9), walk(ModelScorer(network(name, torch.float64)), 9)
    for one, other in zip(mine, theirs, strict=True):
        size = max(one.shape[1], other.shape[1])
        np.testing.assert_allclose(widen(one, size), widen(other, size), rtol=0, atol=TOLERANCE)


@EACH
def test_int8_stays_near(name: str) -> None:
    """Where each row has a scale of its own and no sum overflows, errors are those of rounding to 7 and 8 bits."""
    exact, rounded = walk(engine(name), 4), walk(engine(name, "int8"), 4)
    for one, other in zip(exact[::2], rounded[::2], strict=True):
        assert np.abs(one - other).mean() < 0.1 * one.std()
        assert not np.array_equal(one, other)


@EACH
def test_steps_equal_whole_targets(name: str) -> None:
    scorer = engine(name)
    assert isinstance(scorer, EngineScorer)
    sources = [sentence(3, 5), sentence(4, 0), sentence(5, 8)]
    targets = [sentence(6, 7), sentence(7, 2), sentence(8, 0)]
    whole, stepped = force(scorer, sources, targets), force(TablesAlone(scorer), sources, targets)
    for one, other in zip(whole, stepped, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=TOLERANCE)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_candidates_are_the_best_of_the_table(precision: Precision) -> None:
    scorer = engine("transformer-uneven", precision)
    state = scorer.start(scorer.encode(*draw_sources([4, 6, 2])))
    token_R, forbidden = np.full(3, scorer.start_id), np.array([0, 7, 300])
    no_end_R = np.array([True, False, False])
    best, after = scorer.step_best(token_R, state, 20, forbidden, no_end_R)
    log_probs_RV, _ = scorer.step(token_R, state)
    assert after.num_rows == 3
    ends = log_probs_RV[:, END].copy()
    assert best.end_log_probs_R[0] == -np.inf
    assert best.end_log_probs_R[1:] == pytest.approx(ends[1:], abs=1e-6)
    log_probs_RV[:, forbidden] = -np.inf
    log_probs_RV[0, END] = -np.inf
    ids_RC = np.sort(log_probs_RV.argsort(axis=1)[:, -20:], axis=1)
    assert best.ids_RC.tolist() == ids_RC.tolist()
    assert best.log_probs_RC == pytest.approx(np.take_along_axis(log_probs_RV, ids_RC, 1), abs=1e-6)


@pytest.mark.parametrize("width", [1, 3, 5])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.booleans())
def test_merged_candidates_are_those_that_the_search_merges(
    width: int, seed: int, num_sentences: int, may_end: bool
) -> None:
    """Also where sums are equal, and where rows hold no hypothesis."""
    scorer, generator = engine("transformer-uneven", "int8"), np.random.default_rng(seed)
    totals_BK = -generator.integers(0, 3, (num_sentences, width)).astype(np.float64)
    totals_BK[generator.random(totals_BK.shape) < 0.3] = -np.inf
    totals_BK[0, 0] = 0.0
    alive = np.flatnonzero(totals_BK > -np.inf)
    memory = scorer.encode(*draw_sources(generator.integers(1, 6, num_sentences).tolist(), seed))
    # Rows that have said the same are equal in all.
    state = scorer.start(memory).select(alive // width)
    token_A = np.full(len(alive), scorer.start_id)
    maybe_alive = None if len(alive) == totals_BK.size else alive
    asked = (token_A, state, 2 * width, np.array([0]), None if may_end else np.ones(len(alive), dtype=np.bool_))
    merged, after = scorer.step_merged(*asked, totals_BK, maybe_alive)
    mine = merged.candidates
    assert merged.plain == ()
    assert after.num_rows == len(alive)
    theirs = merge_best(scorer.step_best(*asked)[0], maybe_alive, totals_BK, 2 * width)
    assert mine.totals_BC.tolist() == theirs.totals_BC.tolist()
    real = mine.totals_BC > -np.inf
    for one, other in (
        (mine.log_probs_BC, theirs.log_probs_BC),
        (mine.rows_BC, theirs.rows_BC),
        (mine.ids_BC, theirs.ids_BC),
    ):
        assert one[real].tolist() == other[real].tolist()
    assert mine.maybe_plain == is_plain(theirs, width, END)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["learned-swiglu-bias", "transformer-uneven", "transformer-rotary-post"])
def test_steps_at_once_are_those_one_by_one(name: str, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, up to the limits of length and of positions, with sentences that come in between."""
    scorer, plain_steps = engine(name, precision), list[int]()
    given = scorer.step_merged

    def count(*args: Any) -> Any:
        found = given(*args)
        plain_steps.append(len(found[0].plain))
        return found

    run = scorer.run_greedily

    def count_run(*args: Any) -> Any:
        found = run(*args)
        plain_steps.append(len(found[0].ids_TR))
        return found

    monkeypatch.setattr(scorer, "step_merged", count)
    monkeypatch.setattr(scorer, "run_greedily", count_run)
    requests = [Request(sentence(seed, seed % 7)) for seed in range(9)]
    for settings_ in ({"beam_size": 1}, {"beam_size": 4, "n_best": 2}, {"beam_size": 3, "batch_tokens": 60}):
        for most in (5, 16):
            config = options(**settings_, max_length=most, max_length_extra=most)
            monkeypatch.setattr(batch, "STEPS_AT_ONCE", 1)
            expected = search(scorer, requests, config, (0,))
            assert not any(plain_steps)
            monkeypatch.setattr(batch, "STEPS_AT_ONCE", 8)
            assert search(scorer, requests, config, (0,)) == expected
            assert [search(scorer, [one], config, (0,))[0] for one in requests] == expected
            assert max(plain_steps) > 1
            plain_steps.clear()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("name", "end"), [("transformer-gelu", 222), ("transformer-uneven", 163), ("transformer-sinusoidal-pre", 6)]
)
def test_greedy_runs_of_many_rows_are_single_steps(
    name: str, end: int, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: more rows than a block holds, ends at any step, ids that may not come, and late arrivals.

    What ends an output is an id that these random models say early and late.
    """
    scorer = StepsAlone(engine(name, precision).engine, end)
    requests = [Request(sentence(seed, seed % 11)) for seed in range(130)]
    for budget in (10**6, 400):
        config = options(beam_size=1, batch_tokens=budget, max_length=30, max_length_extra=20)
        monkeypatch.setattr(batch, "STEPS_AT_ONCE", 1)
        expected = search(scorer, requests, config, (0, 7, 9))
        assert len({len(one[0].ids) for one in expected if one[0].finished}) > 5
        for steps in (3, 8):
            monkeypatch.setattr(batch, "STEPS_AT_ONCE", steps)
            assert search(scorer, requests, config, (0, 7, 9)) == expected


def test_a_batch_that_others_wait_for_looks_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many rows, whose steps take long, a service lets sentences in at every step."""
    scorer, asked = engine("transformer-gelu"), list[int]()
    given = scorer.run_greedily

    def count(*args: Any) -> Any:
        asked.append(args[-1])
        return given(*args)

    monkeypatch.setattr(scorer, "run_greedily", count)
    requests = list(enumerate(Request(sentence(seed, 5)) for seed in range(batch.FEW_ROWS + 1)))
    for is_patient in (False, True):
        one = SearchBatch(scorer, options(beam_size=1), (0,), is_patient=is_patient)
        one.add(requests)
        one.step()
        assert bool(asked) == is_patient


def test_a_row_that_nothing_may_follow_is_cut() -> None:
    """Where every token is forbidden, greedy runs say no more than single steps do."""
    scorer = engine("transformer-gelu")
    everything = tuple(range(scorer.vocabulary_size))
    requests = [Request(sentence(seed, 3)) for seed in range(3)]
    answers = search(scorer, requests, options(beam_size=1), everything)
    assert answers == search(TablesAlone(scorer), requests, options(beam_size=1), everything)
    assert [(one.ids, one.finished) for (one,) in answers] == [((), False)] * 3


def test_more_candidates_than_tokens_are_empty_places() -> None:
    scorer = engine("transformer-gelu")
    state = scorer.start(scorer.encode(*draw_sources([4])))
    forbidden = np.arange(2, scorer.vocabulary_size)
    best, _ = scorer.step_best(np.array([scorer.start_id]), state, 12, forbidden, None)
    assert best.ids_RC[0, :2].tolist() == [0, 1]
    assert (best.log_probs_RC[0, 2:] == -np.inf).all()
    assert np.isfinite(best.log_probs_RC[0, :2]).all()
