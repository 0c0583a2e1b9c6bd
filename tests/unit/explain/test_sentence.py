"""One text explained, by the stored model and by small random ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_library import native_library
from golden.make import MODEL
from malmoi.checkpoint import Model, load_model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import ModelConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.engine.scorer import EngineScorer
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.explain import explain
from malmoi.explain.alignment import align, candidates
from malmoi.explain.sentence import explain_sentence
from malmoi.explain.subject import open_subject
from malmoi.models.build import build_model
from malmoi.report.explanation import explanation_page
from malmoi.text.tokenizer import train_tokenizers
from malmoi.translate import Translator
from reference.models import small_rnn, small_transformer

TEXT = "two small dogs sleep."
LINES = ["two small dogs sleep.", "one small cat sleeps."]


def random_model(config: ModelConfig, **text: Any) -> Model:
    settings = TextConfig(**{"tokenizer": "words", "vocabulary_size": 60, **text})
    tokenizers = train_tokenizers(settings, LINES, LINES, 1)
    network = build_model(config, tokenizers.source.size, tokenizers.target.size, 5).eval()
    stored = StoredConfig(text=settings, model=config, decoding=DecodingConfig(max_length=8))
    return Model(stored, network, tokenizers, {})


def test_it_explains_what_the_user_would_see() -> None:
    """The beam's own outputs, with their scores, the same as without an explanation."""
    translator = Translator.load(MODEL, device="cpu")
    (seen,) = translator.translate([TEXT], options={"n_best": 3})
    found = explain(translator, TEXT, n_best=3)
    assert [one.text for one in found.outputs] == [seen.text, *(one.text for one in seen.alternatives)]
    assert [one.score for one in found.outputs] == [seen.score, *(one.score for one in seen.alternatives)]
    for output in found.outputs:
        assert abs(output.score_difference) < 1e-4
        assert output.target.tokens[-1] == "</s>"
        assert output.attention["decoder.0.cross"].shape == (2, len(output.target.ids), len(found.source.ids))
        assert output.drops.shape == (4, len(output.target.ids))
    assert found.source.words == ("two", "small", "dogs", "sleep.", "</s>")
    assert len({one.text for one in found.outputs}) == 3


def test_what_the_engine_finds_is_replayed_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine adds in another order: the same texts, scores within 1e-4."""
    library = native_library()
    monkeypatch.setattr("malmoi.engine.choose.find_library", lambda: library)
    translator = Translator.load(MODEL, device="cpu")
    (seen,) = translator.translate([TEXT], options={"n_best": 3})
    assert isinstance(translator.scorer_for(translator.decoding), EngineScorer)
    found = explain(translator, TEXT, n_best=3)
    assert [one.text for one in found.outputs] == [seen.text, *(one.text for one in seen.alternatives)]
    scores = [seen.score, *(one.score for one in seen.alternatives)]
    assert [one.score for one in found.outputs] == pytest.approx(scores, abs=1e-4)


def test_a_search_in_int8_is_explained_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are those of int8, the replay is in fp32, and what lies between is told, however large it is."""
    library = native_library()
    monkeypatch.setattr("malmoi.engine.choose.find_library", lambda: library)
    (seen,) = Translator.load(MODEL, device="cpu").translate([TEXT], options={"precision": "int8"})
    found = explain(MODEL, TEXT, options={"precision": "int8"})
    output = found.outputs[0]
    assert found.precision == "int8" and (output.text, output.score) == (seen.text, seen.score)
    plain = explain(MODEL, TEXT)
    assert plain.precision == "fp32" and abs(plain.outputs[0].score_difference) < 1e-6 < abs(output.score_difference)
    assert output.log_probs == pytest.approx(plain.outputs[0].log_probs, abs=1e-5)
    model = load_model(MODEL)
    stored = replace(model, config=model.config.model_copy(update={"decoding": DecodingConfig(precision="int8")}))
    assert explain(stored, TEXT).precision == "int8"
    for page in (explanation_page(found), explanation_page(plain)):
        assert f'"precision":"{"int8" if page == explanation_page(found) else "fp32"}"' in page


def test_the_settings_of_the_search_are_the_users() -> None:
    (greedy,) = Translator.load(MODEL, device="cpu").translate([TEXT], options={"beam_size": 1, "length_alpha": 0.5})
    found = explain(MODEL, TEXT, options={"beam_size": 1, "length_alpha": 0.5})
    assert found.outputs[0].score == greedy.score
    config = DecodingConfig(beam_size=2, coverage_beta=0.3)
    (covered,) = Translator.load(MODEL, device="cpu").translate([TEXT], options=config)
    output = explain(load_model(MODEL), TEXT, options=config).outputs[0]
    assert output.score == covered.score and abs(output.score_difference) < 1e-4


def test_a_word_that_is_left_out_is_missed() -> None:
    """The stored model has learned its words: without "dogs" it is the dog that is no longer said."""
    found = explain(MODEL, TEXT)
    best = found.outputs[0]
    dog = best.target.words.index("개")
    first, behind = best.target.spans[dog]
    assert best.drops[:, first:behind].sum(1).argmax() == found.source.words.index("dogs")
    assert "개" in best.text and "개" not in found.left_out_texts[found.source.words.index("dogs")]


def test_a_long_sentence_is_not_searched_for_once_more_without_each_word() -> None:
    found = explain(random_model(small_transformer()), " ".join(["two", "small"] * 30), options={"beam_size": 1})
    assert len(found.units) == 60 and found.left_out_texts == ()
    assert found.outputs[0].drops.shape[0] == 60


