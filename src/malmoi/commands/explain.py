"""`malmoi explain`: how a model came to its translation of one text.

In: a model and a text. Out: a page, whose place is told on standard output; or an alignment, `0-0 1-2`, or one JSON
object with the keys text, model, num_parameters, source, outputs, order, boxes, units, left_out_texts, notes, arrays
(all arrays by name, as nested lists) and alignment (null unless it was asked for).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from malmoi.checkpoint import load_model
from malmoi.commands.results import write_json, write_line
from malmoi.commands.translate import decoding_options
from malmoi.config.training import Device
from malmoi.device import choose_device, set_threads
from malmoi.errors import ConfigError
from malmoi.explain.alignment import Alignment, align
from malmoi.explain.result import Explanation, Output
from malmoi.explain.sentence import explain_sentence
from malmoi.explain.subject import open_subject
from malmoi.explain.words import Side
from malmoi.files import write_atomically
from malmoi.log import get_logger
from malmoi.report.explanation import Language, explanation_page

DEFAULT_PAGE = "explain.html"
DIGITS = 6
"""Of numbers in JSON: a weight is not known better in fp32."""


@dataclass(frozen=True)
class ExplainRequest:
    """What the command line asked for."""

    model: Path
    text: str
    n_best: int
    against: str | None
    alignments: bool
    maybe_out: Path | None
    language: str
    beam: int | None
    settings: tuple[str, ...]
    device: str
    threads: int
    as_json: bool


def run_explain(request: ExplainRequest) -> int:
    """Explain one text and write what was asked for: a page at least, unless something else was."""
    if request.language not in get_args(Language):
        raise ConfigError(f"--language {request.language}: the page is written in {' and '.join(get_args(Language))}")
    is_for_programs = request.as_json or request.alignments
    maybe_out = request.maybe_out or (None if is_for_programs else Path(DEFAULT_PAGE))
    if maybe_out is not None and not maybe_out.parent.is_dir():
        raise ConfigError(f"--out {maybe_out}: there is no folder {maybe_out.parent}")
    set_threads(request.threads)
    model = load_model(request.model, choose_device(cast(Device, request.device)))
    options: Mapping[str, Any] = decoding_options(request.settings, request.beam)
    explanation = explain_sentence(model, request.text, n_best=request.n_best, against=request.against, options=options)
    for note in explanation.notes:
        get_logger().warning(note)
    maybe_alignment = align(open_subject(model), explanation) if request.alignments else None
    if maybe_alignment is not None:
        get_logger().info(describe_alignment(maybe_alignment))
    if maybe_out is not None:
        page = explanation_page(explanation, cast(Language, request.language))
        write_atomically(maybe_out, page.encode("utf-8"))
    if request.as_json:
        write_json(as_object(explanation, maybe_alignment))
    elif maybe_alignment is not None:
        write_line(maybe_alignment.as_text())
    else:
        write_line(str(maybe_out))
    return 0


def describe_alignment(alignment: Alignment) -> str:
    """Where an alignment was read from, and why there."""
    chosen = alignment.candidate
    part = "mean of heads" if chosen.head is None else f"head {chosen.head + 1}"
    return (
        f"aligned by cross-attention, layer {chosen.layer + 1}, {part}: on {alignment.num_sentences} sentences it "
        f"agrees with leaving words out for {alignment.num_agreements} of {alignment.num_words} words"
    )


def as_object(explanation: Explanation, maybe_alignment: Alignment | None) -> dict[str, Any]:
    """An explanation with its stable JSON keys."""
    arrays = {name: values.astype(float).round(DIGITS).tolist() for name, values in explanation.arrays().items()}
    order = explanation.order
    return {
        "text": explanation.text,
        "model": explanation.description,
        "precision": explanation.precision,
        "num_parameters": explanation.num_parameters,
        "source": side_object(explanation.source),
        "outputs": [output_object(output) for output in explanation.outputs],
        "order": {"first": order.first, "second": order.second, "is_reordering": order.is_reordering},
        "boxes": [asdict(box) for box in explanation.boxes],
        "units": [list(span) for span in explanation.units],
        "left_out_texts": explanation.left_out_texts,
        "notes": explanation.notes,
        "arrays": arrays,
        "alignment": None if maybe_alignment is None else asdict(maybe_alignment),
    }


def side_object(side: Side) -> dict[str, Any]:
    """Tokens, words and which tokens make which word."""
    return {"tokens": side.tokens, "words": side.words, "spans": [list(span) for span in side.spans]}


def output_object(output: Output) -> dict[str, Any]:
    """An output without its arrays."""
    return {
        "text": output.text,
        "score": output.score,
        "score_difference": output.score_difference,
        "finished": output.finished,
        "target": side_object(output.target),
        "runners_up": [[list(one) for one in others] for others in output.runners_up],
    }
