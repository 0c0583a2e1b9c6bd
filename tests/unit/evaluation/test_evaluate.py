"""Reports on models and outputs, and the scores that training sees."""

import json
import math
from pathlib import Path

import pytest
import torch

from malmoi.checkpoint import load_model, save_model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import Positions, TransformerConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import DataError
from malmoi.evaluation.evaluate import (
    distinct_outputs,
    evaluate_model,
    evaluate_output,
    make_validation,
)
from malmoi.evaluation.metrics import MetricOptions
from malmoi.evaluation.references import References
from malmoi.models.build import build_model
from malmoi.text.tokenizer import Tokenizers, train_tokenizers
from malmoi.translate import Translator

LINES = ["bano dori felu gasi", "hemo jipu kato", "luni bano", "dori dori gasi hemo jipu kato luni", "kato felu"]
MODEL = TransformerConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=32, dropout=0.5)
DECODING = DecodingConfig(beam_size=2, max_length=8, length_alpha=0.6)


def make_tokenizers() -> Tokenizers:
    return train_tokenizers(TextConfig(tokenizer="words"), LINES, LINES, seed=1)


@pytest.fixture(scope="module")
def translator() -> Translator:
    tokenizers = make_tokenizers()
    size = tokenizers.target.size
    return Translator(ModelScorer(build_model(MODEL, size, size, seed=4).eval()), tokenizers, DECODING)


@pytest.fixture(scope="module")
def references(translator: Translator) -> References:
    """Two outputs of the random network itself are right, the others are not."""
    outputs = [one.text for one in translator.translate(LINES)]
    return References.from_answers([[outputs[0]], ["kato dori", outputs[1]], ["luni"], ["bano gasi"], ["hemo"]])


def test_a_model_is_scored_like_its_output(translator: Translator, references: References) -> None:
    report = evaluate_model(translator, LINES, references, metrics=("loss", "bleu", "chrf", "segment_error", "ser"))
    outputs = [one.text for one in translator.translate(LINES)]
    options = MetricOptions(symbols="words")
    again = evaluate_output(
        outputs,
        references,
        metrics=("bleu", "chrf", "segment_error", "ser"),
        options=options,
        sources=LINES,
        system="model",
    )
    assert report.scores == again.scores
    assert report.buckets == again.buckets
    assert report.outputs == tuple(outputs)
    assert report.num_segments == 5
    assert {score.metric: score.value for score in report.scores}["segment_error"] == pytest.approx(60.0)
    assert report.decoding is not None
    assert report.decoding["beam_size"] == 2
    assert all(score.signature for score in report.scores)


def test_the_kind_of_symbols_and_metrics_follow_the_model(translator: Translator, references: References) -> None:
    report = evaluate_model(translator, LINES, references)
    assert [score.metric for score in report.scores] == ["segment_error", "ser"]
    assert all("symbols:words" in score.signature for score in report.scores)
    assert [score.metric for score in evaluate_output(["a"], References.from_sets([["a"]])).scores] == [
        "bleu",
        "chrf",
        "ter",
    ]


def test_likelihood_is_the_sum_of_forced_scores(translator: Translator, references: References) -> None:
    likelihood = evaluate_model(translator, LINES, references, metrics=("loss",)).likelihood
    assert likelihood is not None
    firsts = [right[0] for right in references.answers]
    scored = translator.score(list(zip(LINES, firsts, strict=True)))
    total = -sum(sum(one.token_scores) for one in scored)
    num_tokens = sum(len(text.split()) + 1 for text in firsts)
    num_characters = sum(len(text) + 1 for text in firsts)
    assert likelihood.negative_log_likelihood == pytest.approx(total)
    assert likelihood.num_tokens == num_tokens
    assert likelihood.perplexity_per_token == pytest.approx(math.exp(total / num_tokens))
    assert likelihood.perplexity_per_character == pytest.approx(math.exp(total / num_characters))


