"""`malmoi info`: what a model is, what it was trained on, its scores, and whether this copy of it is whole.

In: a model or run folder. Out: lines, or one JSON object, on standard output; the status is 1 where the model does not
think of the sentences of its card what it thought when the card was written.
"""

from pathlib import Path
from typing import Any, cast

from malmoi.card import Card
from malmoi.checkpoint import Model, load_model
from malmoi.commands.proof import check_proof
from malmoi.commands.results import write_json, write_line
from malmoi.config.model import RnnConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.log import get_logger
from malmoi.translate import Translator


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
    """What this copy does otherwise than its card says, in words, and how many sentences there were."""
    sentences = Card.model_validate(model.card).sentences
    translator = Translator(ModelScorer(model.network.eval()), model.tokenizers, model.config.decoding)
    return check_proof(translator, sentences), len(sentences)


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
