"""The service over real connections, asked by the clients that people have."""

from collections.abc import Iterator
from urllib.error import HTTPError

import deepl
import pytest
from libretranslatepy import LibreTranslateAPI

from malmoi.translate import Translator
from serving_server import GOLDEN, Running, serving

SENTENCES = ("one small horse plays.", "two white dogs sleep.", "three red cats run.")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """What the model itself says."""
    translations = Translator.load(GOLDEN, device="cpu").translate(SENTENCES)
    return {source: one.text for source, one in zip(SENTENCES, translations, strict=True)}


def test_libretranslatepy(running: Running, expected: dict[str, str]) -> None:
    client = LibreTranslateAPI(f"{running.url}/")
    assert client.translate(SENTENCES[0], "en", "ko") == expected[SENTENCES[0]]
    text = f"{SENTENCES[1]} {SENTENCES[2]}\n\n{SENTENCES[0]}"
    assert client.translate(text, "auto", "ko") == (
        f"{expected[SENTENCES[1]]} {expected[SENTENCES[2]]}\n\n{expected[SENTENCES[0]]}"
    )
    languages = client.languages()
    assert {"code": "en", "name": "English", "targets": ["ko"]} in languages
    (best,) = [one for one in client.detect("This is a whole sentence of English.") if one["language"] == "en"]
    assert best["confidence"] > 50
    with pytest.raises(HTTPError) as fault:
        client.translate("x", "en", "de")
    assert fault.value.code == 400


def test_alternatives_and_lists(running: Running, expected: dict[str, str]) -> None:
    body = {"q": list(SENTENCES), "source": "en", "target": "ko", "alternatives": 2}
    answer = running.post("/translate", body).json
    assert answer["translatedText"] == [expected[source] for source in SENTENCES]
    for text, others in zip(answer["translatedText"], answer["alternatives"], strict=True):
        assert len({text, *others}) == len(others) + 1 and 1 <= len(others) <= 2
    one = running.post("/translate", {**body, "q": SENTENCES[0]}).json
    assert one == {"translatedText": expected[SENTENCES[0]], "alternatives": answer["alternatives"][0]}


def test_html_keeps_its_tags(running: Running, expected: dict[str, str]) -> None:
    html = (
        f'<div data-x="a>b"><p>{SENTENCES[0]} <!-- c --></p><b>{SENTENCES[1]}</b> <i translate="no">x &lt; y</i></div>'
    )
    body = {"q": [html, "plain &amp; <br> text"], "source": "en", "target": "ko", "format": "html"}
    answer = running.post("/translate", body).json["translatedText"]
    assert answer[0] == (
        f'<div data-x="a>b"><p>{expected[SENTENCES[0]]} <!-- c --></p><b>{expected[SENTENCES[1]]}</b> '
        '<i translate="no">x &lt; y</i></div>'
    )
    assert answer[1].count("<br>") == 1


KEPT = (
    "\u2603\u2603\u2603",
    "  \u2603 \u2603\n\n\u2603\t",
    f"\u2603\u2603\n{SENTENCES[0]}",
    f"{SENTENCES[1]}\n\n\u2603",
)
MARKED = (
    "<p>\u2603 <b>\u2603\u2603</b>\u2603 <i> \u2603</i>&amp;</p>",
    "<p>\u2603<b>\u2603\u2603</b>\u2603</p>\n<i>\u2603</i>",
)


def test_what_training_never_saw_is_given_back(running: Running, expected: dict[str, str]) -> None:
    """A sentence without a character that the model knows: clients would take an empty answer for a fault."""
    client = deepl.DeepLClient("any", server_url=running.url)
    libre = LibreTranslateAPI(f"{running.url}/")
    for text in KEPT:
        wanted = text
        for source, target in expected.items():
            wanted = wanted.replace(source, target)
        assert libre.translate(text, "en", "ko") == wanted
        result = client.translate_text(text, target_lang="KO")
        assert isinstance(result, deepl.TextResult) and result.text == wanted
        answer = running.post("/api/translate", {"model": "en-ko", "text": text, "details": True}).json
        assert answer["text"] == wanted and answer["notes"] and "given back as it is" in answer["notes"][0]
        (kept, *_) = [one for one in answer["sentences"] if one["score"] is None]
        assert kept["source"] == kept["target"] and kept["words"] == []
    for html in MARKED:
        body = {"q": html, "source": "en", "target": "ko", "format": "html", "alternatives": 1}
        assert running.post("/translate", body).json == {"translatedText": html, "alternatives": []}
        result = client.translate_text(html, target_lang="KO", tag_handling="html")
        assert isinstance(result, deepl.TextResult) and result.text == html


def test_the_client_of_argos_translate(running: Running, expected: dict[str, str]) -> None:
    """Its package asks for far more than its client needs, so that `make test` installs it without that."""
    pytest.importorskip("argostranslate.apis", reason="argostranslate is not installed")
    from argostranslate.apis import LibreTranslateAPI as ArgosClient  # pyright: ignore

    client = ArgosClient(running.url)
    assert client.translate(SENTENCES[0], "en", "ko") == expected[SENTENCES[0]]
    assert {"code": "en", "name": "English", "targets": ["ko"]} in client.languages()
    assert "en" in {one["language"] for one in client.detect("This is a whole sentence of English.")}
