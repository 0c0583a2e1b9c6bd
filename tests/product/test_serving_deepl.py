"""DeepL's own client against the service, and what it must be told."""

from collections.abc import Iterator

import deepl
import pytest

from malmoi.translate import Translator
from serving_server import GOLDEN, Running, serving

SENTENCES = ("one small horse plays.", "two white dogs sleep.", "three red cats run.")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def client(running: Running) -> deepl.DeepLClient:
    return deepl.DeepLClient("any", server_url=running.url)


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    translations = Translator.load(GOLDEN, device="cpu").translate(SENTENCES)
    return {source: one.text for source, one in zip(SENTENCES, translations, strict=True)}


def test_texts(client: deepl.DeepLClient, expected: dict[str, str]) -> None:
    one = client.translate_text(SENTENCES[0], target_lang="KO")
    assert isinstance(one, deepl.TextResult)
    assert (one.text, one.detected_source_lang, one.billed_characters) == (expected[SENTENCES[0]], "EN", 22)
    many = client.translate_text(list(SENTENCES), source_lang="EN", target_lang="KO", context="A farm.")
    assert isinstance(many, list) and [each.text for each in many] == [expected[source] for source in SENTENCES]


def test_sentences_are_cut_as_asked(client: deepl.DeepLClient, expected: dict[str, str]) -> None:
    text = f"{SENTENCES[0]}\n{SENTENCES[1]}"
    result = client.translate_text(text, target_lang="KO", split_sentences=deepl.SplitSentences.ALL)
    assert isinstance(result, deepl.TextResult)
    assert result.text == f"{expected[SENTENCES[0]]}\n{expected[SENTENCES[1]]}"
    whole = client.translate_text(text, target_lang="KO", split_sentences=deepl.SplitSentences.OFF)
    assert isinstance(whole, deepl.TextResult) and "\n" not in whole.text


def test_html(client: deepl.DeepLClient, expected: dict[str, str]) -> None:
    html = f'<p class="x">{SENTENCES[0]}</p><p translate="no">{SENTENCES[1]}</p><ul><li><b>{SENTENCES[2]}</b></ul>'
    result = client.translate_text(html, target_lang="KO", tag_handling="html")
    assert isinstance(result, deepl.TextResult)
    assert result.text == (
        f'<p class="x">{expected[SENTENCES[0]]}</p><p translate="no">{SENTENCES[1]}</p>'
        f"<ul><li><b>{expected[SENTENCES[2]]}</b></ul>"
    )
    assert result.billed_characters == len(html)


def test_languages_and_usage(client: deepl.DeepLClient) -> None:
    assert [str(one) for one in client.get_source_languages()] == ["EN"]
    (target,) = client.get_target_languages()
    assert (str(target), target.name, target.supports_formality) == ("KO", "Korean", False)
    usage = client.get_usage()
    assert usage.character.valid and usage.character.count == 0 and not usage.any_limit_reached


def test_what_is_not_served_is_refused(client: deepl.DeepLClient, running: Running) -> None:
    for arguments in (
        {"target_lang": "DE"},
        {"target_lang": "KO", "source_lang": "FR"},
        {"target_lang": "KO", "tag_handling": "xml"},
        {"target_lang": "KO", "formality": "more"},
    ):
        with pytest.raises(deepl.DeepLException, match=r"not supported|not|one form"):
            client.translate_text("x", **arguments)
    client.translate_text("x", target_lang="KO", formality="prefer_more")
    with pytest.raises(deepl.DeepLException):
        client.list_glossaries()
    for method, path in (("GET", "/v2/glossaries"), ("POST", "/v2/document"), ("GET", "/v3/glossaries")):
        reply = running.ask(method, path)
        assert reply.status == 404 and len(reply.json) == 1 and next(iter(reply.json)) in ("message", "error")


def test_forms_with_repeated_texts(running: Running, expected: dict[str, str]) -> None:
    """As the client for Node sends them; target languages in lower case."""
    body = b"text=one+small+horse+plays.&text=two+white+dogs+sleep.&target_lang=ko&split_sentences=1"
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    answer = running.ask("POST", "/v2/translate", body, headers).json
    assert [one["text"] for one in answer["translations"]] == [expected[source] for source in SENTENCES[:2]]
    assert running.ask("GET", "/v2/languages?type=target").json[0]["language"] == "KO"


def test_more_than_fifty_texts_are_refused(running: Running) -> None:
    assert running.post("/v2/translate", {"text": ["a"] * 51, "target_lang": "KO"}).status == 400
    assert running.post("/v2/translate", {"text": "a", "target_lang": "KO"}).status == 400
    assert running.post("/v2/translate", {"text": [], "target_lang": "KO"}).status == 400
