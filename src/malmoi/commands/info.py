"""`malmoi info`: what a model is, what it was trained on, its scores, and whether this copy of it is whole.

In: a model or run folder. Out: lines, or one JSON object, on standard output; the status is 1 where the model does not
translate the sentences of its card as it did when the card was written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from malmoi.checkpoint import Model, load_model
from malmoi.commands.results import write_json, write_line
from malmoi.config import RnnConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.log import get_logger
from malmoi.translate import Translator

SCORE_TOLERANCE = 1e-3
"""Between machines the sums of a score are made in another order; a wrong weight moves it by far more."""


def run_info(path: Path, *, as_json: bool) -> int:
    """Print the model's card and the outcome of its proof."""
    model = load_model(path, "cpu")
    faults, num_sentences = prove(model)
    if as_json:
        proof = {"sentences": num_sentences, "faults": faults}
        write_json({"model": str(path), "config": model.config.model_dump(mode="json"), **model.card, "proved": proof})
    else:
        for line in describe(path, model):
            write_line(line)
        if not num_sentences:
            write_line("proof       none: the card holds no sentences")
        elif not faults:
            write_line(f"proof       this copy translates its {num_sentences} stored sentences as it should")
    for fault in faults:
        get_logger().error(fault)
    return 1 if faults else 0


def prove(model: Model) -> tuple[list[str], int]:
    """Translate the sentences of the card; what differs, in words, and how many sentences there were."""
    sentences = cast(list[Mapping[str, Any]], model.card.get("sentences", []))
    translator = Translator(ModelScorer(model.network.eval()), model.tokenizers, model.config.decoding)
    found = translator.translate([str(one["source"]) for one in sentences])
    faults: list[str] = []
    for stored, now in zip(sentences, found, strict=True):
        score = stored["score"]
        if now.text != stored["text"]:
            faults.append(f"{stored['source']!r} should give {stored['text']!r}, but gives {now.text!r}")
        elif score is not None and (now.score is None or abs(now.score - score) > SCORE_TOLERANCE):
            faults.append(f"{stored['source']!r} should score {score:.6f}, but scores {now.score}")
    return faults, len(sentences)


def describe(path: Path, model: Model) -> list[str]:
    """The card in words."""
    card, shape, text = model.card, model.config.model, model.config.text
    if isinstance(shape, RnnConfig):
        kind = f"{shape.cell.upper()} encoder-decoder, attention {shape.attention}, width {shape.width}"
    else:
        kind = (
            f"Transformer, {shape.encoder_layers} + {shape.decoder_layers} layers, width {shape.width}, "
            f"{shape.heads} heads"
        )
    sizes = f"{model.tokenizers.source.size} and {model.tokenizers.target.size}"
    lines = [
        f"model       {path}",
        f"kind        {kind}, {card.get('num_parameters', 0):,} parameters",
        f"text        {text.source_kind} to {text.target_kind}, vocabularies of {sizes}"
        + (" (shared)" if model.tokenizers.shared else ""),
    ]
    if "malmoi" in card:
        lines.append(f"made by     malmoi {card['malmoi']}, {card.get('steps', 0):,} updates")
    lines += [
        f"trained on  {one['description']}: {one['pairs']:,} pairs" for one in cast(list[Any], card.get("data", []))
    ]
    lines += [
        f"score       {one['label']} {one['value']:.2f}  {one['signature']}  {one['num_segments']} segments"
        for one in cast(list[Any], card.get("scores", []))
    ]
    return lines
