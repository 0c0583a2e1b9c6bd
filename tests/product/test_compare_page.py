"""The page of a comparison in a real browser: it fits, it says everything in both languages, it asks for nothing."""

from pathlib import Path

import pytest

from browser import Browser
from compare_toys import make_findings
from malmoi.report.comparison import comparison_page

HOSTILE = ("<img src=x onerror=alert(1)> </script><script>throw 1</script>", "x" * 300, "말모이 " * 40)

pytestmark = pytest.mark.usefixtures("quiet")

OVERLAPS = """
[...document.querySelectorAll('svg.chart')].flatMap((chart) => {
  const texts = [...chart.querySelectorAll('text')];
  const boxes = texts.map((one) => one.getBoundingClientRect()).filter((one) => one.width);
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2));
}).length
"""
CUT_OFF = """
[...document.querySelectorAll('svg.chart, svg.map')].flatMap((chart) => {
  const room = chart.getBoundingClientRect();
  const texts = [...chart.querySelectorAll('text')];
  const boxes = texts.map((one) => one.getBoundingClientRect()).filter((one) => one.width);
  return boxes.filter((one) => one.left < room.left - 1 || one.right > room.right + 1
    || one.top < room.top - 1 || one.bottom > room.bottom + 1);
}).length
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(comparison_page(make_findings(num_seeds=2, num_segments=200)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [360, 420, 1280])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_nothing_sticks_out_or_lies_over_another(browser: Browser, page: Path, width: int, language: str) -> None:
    browser.open(page, width, is_dark=language == "ko")
    browser.choose("#language", language)
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.run("document.querySelectorAll('svg.chart').length") == 7
    assert browser.run(OVERLAPS) == 0
    assert browser.run(CUT_OFF) == 0


def test_the_language_changes_everywhere(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.choose("#language", "ko")
    assert browser.run("document.documentElement.lang") == "ko"
    assert browser.run("document.querySelector('#quality h2').innerText") == "품질"
    shown = browser.run("document.querySelector('main').innerText + document.querySelector('svg.chart').textContent")
    assert not any(words in shown.split("malmoi")[0] for words in ("better", "pairs", "memory", "Ahead"))
    assert browser.run(
        "[...document.querySelectorAll('svg text[lang=en]')].every((one) => !one.getBoundingClientRect().width)"
    )
    browser.choose("#language", "en")
    assert browser.run("document.querySelector('#quality h2').innerText") == "Quality"


def test_texts_of_markup_stay_texts(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(comparison_page(make_findings(HOSTILE)), encoding="utf-8")
    browser.open(path, 420)
    assert browser.run("document.images.length + document.querySelectorAll('main script').length") == 0
    assert browser.run("document.querySelector('.example dd').textContent") == HOSTILE[0]
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_it_can_be_read_by_keys_and_without_scripts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")
    assert browser.run("document.activeElement.id") == "language"
    browser.press("Tab")
    assert browser.run("document.activeElement.getAttribute('href')") == "#equal"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    # What scrolls can be reached, and every table's row begins with its heading.
    assert browser.run("[...document.querySelectorAll('.scroll')].every((one) => one.tabIndex === 0)")
    assert browser.run("[...document.querySelectorAll('tbody tr')].every((one) => one.firstChild.scope === 'row')")


def test_texts_can_be_told_from_their_ground(browser: Browser, page: Path) -> None:
    """Contrast of 4.5 for text and 3 for what charts are drawn with (WCAG 2.2), on light and dark ground."""
    script = """
    (() => {
      const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      const light = (name) => {
        canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
          .map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      return ['--ink', '--soft', '--s0', '--s1', '--s2', '--s3', '--s4', '--s5'].map((name) => {
        const [low, high] = [light(name), light('--ground')].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
      });
    })()
    """
    browser.open(page)
    light = browser.run(script)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    for ratios in (light, browser.run(script)):
        assert min(ratios[:2]) > 4.5 and min(ratios[2:]) > 3.0
