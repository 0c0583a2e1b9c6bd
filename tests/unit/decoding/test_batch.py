"""Sentences come into a running search, and leave it unanswered; those that stay never notice."""

from typing import Any

import numpy as np
import pytest
import torch

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.decoding.scorer import ModelScorer
from malmoi.models.build import build_model
from reference.models import MODELS, NUM_IDS

END = 1
SETTINGS: tuple[dict[str, Any], ...] = (
    {"beam_size": 1},
    {"beam_size": 4, "n_best": 3, "no_repeat_ngram": 2, "min_length": 2},
    {"beam_size": 3, "coverage_beta": 0.3, "diverse_groups": 3},
    {"method": "sample", "n_best": 2, "seed": 5},
)


def scorer(name: str) -> ModelScorer:
    model = build_model(MODELS[name], NUM_IDS, NUM_IDS, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return ModelScorer(model.double().eval())


def sentence(seed: int, length: int) -> Ids:
    return (*np.random.default_rng([seed, length]).integers(2, NUM_IDS, length).tolist(), END)


def requests_of(count: int) -> list[Request]:
    phrases = ((), ((3,),), ((4, 5),))
    prefixes = ((), (6,), (7, 8))
    return [
        Request(sentence(seed, 1 + seed % 7), prefixes[seed % 3], phrases[seed % 3 if seed % 2 else 0])
        for seed in range(count)
    ]


def run(batch: SearchBatch, requests: list[Request], leaving: dict[int, list[int]]) -> dict[int, list[Hypothesis]]:
    """All requests, two of which come in before each step; `leaving` says who goes after which step."""
    answers: dict[int, list[Hypothesis]] = {}
    waiting = list(enumerate(requests))
    step = 0
    while waiting or batch.num_sentences:
        batch.add(waiting[:2])
        del waiting[:2]
        answers.update(batch.step() if batch.num_sentences else {})
        step += 1
        batch.remove(leaving.get(step, []))
    return answers


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["transformer-sinusoidal-post", "transformer-rotary-post", "rnn-additive-gru"])
def test_who_stays_never_notices_who_leaves(name: str, options: dict[str, Any]) -> None:
    """marian-nmt/marian#117: what is not waited for any more is not worked on."""
    config = DecodingConfig(max_length=9, max_length_extra=4, **options)
    requests = requests_of(10)
    if config.method == "sample" or config.diverse_groups > 1:
        requests = [Request(one.source, one.prefix) for one in requests]
    model = scorer(name)
    whole = run(SearchBatch(model, config, (0,)), requests, {})
    leaving = {1: [0], 2: [3, 2], 3: [5, 77], 5: [8], 6: []}
    gone = {number for numbers in leaving.values() for number in numbers}
    parts = run(SearchBatch(model, config, (0,)), requests, leaving)
    assert set(whole) == set(range(10)) and set(range(10)) - set(parts) <= gone
    assert len(parts) < 10
    for number in set(parts) - gone:
        for mine, theirs in zip(parts[number], whole[number], strict=True):
            assert mine.ids == theirs.ids
            assert mine.log_probs == pytest.approx(theirs.log_probs, abs=1e-9)
            assert mine.score == pytest.approx(theirs.score, abs=1e-9)


@pytest.mark.parametrize("beam", [1, 3])
def test_who_comes_in_brings_its_own_limit(beam: int) -> None:
    """Short sentences that join a long one end where they would end alone."""
    model = scorer("transformer-sinusoidal-post")
    config = DecodingConfig(beam_size=beam, max_length_ratio=1.0, max_length_extra=0, min_length_ratio=1.0)
    long, short = Request(sentence(1, 12)), Request(sentence(2, 3))
    batch = SearchBatch(model, config, (0,))
    batch.add([(0, long)])
    batch.step()
    batch.add([(1, short)])
    answers: dict[int, list[Hypothesis]] = {}
    while batch.num_sentences:
        answers.update(batch.step())
    assert [len(one.ids) - one.finished for one in (answers[0][0], answers[1][0])] == [12, 3]


def test_an_empty_batch_takes_new_sentences_when_all_have_left() -> None:
    batch = SearchBatch(scorer("transformer-sinusoidal-post"), DecodingConfig(max_length=5), (0,))
    batch.remove([1])
    batch.add([(4, Request(sentence(1, 3))), (5, Request(sentence(2, 3)))])
    batch.step()
    batch.remove([4, 5])
    assert batch.num_sentences == 0 and batch.best_rows() == {}
    batch.add([(6, Request(sentence(1, 3)))])
    assert batch.num_sentences == 1


def test_the_likeliest_row_so_far_grows_into_the_answer() -> None:
    batch = SearchBatch(scorer("rnn-additive-gru"), DecodingConfig(beam_size=1, max_length=8), (0,))
    batch.add([(number, Request(sentence(number, 4))) for number in range(3)])
    seen: dict[int, list[Ids]] = {0: [], 1: [], 2: []}
    answers: dict[int, list[Hypothesis]] = {}
    while batch.num_sentences:
        answers.update(batch.step())
        for number, ids in batch.best_rows().items():
            seen[number].append(ids)
    for number, rows in seen.items():
        assert [len(ids) for ids in rows] == list(range(1, len(rows) + 1))
        assert all(answers[number][0].ids[: len(ids)] == ids for ids in rows)