def test_training_and_offline_scores_are_equal(tmp_path: Path, references: References) -> None:
    """mjpost/sacrebleu#162 and #178; facebookresearch/fairseq#2593: one road, whoever asks."""
    tokenizers = make_tokenizers()
    size = tokenizers.target.size
    network = build_model(MODEL, size, size, seed=4).train()
    validate = make_validation(
        tokenizers, LINES, references, metrics=("loss", "bleu", "chrf", "ter", "exact", "ser"), decoding=DECODING
    )
    online = validate(network)
    assert network.training
    assert online == validate(network)

    config = StoredConfig(text=TextConfig(tokenizer="words"), model=MODEL, decoding=DECODING)
    save_model(tmp_path / "model", config, network, tokenizers, {})
    loaded = load_model(tmp_path / "model")
    outputs_file = tmp_path / "output.txt"
    translations = Translator.load(tmp_path / "model").translate(LINES)
    outputs_file.write_text("".join(one.text + "\n" for one in translations), encoding="utf-8")
    outputs = outputs_file.read_text(encoding="utf-8").split("\n")[:-1]
    offline = evaluate_output(
        outputs,
        references,
        metrics=("bleu", "chrf", "ter", "exact", "ser"),
        options=MetricOptions(symbols="words"),
        sources=LINES,
    )
    assert loaded.config.decoding == DECODING
    assert {score.metric: score.value for score in offline.scores} == pytest.approx(online, abs=0.01)
    assert online["exact"] == pytest.approx(40.0)


def test_validation_decodes_nothing_that_nobody_asked_for(references: References) -> None:
    tokenizers = make_tokenizers()
    validate = make_validation(tokenizers, LINES, references, metrics=("loss",), decoding=DECODING)
    size = tokenizers.target.size
    assert validate(build_model(MODEL, size, size, seed=4)) == {}


def test_a_failed_validation_leaves_the_network_in_training_mode(references: References) -> None:
    tokenizers = make_tokenizers()
    size = tokenizers.target.size
    network = build_model(MODEL, size, size, seed=4).train()
    decoding = DecodingConfig(coverage_beta=0.2, replace_unknown=True, beam_size=2)
    unfit = train_tokenizers(TextConfig(tokenizer="characters"), LINES, LINES, seed=1)
    validate = make_validation(unfit, LINES, references, metrics=("bleu",), decoding=decoding)
    with pytest.raises(Exception, match="replace_unknown"):
        validate(network)
    assert network.training


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "none"])
def test_a_network_can_be_trained_after_a_validation(positions: Positions, references: References) -> None:
    """Whatever a network computed and kept while it was measured must serve the next gradient."""
    tokenizers = make_tokenizers()
    size = tokenizers.target.size
    network = build_model(MODEL.model_copy(update={"positions": positions}), size, size, seed=4)
    make_validation(tokenizers, LINES, references, metrics=("exact",), decoding=DECODING)(network)
    ids = torch.ones(1, 6, dtype=torch.int64)
    network(ids, torch.tensor([6]), ids).sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_collapse_can_be_seen() -> None:
    sources = [f"source {number}" for number in range(41)]
    answers = References.from_sets([[f"answer {number}" for number in range(41)]])
    assert distinct_outputs(sources, answers, ["x"] * 41) == 0.0
    assert distinct_outputs(sources, answers, [f"x {number // 2}" for number in range(41)]) == 0.5
    assert distinct_outputs(sources, answers, sources) == 1.0
    # Sources that stand twice ask for no more outputs.
    assert distinct_outputs(sources * 2, References(answers.answers * 2), sources * 2) == 1.0


