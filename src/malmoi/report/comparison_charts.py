"""The pictures of a comparison: learning curves, quality by length, attention.

In: `Findings`, and the page's ways to say words and to name a system. Out: figures as markup.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from statistics import fmean

from malmoi.report.charts import WIDE, Line, Ticks, attention_map, line_chart, number_ticks, plain
from malmoi.report.findings import Findings, Point, SystemFindings

Say = Callable[..., str]
Name = Callable[[int], str]

AXES: dict[str, Callable[[Point], float]] = {
    "axis-updates": lambda point: point.step,
    "axis-tokens": lambda point: point.target_tokens / 1e6,
    "axis-minutes": lambda point: point.seconds / 60,
}


def legend(findings: Findings, named: Name) -> str:
    return '<p class="legend">' + "".join(named(place) for place in range(len(findings.systems))) + "</p>"


def figure(identity: str, caption: str, chart: str) -> str:
    return f'<figure><figcaption id="{identity}">{caption}</figcaption>{chart}</figure>'


def learning_charts(findings: Findings, say: Say, named: Name) -> str:
    """Each measure of validation against updates, tokens and time; the mean of the seeds, and a curve for each of them
    against time, which none shares with another."""
    measures: list[tuple[str, Callable[[Point], float | None]]] = [(say("loss"), lambda point: point.loss)]
    if findings.curve_label is not None:
        direction = say("higher" if findings.curve_is_better_higher else "lower")
        measures.append((f"{escape(findings.curve_label)} {direction}", lambda point: point.score))
    parts = [legend(findings, named)]
    for number, (title, value_of) in enumerate(measures):
        charts: list[str] = []
        for name, x_of in AXES.items():
            lines = [
                Line(place, system.label, mean_curve(system, x_of, value_of))
                for place, system in enumerate(findings.systems)
            ]
            if not any(line.points for line in lines):
                continue
            identity = f"curve-{number}-{name}"
            ticks = number_ticks([x for line in lines for x, *_ in line.points])
            charts.append(figure(identity, title, line_chart(lines, ticks, identity=identity, x_label=say(name))))
        parts.append(f'<div class="charts">{"".join(charts)}</div>')
    return "".join(parts)


def mean_curve(
    system: SystemFindings, x_of: Callable[[Point], float], value_of: Callable[[Point], float | None]
) -> list[tuple[float, float, float | None, float | None]]:
    """Means over the seeds at each validation that all of them reached, with the lowest and the highest as interval."""
    curve: list[tuple[float, float, float | None, float | None]] = []
    for points in zip(*(run.points for run in system.runs), strict=False):
        values = [value for point in points if (value := value_of(point)) is not None and math.isfinite(value)]
        if len(values) == len(points):
            low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
            curve.append((fmean(x_of(point) for point in points), fmean(values), low, high))
    return curve


def length_chart(findings: Findings, say: Say, named: Name) -> str:
    """Scores by length with 95 % intervals; systems stand a little apart so that intervals can be told apart."""
    lengths, count = findings.quality.lengths, len(findings.systems)
    lines: list[Line] = []
    for place, system in enumerate(findings.systems):
        shift = (place - (count - 1) / 2) * 0.12
        points = [
            (number + shift, row.values[system.name], *row.intervals[system.name])
            for number, row in enumerate(lengths.rows)
        ]
        lines.append(Line(place, system.label, points))
    ticks = Ticks(
        [(number, plain(row.label)) for number, row in enumerate(lengths.rows)], -0.5, len(lengths.rows) - 0.5
    )
    direction = say("higher" if lengths.higher_is_better else "lower")
    chart = line_chart(lines, ticks, identity="length-chart", x_label=say(f"length-{lengths.unit}"), width=WIDE)
    caption = f"{escape(lengths.label)} {direction}"
    return legend(findings, named) + f'<div class="charts one">{figure("length-chart", caption, chart)}</div>'


def attention_pictures(findings: Findings, say: Say, named: Name) -> str:
    """Systems side by side, sentence by sentence."""
    places = {system.name: place for place, system in enumerate(findings.systems)}
    parts = [f"<p>{say('attention-text')}</p>"]
    for number, pictures in groupby(findings.attention, key=lambda one: one.number):
        maps: list[str] = []
        for picture in pictures:
            identity = f"attention-{number}-{places[picture.system]}"
            drawn = attention_map(picture, style=places[picture.system], identity=identity)
            maps.append(
                figure(identity, named(places[picture.system]), f'<div class="scroll" tabindex="0">{drawn}</div>')
            )
        parts.append(f'<h3>{say("pair", number=f"{number:,}")}</h3><div class="maps">{"".join(maps)}</div>')
    silent = names_without(findings, places)
    if silent:
        parts.append(f"<p>{say('no-attention', names=escape(', '.join(silent)))}</p>")
    return "".join(parts)


def names_without(findings: Findings, places: dict[str, int]) -> Sequence[str]:
    """Labels of the systems that have no attention to show."""
    return [
        findings.systems[place].label for place in places.values() if findings.systems[place].encoder.kind == "last"
    ]
