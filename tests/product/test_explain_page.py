"""The page of an explanation in a real browser: pointed at, moved through by keys, in both languages."""

from pathlib import Path

import pytest

from browser import Browser
from explain_toys import make_model
from golden.make import MODEL
from malmoi.checkpoint import load_model
from malmoi.config.model import RnnConfig
from malmoi.explain import explain
from malmoi.report.explanation import explanation_page

TEXT = "two small dogs sleep."
MARKUP = "<img src=x onerror=alert(1)> </script><script>throw 1</script>"
WORD = "#reader .from-row .word:nth-child({})"
SOURCE_WEIGHTS = "[...document.querySelectorAll('#reader .from-column .weight')].map((one) => one.textContent.trim())"

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "explain.html"
    path.write_text(explanation_page(explain(load_model(MODEL), TEXT, n_best=2)), encoding="utf-8")
    return path


def test_pointing_at_a_word_shows_where_it_looks(browser: Browser, page: Path) -> None:
    browser.open(page)
    weights = explain(MODEL, TEXT).outputs[0].attention["decoder.0.cross"].mean(0)
    browser.hover(WORD.format(2))
    assert browser.run("document.querySelector('#readout').textContent").startswith("개 looks most at: dogs")
    shown = [float(value or 0) for value in browser.run(SOURCE_WEIGHTS)]
    # The word is tokens 3 and 4; "dogs" is tokens 6 to 10 of the source.
    assert abs(shown[2] - weights[3:5, 6:11].sum(1).mean()) < 0.01
    assert abs(sum(shown) - 1) < 0.03
    assert browser.run("document.querySelectorAll('#reader .lines path').length") >= 1
    browser.hover("#reader .from-column .word:nth-child(4)")
    assert "is looked at most by" in browser.run("document.querySelector('#readout').textContent")


def test_layer_head_kind_and_units_change_the_picture(browser: Browser, page: Path) -> None:
    browser.open(page)
    first = browser.run("document.querySelector('#large canvas').toDataURL()")
    browser.choose("#head", "1")
    second = browser.run("document.querySelector('#large canvas').toDataURL()")
    assert first != second
    assert browser.run("document.querySelector('#grid [aria-pressed=true]').title") == "layer 1, head 2"
    browser.choose("#layer", "rollout")
    assert browser.run("[document.querySelector('#head').value, document.querySelectorAll('#head option').length]") == [
        "mean",
        1,
    ]
    browser.click("[name=units][value=tokens]")
    assert browser.run("document.querySelectorAll('#reader .from-row .word').length") == 12
    browser.click("[name=kind][value=decoder]")
    assert browser.run("document.querySelector('#reader .from-column .word').textContent").startswith("<s>")
    assert browser.run("document.querySelectorAll('#reader .hidden-by-mask').length") == 0
    browser.hover(WORD.format(1))
    # The first token may look at the start symbol alone: all others lie in its future.
    assert browser.run("document.querySelectorAll('#reader .hidden-by-mask').length") == 11


def test_everything_can_be_done_by_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#grid [aria-pressed=true]').focus()")
    browser.press("ArrowLeft")
    assert browser.run("document.activeElement.title") == "layer 1, head 2"
    assert browser.run("document.querySelector('#head').value") == "1"
    browser.run("document.querySelector('#reader .from-row .word').focus()")
    browser.press("ArrowRight")
    assert browser.run("document.activeElement.textContent").startswith("개")
    assert browser.run("document.querySelector('#readout').textContent").startswith("개 looks most at")
    browser.press("Tab")
    assert browser.run("document.activeElement.className").startswith("map")
    browser.press("ArrowDown")
    assert browser.run("document.querySelector('#readout').textContent").startswith("개 looks at two")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_language_changes_everywhere(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.choose("#language", "ko")
    assert browser.run("document.documentElement.lang") == "ko"
    assert browser.run("document.querySelector('#looking h2').textContent") == "어디를 보는가"
    left = browser.run("document.querySelector('main').innerText")
    assert not any(word in left for word in ("looks", "parameters", "Layer", "probability", "token"))
    browser.choose("#language", "en")
    assert "looks" in browser.run("document.querySelector('main').innerText")


def test_another_output_of_the_search(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.choose("#output", "1")
    expected = explain(MODEL, TEXT, n_best=2).outputs[1]
    assert browser.run("document.querySelector('#output-text').textContent") == expected.text
    tokens = "[...document.querySelectorAll('#scores th.token')].map((one) => one.textContent)"
    assert browser.run(tokens) == list(expected.target.tokens)


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
def test_nothing_sticks_out(browser: Browser, page: Path, width: int, is_dark: bool) -> None:
    browser.open(page, width, is_dark=is_dark)
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_markup_is_text_and_recurrent_systems_are_shown(browser: Browser, tmp_path: Path, attention: str) -> None:
    config = RnnConfig.model_validate({"attention": attention, "width": 8, "hidden": 8})
    path = tmp_path / "page.html"
    path.write_text(explanation_page(explain(make_model(config, [MARKUP]), MARKUP)), encoding="utf-8")
    browser.open(path)
    assert browser.run("document.querySelector('#source-text').textContent") == MARKUP
    assert browser.run("document.images.length + document.querySelectorAll('main script').length") == 0
    assert browser.run("document.querySelector('#nothing').hidden") == (attention != "none")
    assert browser.run("document.querySelector('#attention').hidden") == (attention == "none")
