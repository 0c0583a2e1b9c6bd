"""Search on real networks: what comes out depends on the sentence alone, and its score can be found again.

In float64 texts are equal and scores agree within 1e-9; in float32 scores agree within 1e-4.
"""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.decoding.search import search
from malmoi.decoding.targets import WholeTargets
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from reference.exhaustive import END, Formula, Output, TableScorer, exhaustive, greedy
from reference.models import MODELS, NUM_IDS, small_rnn, small_transformer

NAMES = (
    "transformer-sinusoidal-post",
    "transformer-relative-pre",
    "transformer-rotary-post",
    "rnn-additive-gru",
    "rnn-none-lstm",
)


@functools.cache
def network(name: str, dtype: torch.dtype = torch.float64) -> Seq2Seq:
    """A small model with opinions: what it says hangs on source and prefix, and it likes to end now and then."""
    model = build_model(MODELS[name], NUM_IDS, NUM_IDS, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def scorer(name: str, dtype: torch.dtype = torch.float64) -> ModelScorer:
    return ModelScorer(network(name, dtype))


def sentence(seed: int, length: int) -> Ids:
    return (*np.random.default_rng([seed, length]).integers(2, NUM_IDS, length).tolist(), END)


def decoding(**options: object) -> DecodingConfig:
    return DecodingConfig.model_validate({"max_length": 12, "max_length_extra": 4, **options})


def assert_same(mine: list[Hypothesis], theirs: list[Hypothesis], tolerance: float = 1e-9) -> None:
    assert [(one.ids, one.finished, one.num_missing) for one in mine] == [
        (one.ids, one.finished, one.num_missing) for one in theirs
    ]
    for one, other in zip(mine, theirs, strict=True):
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert one.log_probs == pytest.approx(other.log_probs, abs=tolerance)
        if one.attention is not None and other.attention is not None:
            assert np.allclose(one.attention, other.attention, atol=1e-5)


requests_of_any_kind = st.lists(
    st.builds(
        Request,
        st.builds(sentence, st.integers(0, 99), st.integers(0, 9)),
        st.lists(st.integers(2, NUM_IDS - 1), max_size=2).map(tuple),
        st.lists(st.lists(st.integers(2, NUM_IDS - 1), min_size=1, max_size=2).map(tuple), max_size=1).map(tuple),
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=12, deadline=None)
@given(
    requests_of_any_kind,
    st.sampled_from(NAMES),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 400),
    st.sampled_from([0, 2]),
)
def test_an_output_never_depends_on_its_neighbours(
    requests: list[Request], name: str, width: int, budget: int, ngram: int
) -> None:
    """OpenNMT/OpenNMT-py#2208, facebookresearch/fairseq#3078, OpenNMT/OpenNMT-py#137 and #994, joeynmt/joeynmt#50."""
    config = decoding(beam_size=width, n_best=width, no_repeat_ngram=ngram, min_length_ratio=0.3, batch_tokens=budget)
    together = search(scorer(name), requests, config, (0,))
    backwards = search(scorer(name), requests[::-1], config.model_copy(update={"batch_tokens": 4096}), (0,))[::-1]
    for request, mine, theirs in zip(requests, together, backwards, strict=True):
        alone = search(scorer(name), [request], config, (0,))[0]
        assert_same(mine, alone)
        assert_same(theirs, alone)


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("name", ["transformer-sinusoidal-post", "rnn-dot-gru"])
def test_batches_of_any_size_and_a_stranger_among_them(name: str, width: int) -> None:
    """OpenNMT/OpenNMT-py#2208, facebookresearch/fairseq#3078 and freewym/espresso#52: float32, a long stranger too."""
    requests = [Request(sentence(seed, 1 + seed % 9)) for seed in range(20)]
    stranger = Request(sentence(7, 100))
    model = scorer(name, torch.float32)
    config = decoding(beam_size=width, n_best=width, coverage_beta=0.2)
    alone = [search(model, [request], config)[0] for request in requests]
    for budget, others in [(60 * width, []), (10_000, []), (10_000, [stranger])]:
        together = search(model, [*requests, *others], config.model_copy(update={"batch_tokens": budget}))
        for mine, theirs in zip(together, alone, strict=False):
            assert_same(mine, theirs, 1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", NAMES)
def test_the_reported_score_is_the_forced_one_and_follows_the_formula(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    """awslabs/sockeye#483 and #487, huggingface/transformers#8722, #16413 and #27808: one length for all outputs."""
    model = scorer(name, dtype)
    has_attention = "none" not in name
    finished: set[bool] = set()
    # Few rows, and no room after the prefix, leave outputs that cannot end.
    for penalty, prefix, width, most in [("wu", (), 6, 5), ("divide", (3, 5), 6, 5), ("none", (7,), 2, 1)]:
        config = decoding(
            beam_size=width,
            n_best=width,
            max_length=most,
            length_penalty=penalty,
            length_alpha=0.7,
            coverage_beta=0.3 if has_attention else 0.0,
        )
        requests = [Request(sentence(seed, 1 + seed), prefix) for seed in range(4)]
        found = search(model, requests, config, keep_attention=has_attention)
        pairs = [(request.source, one) for request, answer in zip(requests, found, strict=True) for one in answer]
        sources = [source for source, _ in pairs]
        forced = force(model, sources, [one.ids for _, one in pairs], config, keep_attention=has_attention)
        formula = Formula(penalty, 0.7, 0.3)
        for (_, one), again in zip(pairs, forced, strict=True):
            assert_same([one], [again], tolerance)
            looks = None if one.attention is None else list(one.attention.astype(np.float64))
            assert one.score == pytest.approx(formula.score(list(one.log_probs), looks), abs=1e-5)
            assert one.ids[: len(prefix)] == prefix
            finished.add(one.finished)
    assert finished == {True, False}


class StepsAlone:
    """A scorer that hides from whoever asks that it can take whole targets at once."""

    def __init__(self, scorer: ModelScorer | EnsembleScorer) -> None:
        self.scorer = scorer
        self.encode, self.start, self.step = scorer.encode, scorer.start, scorer.step
        self.vocabulary_size, self.start_id, self.end_id = scorer.vocabulary_size, scorer.start_id, scorer.end_id
        self.source_padding_id, self.max_steps = scorer.source_padding_id, scorer.max_steps


TARGETS = [(), (END,), (4,), (2, 3, END), (9, 8, 7, 6, 5, 4, 3, 2, 10, END), (3, 3, 3, 3, 3), (0, 2, END)]
SOURCES = [sentence(seed, length) for seed, length in enumerate((3, 0, 9, 1, 5, 12, 2))]


@pytest.mark.parametrize("budget", [1, 40, 4096])
@pytest.mark.parametrize("name", [*MODELS, "ensemble", "mixed ensemble"])
def test_whole_targets_score_as_their_steps(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teacher forcing in one pass equals the slow way, in batches of any size and with few places at a time."""
    one, other = scorer("transformer-sinusoidal-post"), scorer("rnn-additive-gru")
    match name:
        case "ensemble":
            model = EnsembleScorer([one, other])
        case "mixed ensemble":
            model = EnsembleScorer([one, StepsAlone(other)])
        case _:
            model = scorer(name)
    slow = force(StepsAlone(model), SOURCES, TARGETS, decoding(batch_tokens=budget))
    assert isinstance(model, WholeTargets) and not isinstance(StepsAlone(model), WholeTargets)
    with monkeypatch.context() as patch:
        for at_once in (1, 3 * NUM_IDS, 10**6):
            patch.setattr("malmoi.decoding.scorer.LOGITS_AT_ONCE", at_once)
            for mine, theirs in zip(force(model, SOURCES, TARGETS, decoding(batch_tokens=budget)), slow, strict=True):
                assert_same([mine], [theirs])
    assert [len(one.log_probs) for one in slow] == [len(target) for target in TARGETS]


def test_the_vocabulary_is_never_there_for_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    model = scorer("transformer-sinusoidal-post")
    rows: list[int] = []
    log_probs = model.log_probs
    monkeypatch.setattr(model, "log_probs", lambda hidden_RD: rows.append(len(hidden_RD)) or log_probs(hidden_RD))
    monkeypatch.setattr("malmoi.decoding.scorer.LOGITS_AT_ONCE", 4 * NUM_IDS)
    force(model, SOURCES, TARGETS, decoding())
    assert max(rows) == 4
    # Padded places are not asked for.
    assert sum(rows) == sum(len(target) for target in TARGETS)


def as_table(model: Seq2Seq, size: int) -> TableScorer:
    """What a network says, by `forward` on one sentence at a time: neither steps nor batches."""

    @functools.cache
    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        with torch.inference_mode():
            target_BT = torch.tensor([(model.start_id, *prefix)])
            hidden_BTD = model(torch.tensor([source]), torch.tensor([len(source)]), target_BT)
            logits_V = torch.nn.functional.linear(hidden_BTD[0, -1], model.output_weight_VD, model.output_bias_V)
            return logits_V.log_softmax(0).numpy()

    return TableScorer(table, size)


@pytest.mark.parametrize("name", NAMES)
def test_a_beam_of_one_is_greedy_search(name: str) -> None:
    sources = [sentence(seed, seed) for seed in range(8)]
    config = DecodingConfig(beam_size=1, max_length=6)
    found = search(scorer(name), [Request(source) for source in sources], config)
    table = as_table(network(name), NUM_IDS)
    assert [answer[0].ids for answer in found] == [greedy(table, source, 6) for source in sources]


@pytest.mark.parametrize("architecture", ["transformer", "rnn"])
@pytest.mark.parametrize(("penalty", "alpha"), [("none", 0.0), ("wu", 1.0), ("divide", 0.6)])
def test_a_wide_beam_is_exhaustive_search(architecture: str, penalty: str, alpha: float) -> None:
    """neulab/xnmt#572, awslabs/sockeye#233 and OpenNMT/OpenNMT-py#2189: the whole n-best list, by the stated score."""
    config = small_transformer() if architecture == "transformer" else small_rnn()
    model = build_model(config, 5, 5, seed=2).double().eval()
    with torch.no_grad():
        model.target_embedding.weight *= 2.0
    sources = [(2, 3, END), (4, END)]
    wide = decoding(beam_size=64, n_best=64, max_length=3, length_penalty=penalty, length_alpha=alpha)
    found = search(ModelScorer(model), [Request(source) for source in sources], wide)
    for source, answer in zip(sources, found, strict=True):
        right: list[Output] = exhaustive(as_table(model, 5), source, 3, Formula(penalty, alpha))[:64]
        assert [(one.ids, one.finished) for one in answer] == [(one.ids, one.finished) for one in right]
        assert [one.score for one in answer] == pytest.approx([one.score for one in right], abs=1e-9)


def test_an_ensemble_obeys_the_same_laws() -> None:
    ensemble = EnsembleScorer([scorer(name) for name in ("transformer-sinusoidal-post", "rnn-additive-gru")])
    requests = [Request(sentence(seed, 1 + seed)) for seed in range(5)]
    config = decoding(beam_size=4, n_best=4, batch_tokens=40)
    found = search(ensemble, requests, config)
    for request, answer in zip(requests, found, strict=True):
        assert_same(answer, search(ensemble, [request], config)[0])
        forced = force(ensemble, [request.source] * len(answer), [one.ids for one in answer], config)
        assert_same(answer, forced)
        single = force(scorer("rnn-additive-gru"), [request.source], [answer[0].ids], config)[0]
        assert abs(single.score - answer[0].score) > 1e-6
    one = EnsembleScorer([scorer("rnn-additive-gru")])
    assert_same(search(one, requests, config)[0], search(scorer("rnn-additive-gru"), requests, config)[0])


def test_samples_of_a_network_do_not_depend_on_neighbours() -> None:
    model = scorer("transformer-rotary-post")
    requests = [Request(sentence(seed, 1 + seed)) for seed in range(5)]
    config = decoding(method="sample", n_best=3, top_k=6, top_p=0.9)
    together = search(model, requests, config)
    for index, request in enumerate(requests):
        assert_same(together[index], search(model, [request], config, places=[index])[0])
        forced = force(model, [request.source] * 3, [one.ids for one in together[index]], config)
        assert_same(together[index], [replace(one) for one in forced])
        assert all(math.isfinite(one.score) for one in together[index])