class Forgetful(torch.nn.Module):
    """Adds something to the hidden states of whole targets only, as a replay through other weights would."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + (0.05 if hidden.dim() == 3 else 0.0) * torch.arange(hidden.size(-1))


def test_a_replay_that_differs_from_the_search_is_no_explanation() -> None:
    model = random_model(small_transformer())
    network: Any = model.network
    network.decoder.norm = Forgetful()
    with pytest.raises(CheckpointError, match="is not what was computed"):
        explain(model, TEXT)


@pytest.mark.parametrize("attention", ["none", "additive", "dot"])
def test_recurrent_systems(attention: str) -> None:
    model = random_model(small_rnn(attention=attention))
    found = explain(model, TEXT, n_best=2)
    assert len(found.outputs) == 2
    assert found.has_attention == (attention != "none")
    assert set(found.outputs[0].attention) == (set() if attention == "none" else {"decoder.cross"})
    assert found.encoding is None and not found.rollout
    if attention == "none":
        with pytest.raises(ConfigError, match="no attention"):
            align(open_subject(model), found)


@pytest.mark.parametrize("settings", [{"positions": "learned"}, {"norm_place": "pre", "encoder_layers": 1}])
def test_the_network_is_left_as_it_was(settings: dict[str, Any]) -> None:
    model = random_model(small_transformer(dropout=0.3, **settings))
    model.network.train()
    before = {name: values.clone() for name, values in model.network.state_dict().items()}
    first, second = explain(model, TEXT), explain(model, TEXT)
    assert model.network.training
    assert all(torch.equal(values, before[name]) for name, values in model.network.state_dict().items())
    for name, values in first.arrays().items():
        assert np.array_equal(values, second.arrays()[name], equal_nan=True), name


def test_it_ends_at_whatever_piece_of_work_it_is_told_to() -> None:
    model = load_model(MODEL)
    model.network.train()
    calls: list[int] = []

    class EnoughError(Exception):
        pass

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == most:
            raise EnoughError

    most = 0
    explain_sentence(model, TEXT, check=check)
    num_pieces = len(calls)
    # The words of the output were searched for step by step, and each of them may be the last.
    assert num_pieces > 5
    for most in range(1, num_pieces + 1, 3):
        calls.clear()
        with pytest.raises(EnoughError):
            explain_sentence(model, TEXT, check=check)
        assert len(calls) == most and model.network.training


def test_what_cannot_be_explained() -> None:
    with pytest.raises(DataError, match="blank"):
        explain(MODEL, " \u3000")
    with pytest.raises(DataError, match="blank"):
        explain(MODEL, TEXT, against="")
    with pytest.raises(ConfigError, match="n_best"):
        explain(MODEL, TEXT, n_best=0)
    translator = Translator.load(MODEL, device="cpu")
    assert isinstance(translator.scorer, ModelScorer)
    translator.scorer = EnsembleScorer([translator.scorer, translator.scorer])
    with pytest.raises(ConfigError, match="one model"):
        explain(translator, TEXT)
    with pytest.raises(ConfigError, match="fp32"):
        explain(load_model(MODEL, dtype=torch.bfloat16), TEXT)
    with pytest.raises(CheckpointError, match="no such model"):
        explain(Path("nowhere"), TEXT)


def test_the_alignment_of_the_stored_model() -> None:
    """small-작은, dogs-개, dogs-두 (the plural says two), sleep.-잡니다."""
    model = load_model(MODEL)
    found = align(open_subject(model), explain(model, TEXT))
    assert found.as_text() == "1-0 2-1 2-2 3-3 3-4"
    assert (found.num_sentences, found.num_words, found.num_agreements) == (1, 5, 5)


def test_the_candidate_that_agrees_most_on_the_stored_sentences_is_taken() -> None:
    model = load_model(MODEL)
    model.card["sentences"] = [
        {"source": "one white dog plays.", "text": "하얀 개 한 마리가 놉니다."},
        {"source": "", "text": ""},
    ]
    subject = open_subject(model)
    found = align(subject, explain(model, TEXT))
    assert found.num_sentences == 1 and found.num_agreements <= found.num_words == 5
    # A model whose heads look at one place alone has nothing that could agree by more than chance.
    network: Any = model.network
    query = network.decoder.stack[0].cross_attention.query
    with torch.no_grad():
        query.weight[:16] = 0.0
        query.bias[:16] = 0.0
    blind = align(subject, explain(model, TEXT))
    assert blind.candidate.head != 0


def test_candidates_stand_in_the_order_of_the_rule() -> None:
    weights = {f"decoder.{layer}.cross": np.zeros((2, 1, 1), dtype=np.float32) for layer in range(2)}
    order = [(one.layer, one.head) for one, _ in candidates(weights)]
    assert order == [(0, None), (1, None), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert [one.head for one, _ in candidates({"decoder.cross": np.zeros((1, 1, 1), dtype=np.float32)})] == [None]


def test_words_that_the_model_never_saw_keep_their_numbers() -> None:
    model = random_model(small_transformer(), tokenizer="characters")
    seen = {index for line in LINES for index in model.tokenizers.source.encode(line)}
    model = replace(model, tokenizers=model.tokenizers.trained_on(seen))
    text = "two 개개 small 말 dogs"
    found = explain(model, text)
    assert found.source.words == ("two", "small", "dogs", "</s>")
    pairs = align(open_subject(model), found).pairs
    assert {source for source, _ in pairs} <= {0, 2, 4}
