"""The engine says what the network says, and what a row gets depends on its own sentence and past alone.

In fp32 its numbers follow the float64 network within 1e-4; neighbours change nothing to the last bit, in int8 too.
"""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_library import native_library
from malmoi.config.decoding import DecodingConfig, Precision
from malmoi.config.model import TransformerConfig
from malmoi.decoding import batch
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.beam import is_plain
from malmoi.decoding.candidates import merge_best
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Hypothesis, Ids, Integers, Numbers, Request, Scorer
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.decoding.search import Queue, search
from malmoi.engine.choose import fastest_scorer
from malmoi.engine.scorer import EngineScorer, StepsAlone
from malmoi.errors import CheckpointError
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from reference.models import NUM_IDS, TRANSFORMERS, small_transformer

END = 1
TOLERANCE = 1e-4

CONFIGS = {
    **TRANSFORMERS,
    "sizes-that-fill-vectors": small_transformer(width=96, heads=3, feed_forward=40),
    "heads-of-64": small_transformer(width=128, heads=2, positions="rotary", decoder_layers=1),
    "learned-swiglu-bias": small_transformer(positions="learned", activation="swiglu", output_bias=True, tying="none"),
}
EACH = pytest.mark.parametrize("name", CONFIGS)
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@functools.cache
def network(name: str, dtype: torch.dtype = torch.float32) -> Seq2Seq:
    """A small model with opinions, and more ids than go into a block of the output layer."""
    model = build_model(CONFIGS[name], NUM_IDS, num_targets(name), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * (8 / model.width) ** 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def num_targets(name: str) -> int:
    config = CONFIGS[name]
    return NUM_IDS if config.tying == "all" else 301


@functools.cache
def engine(name: str, precision: Precision = "fp32") -> StepsAlone:
    scorer = fastest_scorer(network(name), precision, native_library())
    assert isinstance(scorer, StepsAlone)
    return scorer


class TablesAlone:
    """A scorer whose candidates are chosen by the search, from whole tables."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def __getattr__(self, name: str) -> Any:
        if name in ("step_best", "step_merged", "run_greedily", "most_candidates", "score_targets"):
            raise AttributeError(name)
        return getattr(self.scorer, name)


class UnmergedScorer(TablesAlone):
    """A scorer whose candidates are merged by the search."""

    def __getattr__(self, name: str) -> Any:
        if name in ("step_merged", "run_greedily"):
            raise AttributeError(name)
        return getattr(self.scorer, name)


def sentence(seed: int, length: int) -> Ids:
    return (*np.random.default_rng([seed, length]).integers(2, NUM_IDS, length).tolist(), END)


def draw_sources(lengths: list[int], seed: int = 1) -> tuple[Integers, Integers]:
    source_BS = np.random.default_rng(seed).integers(0, NUM_IDS, (len(lengths), max(lengths)))
    return source_BS, np.array(lengths)


def walk(scorer: Scorer, num_steps: int, seed: int = 5) -> list[Numbers]:
    """Log-probabilities and attention of many steps, between which rows move, go, come twice, and join."""
    generator = np.random.default_rng(seed)
    state = scorer.start(scorer.encode(*draw_sources([7, 3, 0, 1])), keep_attention=True)
    token_R = np.full(4, scorer.start_id)
    said: list[Numbers] = []
    for step in range(num_steps):
        log_probs_RV, state = scorer.step(token_R, state)
        assert state.attention_RS is not None
        said += [log_probs_RV, state.attention_RS]
        rows = state.num_rows
        rows_R = generator.integers(0, rows, rows + (3 if step < 3 else -1))
        state = state.select(rows_R)
        token_R = generator.integers(0, NUM_IDS, len(rows_R))
        if step == 3:
            state = state.append(scorer.start(scorer.encode(*draw_sources([9, 4], seed=2)), keep_attention=True))
            token_R = np.concatenate([token_R, np.full(2, scorer.start_id)])
    return said


def widen(values_RX: Numbers, size: int) -> Numbers:
    return np.pad(values_RX, ((0, 0), (0, size - values_RX.shape[1])))


def options(**given_options: object) -> DecodingConfig:
    return DecodingConfig.model_validate({"max_length": 12, "max_length_extra": 4, **given_options})


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
