"""Networks and ensembles as scorers."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import RnnConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Request
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.decoding.search import search
from malmoi.errors import ConfigError
from malmoi.models.build import build_model
from reference.exhaustive import END, TableScorer, random_attention, random_table

SOURCE = (2, 3, END)


def test_an_ensemble_is_the_mean_of_probabilities() -> None:
    tables = [random_table(seed, 5) for seed in range(3)]
    mean = TableScorer(lambda source, prefix: np.log(sum(np.exp(table(source, prefix)) for table in tables) / 3), 5)
    ensemble = EnsembleScorer([TableScorer(table, 5) for table in tables])
    config = DecodingConfig(beam_size=4, n_best=4, max_length=5)
    requests = [Request(SOURCE), Request((4, END)), Request((4, 4, 4, END))]
    for mine, theirs in zip(search(ensemble, requests, config), search(mean, requests, config), strict=True):
        assert [one.ids for one in mine] == [one.ids for one in theirs]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-9)


def test_attention_of_an_ensemble_is_the_mean() -> None:
    attention = [random_attention(1), random_attention(2)]
    ensemble = EnsembleScorer([TableScorer(random_table(1, 5), 5, one) for one in attention])
    kept = force(ensemble, [SOURCE], [(3, END)], keep_attention=True)[0].attention
    mean = [(attention[0](SOURCE, said) + attention[1](SOURCE, said)) / 2 for said in ((), (3,))]
    assert kept is not None
    assert np.allclose(kept, np.stack(mean), atol=1e-6)
    half = EnsembleScorer([TableScorer(random_table(1, 5), 5, attention[0]), TableScorer(random_table(2, 5), 5)])
    with pytest.raises(ConfigError, match="no attention"):
        force(half, [SOURCE], [(3, END)], keep_attention=True)


def test_models_that_do_not_fit_together_are_refused() -> None:
    table = random_table(1, 5)
    with pytest.raises(ConfigError, match=r"model 2 of the ensemble has .* 6 target ids, model 1 has .* 5"):
        EnsembleScorer([TableScorer(table, 5), TableScorer(table, 6)])
    with pytest.raises(ConfigError, match="at least one"):
        EnsembleScorer([])
    assert EnsembleScorer([TableScorer(table, 5, max_steps=9), TableScorer(table, 5, max_steps=4)]).max_steps == 4


def test_a_network_in_training_mode_is_a_fault_of_the_caller() -> None:
    network = build_model(RnnConfig(width=8, hidden=8), 7, 7)
    with pytest.raises(AssertionError, match="eval"):
        search(ModelScorer(network.train()), [Request(SOURCE)], DecodingConfig())


def test_a_network_gives_normalised_log_probabilities() -> None:
    network = build_model(RnnConfig(width=8, hidden=8, tying="target"), 7, 9, seed=3)
    scorer = ModelScorer(network.eval())
    assert (scorer.vocabulary_size, scorer.start_id, scorer.source_padding_id) == (9, 9, 7)
    state = scorer.start(scorer.encode(np.array([[2, 3, END]]), np.array([3])))
    log_probs, _ = scorer.step(np.array([scorer.start_id]), state)
    assert log_probs.shape == (1, 9)
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-5)


class ElsewhereTensor(Tensor):
    """A tensor that, as all on a GPU, numpy cannot look into until it has been fetched."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("this tensor is not in the processor's memory")

    def cpu(self, *_: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.as_subclass(Tensor)


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_computed_elsewhere_is_fetched(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are chosen where the network computes; whole tables are fetched where the search needs them."""
    scorer = ModelScorer(build_model(RnnConfig(width=8, hidden=8, attention="dot"), 9, 9, seed=3).eval())
    requests = [Request((2, 3, END)), Request((4, END), prefix=(5,)), Request((6, 7, 8, END))]
    config = DecodingConfig(beam_size=width, n_best=width, min_length=2, max_length=6)
    expected = search(scorer, requests, config, (0,), keep_attention=True)
    log_probs = scorer.log_probs
    monkeypatch.setattr(scorer, "log_probs", lambda hidden: log_probs(hidden).as_subclass(ElsewhereTensor))
    assert search(scorer, requests, config, (0,), keep_attention=True) == expected
    # Alone, without the prefix of another one, it asks for candidates.
    alone = search(scorer, requests[:1], config, (0,), keep_attention=True)[0]
    assert [one.ids for one in alone] == [one.ids for one in expected[0]]
