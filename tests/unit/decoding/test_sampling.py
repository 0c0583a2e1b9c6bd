"""Samples: the right frequencies, the right support, and nothing to do with neighbours."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Hypothesis, Request
from malmoi.decoding.sampling import SampleChooser, draw
from malmoi.decoding.search import search
from reference.exhaustive import END, TableScorer, random_table

NUM_SAMPLES = 1000


def first_tokens(log_probs: list[float], **settings: float) -> np.ndarray:  # type: ignore[type-arg]
    """How often each token came first among many samples of one sentence."""
    values = np.array(log_probs) - np.log(np.exp(log_probs).sum())
    scorer = TableScorer(lambda source, prefix: values, len(log_probs))
    config = DecodingConfig(method="sample", n_best=NUM_SAMPLES, max_length=1, **settings)  # type: ignore[arg-type]
    samples = search(scorer, [Request((2, END))], config)[0]
    assert len(samples) == NUM_SAMPLES
    return np.bincount([sample.ids[0] for sample in samples], minlength=len(log_probs))


def distance(counts: np.ndarray, probabilities: np.ndarray) -> float:  # type: ignore[type-arg]
    """Pearson's chi-square over the tokens that can come."""
    expected = probabilities * counts.sum()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    return float(((counts - expected)[possible] ** 2 / expected[possible]).sum())


LOGITS = [0.3, -0.5, 1.2, 0.9, -0.1, 0.0]
"""Six tokens: chi-square with at most 5 degrees of freedom; above 30 once in 70,000 seeds, and the seed is fixed."""


def test_frequencies_are_the_probabilities() -> None:
    assert distance(first_tokens(LOGITS), np.exp(LOGITS) / np.exp(LOGITS).sum()) < 30


@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_temperature_is_a_power_of_the_probabilities(temperature: float) -> None:
    weights = np.exp(np.array(LOGITS) / temperature)
    counts = first_tokens(LOGITS, temperature=temperature)
    assert distance(counts, weights / weights.sum()) < 30
    assert distance(counts, np.exp(LOGITS) / np.exp(LOGITS).sum()) > 60


def test_top_k_keeps_the_likeliest() -> None:
    weights = np.where(np.isin(np.arange(6), (0, 2, 3)), np.exp(LOGITS), 0.0)
    assert distance(first_tokens(LOGITS, top_k=3), weights / weights.sum()) < 30
    assert (first_tokens(LOGITS, top_k=3) > 0).tolist() == [True, False, True, True, False, False]


def test_top_p_keeps_the_fewest_that_have_enough() -> None:
    # Probabilities 0.5, 0.3, 0.15, 0.05: 0.5 is reached by one token, 0.7 by two, 0.81 by three.
    logs = np.log([0.15, 0.5, 0.05, 0.3]).tolist()
    assert np.flatnonzero(first_tokens(logs, top_p=0.49)).tolist() == [1]
    assert np.flatnonzero(first_tokens(logs, top_p=0.7)).tolist() == [1, 3]
    assert distance(first_tokens(logs, top_p=0.7), np.array([0, 0.625, 0, 0.375])) < 30
    assert np.flatnonzero(first_tokens(logs, top_p=0.81)).tolist() == [0, 1, 3]


def test_top_k_comes_before_top_p() -> None:
    # Of the two that remain, one has 5/8.
    logs = np.log([0.15, 0.5, 0.05, 0.3]).tolist()
    assert np.flatnonzero(first_tokens(logs, top_k=2, top_p=0.6)).tolist() == [1]


def test_top_p_looks_as_far_as_it_must() -> None:
    """A flat distribution over many tokens needs more of them than are tried at first."""
    counts = first_tokens([0.0] * 1500, top_p=0.99)
    assert np.flatnonzero(counts).max() < 1485
    assert np.flatnonzero(counts).max() > 1200


def test_a_tie_at_the_edge_goes_to_the_lower_id() -> None:
    assert np.flatnonzero(first_tokens([0.0] * 6, top_k=2)).tolist() == [0, 1]


@settings(deadline=None)
@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0]), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
def test_what_has_no_probability_is_never_drawn(weights: list[float], number: float) -> None:
    place = int(draw(np.array([weights]), np.array([number]))[0])
    assert weights[place] > -math.inf or all(weight == -math.inf for weight in weights)
    almost_one = np.array([math.nextafter(1.0, 0.0)])
    assert weights[int(draw(np.array([weights]), almost_one)[0])] > -math.inf or max(weights) == -math.inf


def test_rules_hold_for_samples_and_scores_are_the_models_own() -> None:
    table = random_table(3, 6, 1.0)
    config = DecodingConfig(method="sample", n_best=50, max_length=4, min_length=2, temperature=3.0, length_alpha=0.0)
    samples = search(TableScorer(table, 6), [Request((2, END), prefix=(5,))], config, (0, 4))[0]
    for sample in samples:
        body = sample.ids[:-1] if sample.finished else sample.ids
        assert sample.ids[0] == 5
        assert 2 <= len(body) <= 4
        assert sample.finished == (sample.ids[-1] == END)
        assert not {0, 4, END} & set(body)
        own = [float(table((2, END), sample.ids[:place])[token]) for place, token in enumerate(sample.ids)]
        assert sample.log_probs == pytest.approx(own, abs=1e-12)
        assert sample.score == pytest.approx(sum(own), abs=1e-9)
    assert {sample.finished for sample in samples} == {True, False}


def test_a_sample_depends_on_its_seed_and_place_alone() -> None:
    """OpenNMT/OpenNMT-py#2208, for samples."""
    scorer = TableScorer(random_table(8, 7, 1.0), 7)
    requests = [Request((*(3,) * length, END)) for length in (2, 1, 5, 1)]

    def sample(chosen: list[Request], seed: int = 1, first: int = 0, **more: int) -> list[list[Hypothesis]]:
        config = DecodingConfig(method="sample", n_best=3, seed=seed, **more)  # type: ignore[arg-type]
        return search(scorer, chosen, config, places=range(first, first + len(chosen)))

    together = sample(requests)
    assert sample(requests, batch_tokens=1) == together
    assert [sample([request], first=index)[0] for index, request in enumerate(requests)] == together
    assert sample(requests, seed=2) != together
    # The same sentence at another place draws other numbers, and so do the samples of one sentence.
    assert together[1] != together[3]
    assert len({one.ids for answer in together for one in answer}) > 6


def test_a_row_without_any_token_is_cut() -> None:
    config = DecodingConfig(method="sample", n_best=2, no_repeat_ngram=1, min_length=9, max_length=9)
    samples = search(TableScorer(random_table(1, 4), 4), [Request((2, END))], config, (0,))[0]
    assert all(len(sample.ids) == 2 and not sample.finished for sample in samples)
    assert all(math.isfinite(sample.score) for sample in samples)


def test_settings_reach_the_chooser() -> None:
    config = DecodingConfig(method="sample", temperature=0.5, top_k=4, top_p=0.25)
    assert SampleChooser.from_config(config, END) == SampleChooser(END, 0.5, 4, 0.25)
