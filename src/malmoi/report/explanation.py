"""The page of an explanation: one HTML file that loads nothing from anywhere.

In: an `Explanation`; no model. Out: HTML text. Plain values go into the page as JSON, arrays as one byte a value,
deflated, in base64; `pages/explain/` holds what draws them. Whatever came from a user stands in the page as text alone:
in JSON that no tag can end, and in a title that is escaped.
"""

import base64
import json
import re
import zlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from malmoi.explain.words import Side

if TYPE_CHECKING:
    # What makes an explanation needs torch, a service that serves the page's policy does not.
    from malmoi.explain.result import Explanation, Output

Language = Literal["en", "ko"]

SCRIPTS = ("data.js", "draw.js", "attention.js", "path.js", "words.js", "model.js", "main.js")
LONGEST_TITLE = 80


def explanation_page(explanation: "Explanation", language: Language = "en") -> str:
    """The page; its reader can change the language that it opens in."""
    index, packed = pack(explanation.arrays())
    parts = {
        "language": language,
        "title": escape(explanation.text[:LONGEST_TITLE]),
        "style": read_part("style.css"),
        "script": script_text(),
        "data": as_json({**page_data(explanation), "arrays": index, "language": language, "texts": read_texts()}),
        "bytes": packed,
    }
    # In one pass, so that a sentence that spells a placeholder stays a sentence.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_part("page.html"))


def notebook_page(explanation: "Explanation") -> str:
    """The page in a frame, for a notebook."""
    return (
        f'<iframe srcdoc="{escape(explanation_page(explanation))}" title="malmoi explain" '
        'style="width: 100%; height: 800px; border: 0"></iframe>'
    )


def inline_elements() -> dict[str, str]:
    """What stands inside of the page's one `script` that runs and of its one `style`, to the letter: the same in every
    explanation, so that a policy may name their hashes."""
    parts = {"style": read_part("style.css"), "script": script_text()}
    template = read_part("page.html")
    return {
        name: template.partition(f"<{name}>")[2].partition(f"</{name}>")[0].replace(f"{{{{{name}}}}}", text)
        for name, text in parts.items()
    }


def script_text() -> str:
    """All that draws, in one function of its own."""
    return "(() => {\n'use strict';\n" + "\n".join(read_part(name) for name in SCRIPTS) + "})();"


def read_part(name: str) -> str:
    """A file of the page."""
    return (files("malmoi.report") / "pages" / "explain" / name).read_text(encoding="utf-8")


def read_texts() -> dict[str, dict[Language, str]]:
    """All words of the page, by key and language."""
    table: dict[str, list[str]] = json.loads(read_part("texts.json"))
    return {key: {"en": english, "ko": korean} for key, (english, korean) in table.items()}


def as_json(value: dict[str, Any]) -> str:
    """JSON that can stand inside of a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def pack(arrays: dict[str, NDArray[Any]]) -> tuple[dict[str, dict[str, Any]], str]:
    """Where each array lies among the bytes, and all bytes.

    A weight w is stored as 255 sqrt(w), rounded: small ones are kept finer, and none is off by more than 0.004. A value
    of either sign is stored as 128 + 127 sign(v) sqrt(|v| / scale), with the largest size as scale.
    """
    index: dict[str, dict[str, Any]] = {}
    stored: list[bytes] = []
    offset = 0
    for name, values in arrays.items():
        if name.startswith("order.") or name.endswith("log_probs"):
            # Few numbers, which stand in the JSON as they are.
            continue
        is_weight = name.split(".")[-1] in ("self", "cross")
        scale = None if is_weight else float(np.abs(values).max(initial=0.0)) or 1.0
        content = weight_bytes(values) if scale is None else signed_bytes(values, scale)
        index[name] = {"offset": offset, "shape": list(values.shape), "scale": scale}
        stored.append(content)
        offset += len(content)
    return index, base64.b64encode(zlib.compress(b"".join(stored))).decode("ascii")


def weight_bytes(weights: NDArray[Any]) -> bytes:
    """Values between 0 and 1."""
    return np.rint(255 * np.sqrt(np.clip(weights, 0.0, 1.0))).astype(np.uint8).tobytes()


def signed_bytes(values: NDArray[Any], scale: float) -> bytes:
    """Values between -scale and scale."""
    roots = np.sign(values) * np.sqrt(np.abs(values) / scale)
    return np.rint(128 + 127 * roots).astype(np.uint8).tobytes()


def page_data(explanation: "Explanation") -> dict[str, Any]:
    """All that the page shows but the arrays."""
    order, encoding = explanation.order, explanation.encoding
    return {
        "text": explanation.text,
        "description": explanation.description,
        "precision": explanation.precision,
        "numParameters": explanation.num_parameters,
        "notes": explanation.notes,
        "source": side_data(explanation.source),
        "outputs": [output_data(output) for output in explanation.outputs],
        "layers": {
            "encoder": list(explanation.attention),
            "decoder": [names_of(number, output, "self") for number, output in enumerate(explanation.outputs)],
            "cross": [names_of(number, output, "cross") for number, output in enumerate(explanation.outputs)],
        },
        "units": explanation.units,
        "unitNames": explanation.source.names(explanation.units),
        "leftOutTexts": explanation.left_out_texts,
        "encoding": None if encoding is None else {"kind": encoding.kind, "first": encoding.first},
        "order": {
            "first": order.first,
            "second": order.second,
            "tokens": order.tokens,
            "isReordering": order.is_reordering,
            "with": number_list(order.with_positions),
            "without": None if order.without_positions is None else number_list(order.without_positions),
        },
        "boxes": [
            {
                "kind": box.kind,
                "place": box.place,
                "repeat": box.repeat,
                "steps": [{"formula": step.formula, "shape": step.shape} for step in box.steps],
                "parameters": box.parameters,
                "multiply_adds": box.multiply_adds,
                "heads": box.heads,
                "is_shared": box.is_shared,
            }
            for box in explanation.boxes
        ],
    }


def names_of(number: int, output: "Output", which: str) -> list[str]:
    """The names of an output's arrays of one kind, by layer."""
    return [f"outputs.{number}.{name}" for name in output.attention if name.endswith(which)]


def output_data(output: "Output") -> dict[str, Any]:
    """An output but its arrays."""
    return {
        "text": output.text,
        "score": output.score,
        "difference": output.score_difference,
        "target": side_data(output.target),
        "input": side_data(output.target.as_input()),
        "probabilities": [round(float(np.exp(one)), 6) for one in output.log_probs],
        "runnersUp": [[(token, round(probability, 6)) for token, probability in one] for one in output.runners_up],
    }


def side_data(side: Side) -> dict[str, Any]:
    """Labels, and which tokens make which word."""
    return {"tokens": side.tokens, "words": side.words, "spans": side.spans}


def number_list(values: NDArray[Any]) -> list[float | None]:
    """Numbers as JSON can spell them."""
    return [None if np.isnan(one) else float(one) for one in values]
