"""The page of an explanation as text: what it holds, how large it is, and that a sentence stays a sentence."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest
import torch

from explain_toys import make_model
from golden.make import MODEL
from malmoi.checkpoint import Model
from malmoi.config.model import TransformerConfig
from malmoi.explain import explain
from malmoi.explain.replay import replay
from malmoi.explain.result import Explanation
from malmoi.explain.words import make_side
from malmoi.report.explanation import SCRIPTS, explanation_page, pack, read_part, read_texts
from malmoi.text.ids import END_ID

TEXT = "two small dogs sleep."
TOO_LARGE = 6_000_000


def element(page: str, name: str) -> str:
    """What stands in a script element."""
    found = re.findall(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_the_arrays_come_back() -> None:
    explanation = explain(MODEL, TEXT)
    page = explanation_page(explanation)
    data = json.loads(element(page, "data"))
    stored = np.frombuffer(zlib.decompress(base64.b64decode(element(page, "bytes"))), dtype=np.uint8)
    used = 0
    for name, entry in data["arrays"].items():
        values = explanation.arrays()[name]
        here = stored[entry["offset"] : entry["offset"] + values.size].astype(float).reshape(values.shape)
        used += values.size
        assert entry["shape"] == list(values.shape)
        if entry["scale"] is None:
            assert np.abs((here / 255) ** 2 - values).max() < 0.004
            assert not here[values == 0].any()
        else:
            roots = (here - 128) / 127
            assert np.abs(np.sign(roots) * roots**2 * entry["scale"] - values).max() < 0.01 * entry["scale"]
    assert used == len(stored)
    assert data["source"]["words"] == ["two", "small", "dogs", "sleep.", "</s>"]
    assert data["outputs"][0]["input"]["tokens"][0] == "<s>"


def test_bytes_of_both_kinds() -> None:
    index, packed = pack({"a.self": np.array([[0.0, 1.0, 0.25]]), "b": np.array([-2.0, 0.0, 0.5])})
    assert list(zlib.decompress(base64.b64decode(packed))) == [0, 255, 128, 1, 128, 192]
    assert index["b"] == {"offset": 3, "shape": [3], "scale": 2.0}


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!-- <b>two</b> & \"dogs\" 'sleep'", "{{script}} {{data}}"]
)
def test_a_sentence_of_markup_stays_a_sentence(text: str) -> None:
    model = make_model(TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8), [text])
    page = explanation_page(explain(model, text))
    # Three scripts open and close, and none of them is the sentence's.
    assert page.count("<script") == page.count("</script>") == 3
    assert json.loads(element(page, "data"))["text"] == text
    title = re.search(r"<title>malmoi explain: (.*?)</title>", page)
    assert title is not None and "<" not in title[1] and unescape(title[1]) == text
    assert "<b>" not in page and "<!--" not in page


def test_the_page_asks_for_nothing() -> None:
    page = explanation_page(explain(MODEL, TEXT))
    rest = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", rest.replace(element(page, "bytes"), ""))
    assert not re.search(r"<(link|img|iframe)\b|\b(src|href)=", rest)
    assert "default-src 'none'" in page


def test_both_languages_have_all_texts() -> None:
    texts = read_texts()
    scripts = "\n".join(map(read_part, SCRIPTS))
    asked = set(re.findall(r'data-t="([a-z-]+)"', read_part("page.html")))
    asked |= set(re.findall(r'\bt\("([a-z_-]+)"', scripts))
    assert len(asked) > 40 and asked <= set(texts)
    for key, both in texts.items():
        assert both["en"].strip() and both["ko"].strip(), key
        assert set(re.findall(r"\{(\w+)\}", both["en"])) == set(re.findall(r"\{(\w+)\}", both["ko"])), key
        assert re.search("[가-힣]", both["ko"]), key
        assert not re.search("[가-힣]", both["en"]), key
        # Whatever is not asked for by its whole name is asked for by its first part.
        assert key in asked or key in scripts or re.search(rf"`{key.split('-')[0]}-\$\{{", scripts), key
    assert explanation_page(explain(MODEL, TEXT), "ko").startswith('<!doctype html>\n<html lang="ko">')


def lengthen(explanation: Explanation, model: Model, text: str) -> Explanation:
    """The same explanation with tokens and attention of a longer text, which the model is made to say itself."""
    ids = (*model.tokenizers.encode_source(text), END_ID)
    side = make_side(model.tokenizers.source, ids)
    (found,) = replay(model.network, [ids], [ids], 5)
    parts: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, weights in found.attention.items():
        parts[name.split(".")[0]][name] = weights
    drops = np.random.default_rng(1).normal(size=(len(side.units), len(ids))).astype(np.float32)
    output = replace(
        explanation.outputs[0],
        target=side,
        log_probs=found.log_probs,
        runners_up=tuple(tuple((str(index), share) for index, share in one) for one in found.runners_up),
        attention=parts["decoder"],
        drops=drops,
    )
    return replace(explanation, source=side, outputs=(output,), attention=parts["encoder"], units=side.units)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_two_hundred_words_six_layers_and_eight_heads_are_small_enough(sharpness: float) -> None:
    """With attention that is spread out, as at the start of training, and with attention that is sharp."""
    text = " ".join(f"w{number}" for number in range(200))
    model = make_model(TransformerConfig(width=32, heads=8, feed_forward=16), [text])
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "attention.input" in name or "attention.query" in name:
                parameter *= sharpness
    explanation = lengthen(explain(model, "w0 w1"), model, text)
    assert explanation.attention["encoder.5.self"].shape == (8, 201, 201)
    assert explanation.outputs[0].attention["decoder.5.cross"].shape == (8, 201, 201)
    assert 1_000_000 < len(explanation_page(explanation).encode()) < TOO_LARGE


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    explanation: Any = explain(MODEL, TEXT)
    shown = explanation._repr_html_()
    inside = re.fullmatch(r'<iframe srcdoc="([^"]*)"[^>]*></iframe>', shown)
    assert inside is not None and unescape(inside[1]) == explanation_page(explanation)


@pytest.mark.parametrize("name", [*SCRIPTS, "style.css", "page.html", "texts.json"])
def test_files_of_the_page_are_short(name: str) -> None:
    assert 20 < read_part(name).count("\n") <= 400
    assert "innerHTML" not in read_part(name)
