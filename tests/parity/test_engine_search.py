"""Searches on the engine: what the network finds, whatever the neighbours, the workers and the faults."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_library import native_library
from engines import (
    CONFIGS,
    END,
    PRECISIONS,
    TOLERANCE,
    TablesAlone,
    UnmergedScorer,
    draw_sources,
    engine,
    network,
    num_targets,
    options,
    sentence,
)
from malmoi.config.decoding import Precision
from malmoi.config.model import TransformerConfig
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.decoding.search import Queue, search
from malmoi.engine.choose import fastest_scorer
from malmoi.engine.scorer import StepsAlone
from malmoi.errors import CheckpointError
from malmoi.models.build import build_model
from reference.models import NUM_IDS, small_transformer


@pytest.mark.parametrize(
    "given_options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 4},
        {"beam_size": 3, "min_length": 4, "max_length": 5},
        {"beam_size": 9, "n_best": 9, "max_length": 3},
        {"beam_size": 3, "coverage_beta": 0.2},
        {"beam_size": 4, "diverse_groups": 2},
        {"beam_size": 3, "no_repeat_ngram": 1},
        {"beam_size": 40, "n_best": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["transformer-sinusoidal-post", "transformer-uneven", "transformer-gelu"])
def test_search_finds_the_same_from_candidates_and_from_tables(name: str, given_options: dict[str, object]) -> None:
    config = options(**given_options)
    requests = [Request(sentence(seed, seed % 9), (3,) if seed == 2 else ()) for seed in range(6)]
    requests.append(Request(sentence(9, 3), constraints=((5,),)) if config.diverse_groups == 1 else requests[0])
    mine = search(engine(name), requests, config, (0,))
    assert search(UnmergedScorer(engine(name)), requests, config, (0,)) == mine
    theirs = search(TablesAlone(engine(name)), requests, config, (0,))
    exact = ModelScorer(network(name, torch.float64))
    network_says, its_tables_say = (search(one, requests, config, (0,)) for one in (exact, TablesAlone(exact)))
    for other in (theirs, network_says, its_tables_say):
        for of_mine, of_other in zip(mine, other, strict=True):
            assert [one.ids for one in of_mine] == [one.ids for one in of_other]
            for one, two in zip(of_mine, of_other, strict=True):
                assert one.score == pytest.approx(two.score, abs=TOLERANCE)
                assert one.finished == two.finished


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["transformer-sinusoidal-post", "transformer-relative-pre", "heads-of-64"])
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.builds(sentence, st.integers(0, 99), st.integers(0, 70)), min_size=2, max_size=9),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 300),
    st.randoms(use_true_random=False),
)
def test_neighbours_change_nothing_to_the_last_bit(
    precision: Precision, name: str, sources: list[Ids], beam: int, budget: int, random: Any
) -> None:
    """Sentences of any lengths, in any order, that join a running search whenever there is room."""
    config = options(beam_size=beam, n_best=beam, batch_tokens=budget)
    requests = [Request(source) for source in sources]
    order = list(range(len(requests)))
    random.shuffle(order)
    scorer = engine(name, precision)
    together = search(scorer, [requests[number] for number in order], config, (0,))
    for number, answer in zip(order, together, strict=True):
        assert answer == search(scorer, [requests[number]], config, (0,))[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_state_stays_what_it_was(precision: Precision) -> None:
    """Slots of states that are gone are used again, those of a state that is kept never."""
    scorer = engine("heads-of-64", precision)
    state = scorer.start(scorer.encode(*draw_sources([5, 2])))
    for _ in range(3):
        _, state = scorer.step(np.array([3, 4]), state)
    expected = scorer.step(np.array([5, 6]), state)[0]
    other = scorer.start(scorer.encode(*draw_sources([5] * 40)))
    sizes: list[int] = []
    for step in range(600):
        _, after = scorer.step(np.full(40, 4), other)
        other = after if step % 20 else other.select(np.arange(40))
        sizes.append(scorer.pool.num_slots)
    assert np.array_equal(scorer.step(np.array([5, 6]), state)[0], expected)
    # 40 rows of at most 600 tokens, and room to spare, but not what 600 states would hold.
    assert sizes[-1] < 3 * 40 * 600


def test_the_reported_score_is_the_forced_one() -> None:
    for precision in PRECISIONS:
        scorer = engine("transformer-rotary-post", precision)
        requests = [Request(sentence(seed, 6)) for seed in range(4)]
        found = [answer[0] for answer in search(scorer, requests, options(beam_size=3), (0,))]
        forced = force(scorer, [one.source for one in requests], [one.ids for one in found])
        assert [one.score for one in forced] == pytest.approx([one.score for one in found], abs=TOLERANCE)


def test_engines_make_an_ensemble() -> None:
    names = ("transformer-rotary-post", "transformer-none-pre")
    requests = [Request(sentence(seed, 6)) for seed in range(3)]
    mine = search(EnsembleScorer([engine(name) for name in names]), requests, options(beam_size=3))
    theirs = search(
        EnsembleScorer([ModelScorer(network(name, torch.float64)) for name in names]), requests, options(beam_size=3)
    )
    assert [best_ids(one) for one in mine] == [best_ids(one) for one in theirs]


def best_ids(answer: list[Hypothesis]) -> Ids:
    return answer[0].ids


def test_the_largest_sums_do_not_overflow() -> None:
    """Half of the outputs add all inputs up, half take them away: where a sum of 16 bits overflowed, one would see."""
    config = small_transformer(width=64, heads=2, tying="none", encoder_layers=1, decoder_layers=1)
    model = build_model(config, NUM_IDS, 20, seed=3).eval()
    with torch.no_grad():
        assert model.output.weight is not None
        model.output.weight[::2], model.output.weight[1::2] = 1.0, -1.0
        model.decoder.layers[0].feed_forward_residual.norm.weight.zero_()  # pyright: ignore[reportAttributeAccessIssue]
        model.decoder.layers[0].feed_forward_residual.norm.bias.fill_(1.0)  # pyright: ignore[reportAttributeAccessIssue]
    scorer = fastest_scorer(model, "int8", native_library())
    log_probs_RV, _ = scorer.step(np.array([20]), scorer.start(scorer.encode(*draw_sources([3]))))
    # 64 inputs of 1 with weights of 1 and of -1.
    assert float(log_probs_RV[0, 0] - log_probs_RV[0, 1]) == pytest.approx(128.0, rel=0.01)


def test_what_is_not_in_the_vocabulary_is_refused() -> None:
    scorer = engine("transformer-rotary-post")
    with pytest.raises(IndexError):
        scorer.encode(np.array([[NUM_IDS + 1]]), np.array([1]))
    state = scorer.start(scorer.encode(np.array([[3]]), np.array([1])))
    for token in (-1, NUM_IDS + 1):
        with pytest.raises(IndexError):
            scorer.step(np.array([token]), state)
    with pytest.raises(IndexError, match="a row"):
        scorer.step(np.array([3]), state.select(np.array([1])))
    with pytest.raises(ValueError, match="2 tokens for 1 rows"):
        scorer.step(np.array([3, 3]), state)


def test_a_damaged_model_is_told() -> None:
    model = build_model(TransformerConfig(width=8, heads=2, feed_forward=8), NUM_IDS, NUM_IDS, seed=3).eval()
    with torch.no_grad():
        model.target_embedding.weight.fill_(float("nan"))
    scorer = fastest_scorer(model, library=native_library())
    with pytest.raises(CheckpointError, match="weights are damaged"):
        search(scorer, [Request((3, END))], options())


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_find_what_one_finds(workers: int) -> None:
    scorer = engine("transformer-rotary-post", "int8")
    requests = [Request(sentence(seed, seed % 12)) for seed in range(20)]
    config = options(beam_size=3, batch_tokens=100)
    expected = search(scorer, requests, config, (0,), places=range(5, 25))
    assert search(scorer, requests, config, (0,), places=range(5, 25), workers=workers) == expected


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_fault_of_one_worker_is_told(precision: Precision, beam: int) -> None:
    """Where a number of one sentence grows beyond all bounds, no network in fp32 would translate it."""
    model = build_model(CONFIGS["transformer-gelu"], NUM_IDS, num_targets("transformer-gelu"), seed=3).eval()
    with torch.no_grad():
        # Id 5 stands in one source alone.
        model.source_embedding.weight[5] = 3e38
    scorer = fastest_scorer(model, precision, native_library())
    assert isinstance(scorer, StepsAlone)
    requests = [Request((3, END)), Request((5, END)), *[Request((4, 3, END))] * 6]
    with pytest.raises(CheckpointError, match="weights are damaged"):
        search(scorer, requests, options(beam_size=beam), workers=3)


def test_tiny_weights_are_packed() -> None:
    """The least numbers that there are grow by no share of themselves."""
    model = build_model(small_transformer(encoder_layers=1, decoder_layers=1), NUM_IDS, NUM_IDS, seed=3).eval()
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.inner.weight.fill_(48 * 2.0**-149)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue, reportUnknownMemberType]
    scorer = fastest_scorer(model, "int8", native_library())
    assert np.isfinite(search(scorer, [Request((3, END))], options())[0][0].score)


def test_after_a_fault_the_other_workers_stop() -> None:
    """They do not search through all that waits before the fault is told."""
    scorer = engine("transformer-rotary-post")
    queue = Queue([Request((NUM_IDS + 7, END)), Request((3, END))], range(2), 2)
    with pytest.raises(IndexError):
        queue.work(SearchBatch(scorer, options(), ()))
    assert queue.is_closed.is_set()