def test_collapse_is_measured_by_what_the_right_answers_ask_for() -> None:
    """A model that rightly says one thing, or answers few lines, has not collapsed: then nothing is told."""
    sources = [f"source {number}" for number in range(60)]
    several = [f"answer {number}" for number in range(60)]
    mostly_one = ["no"] * 31 + several[31:]
    for lines, answers in (
        (sources[:20], several[:20]),
        (sources, ["yes"] * 60),
        (sources, ["yes", "no"] * 30),
        (["one"] * 60, several),
        (sources, mostly_one),
    ):
        references = References.from_sets([answers])
        assert distinct_outputs(lines, references, ["no"] * len(lines)) is None
        report = evaluate_output(["no"] * len(lines), references, sources=lines)
        assert report.distinct_outputs is None and "varied" not in "\n".join(report.lines())
    varied = [f"answer {number // 2}" for number in range(60)]
    assert distinct_outputs(sources, References.from_sets([varied]), varied) == 1.0


def test_buckets_cover_every_segment_once() -> None:
    sources = [" ".join("w" * length) for length in (1, 5, 6, 10, 30, 31, 90)]
    outputs = ["right", "right", "wrong", "right", "right", "wrong", "wrong"]
    references = References.from_sets([["right"] * 7])
    report = evaluate_output(outputs, references, metrics=("exact",), sources=sources)
    found = [(bucket.label, bucket.num_segments, bucket.scores[0].value) for bucket in report.buckets]
    assert found == [
        ("0-5", 2, 100.0),
        ("6-10", 2, 50.0),
        ("21-30", 1, 100.0),
        ("31-40", 1, 0.0),
        ("61+", 1, 0.0),
    ]
    assert all(bucket.scores[0].num_segments == bucket.num_segments for bucket in report.buckets)
    assert {bucket.unit for bucket in report.buckets} == {"words"}


def test_single_words_are_measured_in_characters() -> None:
    report = evaluate_output(
        ["a", "b"], References.from_sets([["a", "c"]]), metrics=("segment_error",), sources=["cat", "catalogue"]
    )
    assert [(bucket.unit, bucket.label) for bucket in report.buckets] == [("characters", "0-4"), ("characters", "9-10")]


def test_the_table_and_the_json_tell_everything(translator: Translator, references: References) -> None:
    report = evaluate_model(translator, LINES, references, metrics=("loss", "bleu"), system="my model")
    fields = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(fields) == {
        "system",
        "num_segments",
        "scores",
        "buckets",
        "likelihood",
        "distinct_outputs",
        "decoding",
        "warnings",
    }
    assert fields["scores"][0]["signature"].startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    table = report.lines()
    assert table[0] == "my model: 5 segments"
    assert fields["scores"][0]["signature"] in table[1]
    assert "perplexity" in table[2]


def test_tokenised_output_is_told() -> None:
    """mjpost/sacrebleu#162 and #178; facebookresearch/fairseq#2593."""
    plain = ["Well, it's 3.5% up (again).", 'He said: "No!"', "Don't go; stay.", "A-B, C/D & E."]
    tokenised = ["Well , it 's 3.5 % up ( again ) .", 'He said : " No ! "', "Do n't go ; stay .", "A-B , C / D & E ."]
    references = References.from_sets([plain])
    good = evaluate_output(plain, references, metrics=("bleu",))
    bad = evaluate_output(tokenised, references, metrics=("bleu",))
    assert good.scores[0].value == pytest.approx(100.0)
    assert not good.warnings
    assert bad.scores[0].value < 100.0
    assert "looks tokenised" in bad.warnings[0]
    assert any("warning: the output looks tokenised" in line for line in bad.lines())


def test_counts_that_differ_are_refused_with_both(translator: Translator) -> None:
    """mjpost/sacrebleu#220."""
    references = References.from_sets([["a", "b"]])
    with pytest.raises(DataError, match="3 sources but 2 outputs"):
        evaluate_output(["a", "b"], references, sources=["a", "b", "c"])
    with pytest.raises(DataError, match="has 5 lines, but the references have 2"):
        evaluate_model(translator, LINES, references)
