"""The web page over the real service, in a real browser: what people see is what the model says."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser
from golden.make import MODEL
from malmoi.serving.keys import Keys
from malmoi.translate import Translator
from page_service import run_rows
from serving_server import Running, serving

SOURCE = "two small dogs sleep."
OUTPUT = "document.querySelector('#output').innerText"
WHOLE = "document.querySelectorAll('#output .word').length > 0"
ASKED = "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('{}')).length"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that go on: the second is half as wide."""
    folder = tmp_path_factory.mktemp("runs")
    for name, width, until in (("wide", 64, 400), ("narrow", 32, 200)):
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(f'[model]\narchitecture = "transformer"\nwidth = {width}\n', "utf-8")
        lines = [json.dumps(row) + "\n" for row in run_rows(1.0, until)]
        (folder / name / "metrics.jsonl").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="module")
def running(runs: Path) -> Iterator[Running]:
    with serving((f"en-ko={MODEL}",), runs=runs) as found:
        yield found


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Browser]:
    """The page, opened for the first time; whatever a test does, no error and no word to anybody else."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.visit(f"{running.url}/")
    browser.run("localStorage.clear()")
    browser.visit(f"{running.url}/?again")
    yield browser
    browser.run("1")
    assert browser.complaints == []
    places = ("about:srcdoc", f"{running.url}/")
    assert [one for one in browser.requests if not one.startswith(places)] == []


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load(MODEL, device="cpu")


def write(page: Browser, text: str) -> None:
    page.run("document.querySelector('#source').focus()")
    page.type(text)


def test_what_is_typed_is_translated_as_the_model_translates_it(page: Browser, translator: Translator) -> None:
    (said,) = translator.translate([SOURCE])
    write(page, SOURCE)
    page.wait(WHOLE)
    assert page.run(OUTPUT) == said.text
    assert page.run(ASKED.format("api/stream")) == 1
    words = "[...document.querySelectorAll('#output .word')].map((one) => one.textContent)"
    assert page.run(words) == said.text.split()
    page.hover('[data-place="0.0"]')
    page.wait("document.querySelectorAll('.mirror .on').length > 0")
    page.wait(
        f"[...document.querySelectorAll('[role=status]')].some((one) => one.textContent === {json.dumps(said.text)})"
    )


def test_several_sentences_keep_their_places(page: Browser, translator: Translator) -> None:
    first, second = (one.text for one in translator.translate(["one small cat sleeps.", SOURCE]))
    write(page, f"one small cat sleeps.\n\n{SOURCE}")
    page.wait(WHOLE)
    assert page.run("document.querySelector('#output').textContent") == f"{first}\n\n{second}"
    page.hover('[data-place="1.0"]')
    page.wait("Number(document.querySelector('.mirror .on')?.dataset.start) > 21")


def test_places_are_those_of_the_text_whatever_its_characters(page: Browser) -> None:
    text = "🤗 two small dogs sleep. 👩‍👩‍👧 one small cat sleeps."
    write(page, text)
    page.wait(WHOLE)
    words = page.run("[...document.querySelectorAll('.mirror i')].map((one) => one.textContent)")
    assert [word for word in words if word.isascii()] == [word for word in text.split() if word.isascii()]
    assert page.run("document.querySelector('.mirror').textContent") == text + "\u200b"
    page.hover('[data-place="1.0"]')
    page.wait("Number(document.querySelector('.mirror .on')?.dataset.start) > 24")


def test_another_word_is_chosen_by_keys_and_the_rest_follows(page: Browser, translator: Translator) -> None:
    write(page, SOURCE)
    page.wait(WHOLE)
    page.run("document.querySelector('[data-place=\"0.0\"]').focus()")
    page.press("Enter")
    page.wait("document.querySelectorAll('[role=option]').length > 1")
    first = page.run("document.querySelector('[data-place=\"0.0\"]').textContent")
    assert page.run("document.querySelector('[aria-selected=true] .text').textContent") == first
    page.press("ArrowDown")
    other = page.run("document.querySelector('[role=option].active .text').textContent")
    page.press("Enter")
    page.wait(f"document.querySelector('[data-place=\"0.0\"]')?.textContent === {json.dumps(other)}")
    (forced,) = translator.translate([SOURCE], prefixes=[other])
    assert other != first and page.run(OUTPUT) == forced.text
    page.wait(f"document.activeElement.textContent === {json.dumps(other)}")


def test_a_whole_other_translation_is_taken(page: Browser, translator: Translator) -> None:
    write(page, SOURCE)
    page.wait(WHOLE)
    other = page.run("document.querySelector('.alternatives li button span').textContent")
    page.click(".alternatives li button")
    page.wait("document.querySelector('#undo') !== null")
    assert page.run(OUTPUT).startswith(other)


def test_history_survives(page: Browser, running: Running) -> None:
    write(page, SOURCE)
    page.wait("document.querySelector('.history') !== null")
    page.visit(f"{running.url}/")
    assert page.run("document.querySelector('.entry span').textContent") == SOURCE


def test_a_sentence_is_explained(page: Browser) -> None:
    write(page, SOURCE)
    page.wait(WHOLE)
    page.choose("#language", "ko")
    page.click("#explain")
    page.until(lambda: page.frame_says("document.documentElement.dataset.ready") == "yes", "the frame is ready")
    assert page.frame_says("document.querySelector('#source-text').textContent") == SOURCE
    assert page.frame_says("document.documentElement.lang") == "ko"
    assert page.frame_says("getComputedStyle(document.querySelector('.top')).display") == "flex"


def test_runs_are_followed_while_they_go_on(page: Browser, runs: Path) -> None:
    page.run("location.hash = 'runs'")
    page.wait("document.querySelectorAll('.uplot').length === 2")
    page.wait("document.querySelectorAll('.differs').length === 1")
    differing = "document.querySelector('.differs').innerText.split(/\\s+/)"
    assert page.run(differing)[2:] in (["model.width", "64", "32"], ["model.width", "32", "64"])
    with (runs / "narrow" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in run_rows(1.0, 300)[-3:])
    label = "document.querySelector('.plot').getAttribute('aria-label')"
    page.wait(f"/narrow: best [0-9.]+ at step 300/.test({label})")


def test_a_key_is_asked_for_and_opens(browser: Browser, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    key = keys.add("somebody", None)
    keys.close()
    with serving((f"en-ko={MODEL}",), keys=tmp_path / "keys.sqlite") as running:
        browser.visit(f"{running.url}/")
        write(browser, SOURCE)
        browser.wait("document.querySelector('.fault')?.textContent.startsWith('The key is missing')")
        browser.run("document.querySelector('#key').focus()")
        browser.type(key)
        browser.press("Enter")
        browser.wait("document.querySelector('.key button').textContent === 'In use'")
        assert not browser.run(WHOLE)
        write(browser, " ")
        browser.wait(WHOLE)
        assert browser.run("document.querySelector('.fault')") is None


def test_the_page_stands_under_a_strict_policy(running: Running) -> None:
    with urllib.request.urlopen(f"{running.url}/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        tag = answer.headers["ETag"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'self'"
    assert "unsafe" not in policy
    assert running.get("/", **{"If-None-Match": tag}).status == 304
    assert running.get("/vendor/preact.js").headers["content-type"].startswith("text/javascript")
    for path in ("/..%2fapp.py", "/vendor/../../app.py", "/page_files.py", "/vendor"):
        assert running.get(path).status == 404
