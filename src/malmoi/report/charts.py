"""Charts of several systems as SVG: lines with markers and error bars, and maps of attention.

In: numbers and labels. Out: SVG text whose colours come from the page around it (classes `s0` to `s5`). Systems differ
in colour, in dashes and in the shape of their markers, so that no chart depends on colour. Words are given as markup,
since a page holds each of them in two languages; `plain` makes some of text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from malmoi.report.curves import axis, number_label
from malmoi.report.findings import AttentionPicture

WIDTH, WIDE, HEIGHT = 380, 460, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 46
NUM_STYLES = 6
CELL, LABEL_ROOM, LETTER, WIDE_LETTER = 22, 100.0, 7.4, 13.0
"""Of a map of attention: the side of a cell, the most room for a label, the width of a letter, of one in Hangul."""


@dataclass(frozen=True)
class Line:
    """One system: its place among them, and points (x, y, low, high) by x; None where there is no interval."""

    style: int
    label: str
    points: Sequence[tuple[float, float, float | None, float | None]]


@dataclass(frozen=True)
class Ticks:
    """Labels under the horizontal axis: where, and what (markup)."""

    places: Sequence[tuple[float, str]]
    low: float
    high: float


def plain(words: str) -> str:
    """Text as markup."""
    return escape(words)


def number_ticks(values: Sequence[float], label: Callable[[float], str] = number_label) -> Ticks:
    """Round numbers from 0 to what holds all values."""
    _, high, ticks = axis(0.0, max([*values, 1e-9]))
    return Ticks([(tick, plain(label(tick))) for tick in ticks if tick >= 0], 0.0, high)


def line_chart(lines: Sequence[Line], ticks: Ticks, *, identity: str, x_label: str, width: int = WIDTH) -> str:
    """A chart that is named by the element with the id `identity`."""
    drawn = [line for line in lines if line.points]
    values = [one for line in drawn for _, *heights in line.points for one in heights if one is not None]
    low, high, marks = axis(min(values, default=0.0), max(values, default=1.0))

    def across(x: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * (x - ticks.low) / ((ticks.high - ticks.low) or 1.0)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)

    body: list[str] = []
    for mark in marks:
        body.append(f'<path class="grid" d="M{LEFT} {up(mark):.1f}H{width - RIGHT}"/>')
        body.append(words(LEFT - 7, up(mark) + 4, plain(number_label(mark)), "end"))
    for place, label in ticks.places:
        body.append(words(across(place), HEIGHT - BOTTOM + 17, label, "middle"))
    body.append(words((width + LEFT - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    for line in drawn:
        body += draw_line(line, across, up)
    return (
        f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" aria-labelledby="{identity}">'
        + "".join(body)
        + "</svg>"
    )


def draw_line(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    """The curve, its error bars, and markers that tell their values; of many points every some has a marker."""
    kind = f"s{line.style % NUM_STYLES}"
    parts: list[str] = []
    if len(line.points) > 1:
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y, _, _ in line.points)
        parts.append(f'<path class="line {kind}" d="M{path}"/>')
    stride = max(1, len(line.points) // 12)
    # The last point always has its marker.
    for number, (x, y, low, high) in enumerate(line.points):
        if low is not None and high is not None:
            parts.append(f'<path class="bar {kind}" d="M{across(x):.1f} {up(low):.1f}V{up(high):.1f}"/>')
        if (len(line.points) - 1 - number) % stride == 0:
            parts.append(marker(line.style, across(x), up(y), f"{line.label}: {y:,.4g}"))
    return parts


def marker(style: int, x: float, y: float, title: str = "") -> str:
    """A shape of its own for each system."""
    kind = style % NUM_STYLES
    sides = (0, 4, 3, -4, 5, -3)[kind]
    name = f"<title>{escape(title)}</title>" if title else ""
    if not sides:
        return f'<circle class="mark s{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">{name}</circle>'
    # Squares stand on a side, diamonds on a corner, triangles point up or down.
    turn = {4: math.pi / 4, -3: -math.pi / 2}.get(sides, math.pi / 2)
    corners = [turn + 2 * math.pi * number / abs(sides) for number in range(abs(sides))]
    path = "L".join(f"{x + 5 * math.cos(one):.1f} {y - 5 * math.sin(one):.1f}" for one in corners)
    return f'<path class="mark s{kind}" d="M{path}Z">{name}</path>'


def key(style: int) -> str:
    """What a system looks like in charts, to stand beside its name."""
    kind = style % NUM_STYLES
    line = f'<path class="line s{kind}" d="M1 8H35"/>'
    return f'<svg class="key" viewBox="0 0 36 16" aria-hidden="true">{line}{marker(style, 18, 8)}</svg>'


def words(x: float, y: float, markup: str, anchor: str) -> str:
    """A label of markup: one text, or one for each language."""
    if not markup.startswith("<"):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{markup}</text>'
    # In a chart a label of each language is a text of its own.
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return markup.replace("<span ", f"<text {place} ").replace("</span>", "</text>")


def attention_map(picture: AttentionPicture, *, style: int, identity: str) -> str:
    """Rows look at columns; the darker, the more. Values stand in titles."""
    most = max((value for row in picture.weights for value in row), default=1.0) or 1.0
    rows, columns = ([shorten(label) for label in labels] for labels in (picture.rows, picture.columns))
    left = 12 + max(map(label_width, rows))
    # Words of the source are written at an angle, so that long ones have room.
    above = 18 + 0.8 * max(map(label_width, columns))
    width = left + CELL * len(picture.columns) + above
    height = above + CELL * len(picture.rows) + 4
    body: list[str] = []
    for place, label in enumerate(columns):
        x, y = left + CELL * (place + 0.6), above - 5
        turned = f'transform="rotate(-50 {x:.1f} {y:.1f})"'
        body.append(f'<text x="{x:.1f}" y="{y:.1f}" {turned}>{escape(label)}</text>')
    for row, (label, values) in enumerate(zip(rows, picture.weights, strict=True)):
        y = above + CELL * row
        body.append(f'<text x="{left - 6:.1f}" y="{y + 15:.1f}" text-anchor="end">{escape(label)}</text>')
        for column, value in enumerate(values):
            title = f"{picture.rows[row]} \N{RIGHTWARDS ARROW} {picture.columns[column]}: {value:.2f}"
            body.append(
                f'<rect class="cell s{style % NUM_STYLES}" x="{left + CELL * column:.1f}" y="{y:.1f}" '
                f'width="{CELL}" height="{CELL}" fill-opacity="{(value / most) ** 0.75:.2f}">'
                f"<title>{escape(title)}</title></rect>"
            )
    return (
        f'<svg class="map" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-labelledby="{identity}">' + "".join(body) + "</svg>"
    )


def label_width(label: str) -> float:
    """About the room that a label takes."""
    return sum(WIDE_LETTER if east_asian_width(letter) in "WF" else LETTER for letter in label)


def shorten(label: str) -> str:
    """A label that fits."""
    if label_width(label) <= LABEL_ROOM:
        return label
    kept = label
    while label_width(kept) > LABEL_ROOM - WIDE_LETTER:
        kept = kept[:-1]
    return kept + "\N{HORIZONTAL ELLIPSIS}"
