"""The page of a comparison: its numbers are those of the JSON, its texts stay texts, it asks nobody for anything."""

import ast
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from compare_toys import NAMES, make_findings
from malmoi.report.charts import Line, line_chart, marker, number_ticks
from malmoi.report.comparison import comparison_page, read_part, read_texts
from malmoi.report.markup import mark

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)> & \"dogs\" 'sleep'",
    "{{script}} {{body}} {name} {value}",
)
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """What stands in the page: open elements, attributes by name, numbers with their paths."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: list[tuple[str, float, float, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.seen.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            of, value, scale = (values[name] or "" for name in ("data-of", "value", "data-scale"))
            self.numbers.append((of, float(ast.literal_eval(value)), float(scale), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            *front, _ = self.numbers[-1]
            self.numbers[-1] = (*front, data)  # type: ignore[assignment]


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def at(found: Any, path: str) -> Any:
    for step in path.split("/"):
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_every_number_of_the_page_is_one_of_the_json(num_seeds: int) -> None:
    findings = make_findings(num_seeds=num_seeds)
    found = json.loads(json.dumps(findings.to_json()))
    numbers = read(comparison_page(findings)).numbers
    assert len(numbers) > 100
    for path, value, scale, text in numbers:
        assert value == at(found, path), path
        digits = len(text.partition(".")[2])
        shown = float(text.replace(",", "").replace("\N{MINUS SIGN}", "-"))
        assert abs(shown - value / scale) <= 0.5 * 10**-digits + 1e-9, path
    paths = {path for path, *_ in numbers}
    for name in NAMES:
        assert {f"quality/scores/{name}/0/mean", f"quality/scores/{name}/1/interval/0"} <= paths
    assert {"systems/2/cost/training_seconds", "systems/0/cost/peak_bytes", "systems/1/runs/0/target_tokens"} <= paths
    assert ("quality/scores/seq2seq/0/deviation" in paths) == (num_seeds > 1)
    # What was not measured is a dash for all systems, and then has no row.
    assert not any("bytes_before" in path for path in paths)


def test_who_is_ahead_is_told_in_one_direction() -> None:
    """The best system against each other one: a positive difference, whichever stands first in the pairing."""
    page = comparison_page(make_findings())
    verdicts = page[page.index('<ul class="verdicts">') : page.index("</ul>")]
    assert "Transformer</span> is best" in verdicts
    assert verdicts.count('<span lang="en">Ahead of') == 2
    assert "\N{MINUS SIGN}" not in verdicts.split("</li>")[1]


def test_nobody_is_ahead_by_less_than_nothing() -> None:
    """Best by the mean of seeds, behind by all outputs together: that is level, and no lead."""
    findings = make_findings()
    pairings = tuple(
        replace(one, difference=replace(one.difference, difference=-0.01, interval=(-1.0, 0.9)))
        for one in findings.quality.pairings
    )
    page = comparison_page(replace(findings, quality=replace(findings.quality, pairings=pairings)))
    verdicts = page[page.index('<ul class="verdicts">') : page.index("</ul>")]
    assert verdicts.count('<span lang="en">Level with') == 2 and "Ahead of" not in verdicts


def test_hostile_texts_stay_texts() -> None:
    page = comparison_page(make_findings(HOSTILE))
    reader = read(page)
    tags = {tag for tag, _ in reader.seen}
    assert [tag for tag, _ in reader.seen].count("script") == 1 and "img" not in tags
    assert not any(name.startswith("on") for _, attributes in reader.seen for name in attributes)
    text = unescape(re.sub(r"<[^>]+>", "", page))
    for one in HOSTILE:
        assert one in text


def test_the_page_claims_no_more_than_was_held_equal() -> None:
    findings = make_findings()
    same = "the same batches in the same order"
    assert same in comparison_page(findings)
    first, *others = findings.systems
    other = replace(first, settings={**first.settings, "training.batch_tokens": "7"})
    page = comparison_page(replace(findings, systems=(other, *others)))
    assert same not in page and "batches of different sizes" in page
    assert "label smoothing, and how outputs are searched for" in page
    other = replace(first, settings={**first.settings, "training.label_smoothing": "0.7"})
    assert "how outputs are searched for" not in comparison_page(replace(findings, systems=(other, *others)))
    given = comparison_page(replace(findings, rule="given"))
    assert "malmoi trained" not in given and "were trained before" in given


def test_the_page_asks_for_nothing() -> None:
    page = comparison_page(make_findings())
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page)
    reader = read(page)
    assert not {tag for tag, _ in reader.seen} & {"link", "iframe", "img", "object", "form"}
    assert all((values["href"] or "").startswith("#") for _, values in reader.seen if "href" in values)
    assert not any("src" in values for _, values in reader.seen)
    assert "default-src 'none'" in page


def test_every_chart_is_named_by_its_caption() -> None:
    reader = read(comparison_page(make_findings()))
    ids = [values["id"] for _, values in reader.seen if "id" in values]
    assert len(ids) == len(set(ids))
    named = [values["aria-labelledby"] for _, values in reader.seen if "aria-labelledby" in values]
    # Six learning curves, quality by length, two maps.
    assert len(named) == 9 and set(named) <= set(ids)


def test_both_languages_have_all_texts() -> None:
    texts = read_texts()
    for key, both in texts.items():
        assert both["en"].strip() and both["ko"].strip(), key
        assert set(re.findall(r"\{(\w+)\}", both["en"])) == set(re.findall(r"\{(\w+)\}", both["ko"])), key
        assert re.search("[가-힣]", both["ko"]) and not re.search("[가-힣]", both["en"]), key
    page = comparison_page(make_findings(), "ko")
    assert page.startswith('<!doctype html>\n<html lang="ko">')
    assert page.count('<span lang="en">') == page.count('<span lang="ko">') > 50


def test_systems_can_be_told_apart_without_colour() -> None:
    shapes = {re.sub(r'class="[^"]*"', "", marker(style, 50.0, 50.0)) for style in range(6)}
    assert len(shapes) == 6
    style = read_part("style.css")
    dashes = [re.search(rf"\.line\.s{number} {{ stroke-dasharray: ([\d ]+|none)", style) for number in range(6)]
    assert len({one[1] for one in dashes if one}) == 6


def test_a_chart_holds_all_points_and_intervals() -> None:
    lines = [Line(0, "a <b>", [(0.0, 1.0, 0.5, 9.0), (10.0, -3.0, None, None)])]
    chart = line_chart(lines, number_ticks([0.0, 10.0]), identity="x", x_label="minutes")
    heights = [float(one) for one in re.findall(r'<path class="bar s0" d="M[\d.]+ ([\d.]+)V([\d.]+)"/>', chart)[0]]
    assert min(heights) >= 0 and max(heights) <= 260
    assert "a &lt;b&gt;: 1" in chart and chart.count("<circle") == 2


@pytest.mark.parametrize(
    ("output", "references", "expected"),
    [
        ("a dog runs", ("a dog runs",), "a dog runs"),
        ("a cat runs", ("a dog runs",), "a <mark>cat</mark> runs"),
        ("a runs", ("a dog runs",), 'a <mark class="gap"></mark> runs'),
        ("a cat runs", ("one dog sleeps", "the cat runs"), "<mark>a</mark> cat runs"),
        ("HH AH L", ("HH AH L OW",), 'HH AH L <mark class="gap"></mark>'),
        ("walkd", ("walked",), 'walk<mark class="gap"></mark>d'),
        ("<b>", ("<i>",), "&lt;<mark>b</mark>&gt;"),
        ("", ("a dog",), ""),
    ],
)
def test_differences_are_marked(output: str, references: tuple[str, ...], expected: str) -> None:
    assert mark(output, references) == expected


@pytest.mark.parametrize("name", ["main.js", "style.css", "page.html", "texts.json"])
def test_files_of_the_page_are_short(name: str) -> None:
    assert 15 < read_part(name).count("\n") <= 400
    assert "innerHTML" not in read_part(name)
