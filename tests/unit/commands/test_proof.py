"""The proof of a copy: wrong weights are found, near ties of another processor are not taken for them."""

import copy
from typing import Any

import pytest
import torch

from golden.make import MODEL
from malmoi.card import CardSentence
from malmoi.checkpoint import Model, load_model
from malmoi.commands.info import prove
from malmoi.commands.proof import write_proof
from malmoi.decoding.scorer import ModelScorer
from malmoi.translate import Translator

SOURCES = ["two old dogs sleep.", "one red bird sings.", "four happy horses play."]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def translator(model: Model) -> Translator:
    return Translator(ModelScorer(model.network), model.tokenizers, model.config.decoding)


def faults_of(model: Model, *sentences: dict[str, Any]) -> list[str]:
    return prove(Model(model.config, model.network, model.tokenizers, {"sentences": list(sentences)}))[0]


def test_a_model_proves_itself(model: Model, translator: Translator) -> None:
    sentences = write_proof(translator, SOURCES)
    assert [set(one) for one in sentences] == [set(CardSentence.model_fields)] * 3
    assert all(one["margin"] > 0 and one["forced"] < 0 for one in sentences)
    assert faults_of(model, *sentences) == []
    assert prove(Model(model.config, model.network, model.tokenizers, {})) == ([], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"forced": 0.01}, "should have the log-probability"), ({"score": 0.01}, "should score")],
    ids=["forced", "score"],
)
def test_another_number_is_a_fault(
    change: dict[str, float], message: str, model: Model, translator: Translator
) -> None:
    (sentence,) = write_proof(translator, SOURCES[:1])
    for sign, size in ((1, 1), (-1, 1), (1, 1e-3)):
        key, by = next(iter(change.items()))
        faults = faults_of(model, {**sentence, key: sentence[key] + sign * size * by})
        assert [message in fault for fault in faults] == ([True] if size == 1 else [])


def test_another_text_is_a_fault_unless_the_two_were_all_but_equal(model: Model, translator: Translator) -> None:
    """The stored translation is what another processor preferred by a hair; its log-probability is right."""
    other = translator.translate(SOURCES[:1], options={"n_best": 2})[0].alternatives[0]
    forced = translator.score([(SOURCES[0], other.text)])[0].log_probability
    stored = {"source": SOURCES[0], "text": other.text, "score": other.score, "forced": forced}
    assert faults_of(model, {**stored, "margin": 1e-5}) == []
    for margin in (0.1, None):
        assert "should give" in faults_of(model, {**stored, "margin": margin})[0]
    assert "log-probability" in faults_of(model, {**stored, "margin": 1e-5, "forced": forced - 0.01})[0]


def test_wrong_weights_are_found_where_the_text_stays(model: Model, translator: Translator) -> None:
    sentences = write_proof(translator, SOURCES)
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.get_parameter("decoder.layers.0.feed_forward.outer.weight")[:4] *= 1.05
    damaged = Model(model.config, network, model.tokenizers, {})
    found = Translator(ModelScorer(network), model.tokenizers, model.config.decoding).translate(SOURCES)
    assert [one.text for one in found] == [one["text"] for one in sentences]
    faults = faults_of(damaged, *[{**one, "margin": 0.0} for one in sentences])
    assert faults and all("log-probability" in fault for fault in faults)


def test_cards_of_source_and_text_alone_are_proved_by_the_text(model: Model, translator: Translator) -> None:
    (sentence,) = write_proof(translator, SOURCES[:1])
    plain = {key: sentence[key] for key in ("source", "text")}
    assert faults_of(model, plain) == []
    assert "should give" in faults_of(model, {**plain, "text": "x"})[0]
