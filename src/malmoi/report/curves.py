"""Learning curves as one small SVG picture: panels above each other that share the axis of steps.

In: rows of a run's `metrics.jsonl`. Out: SVG text that needs nothing else, readable on light and dark ground.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from xml.sax.saxutils import escape

from malmoi.errors import DataError

WIDTH = 720
LEFT = 72
RIGHT = 24
PANEL_HEIGHT = 150
PANEL_GAP = 84
TOP = 40
BOTTOM = 48
LABEL_WIDTH = 6.6
"""Pixels that a letter of a label takes at most, to keep labels from meeting."""

UNITS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "ter": "TER",
    "exact": "exact match, %",
    "segment_error": "wrong segments, %",
    "wer": "word error, %",
    "ser": "symbol error, %",
}

STYLE = """
svg { --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --a: #0b62c4; --b: #c2410c; --ground: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #f0f6fc; --soft: #9198a1; --line: #3d444d; --a: #6cb2ff; --b: #ff9d6b; --ground: #0d1117; }
}
text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.title { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.a { stroke: var(--a); } .b { stroke: var(--b); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dot.a { fill: var(--a); stroke: none; } .dot.b { fill: var(--b); stroke: none; }
.ground { fill: var(--ground); }
"""


@dataclass(frozen=True)
class Curve:
    """One line: its name in the legend and its points (step, value), by step."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One small picture: what its vertical axis shows, and the curves in it (two at most)."""

    title: str
    curves: Sequence[Curve]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of a `metrics.jsonl`; a `DataError` names the line that is not a JSON object."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not a JSON object")
        rows.append(cast(dict[str, Any], row))
    return rows


def learning_curves(rows: Iterable[Mapping[str, Any]]) -> str:
    """The SVG picture of a run: loss, each metric of validation, learning rate; empty panels are left out."""
    kept = list(rows)
    # Without smoothing on both sides, so that the two can be compared; training still has its dropout.
    panels = [
        Panel(
            "negative log-likelihood per token, nats",
            [curve(kept, "training", "nll"), curve(kept, "validation", "valid_loss")],
        )
    ]
    panels += [Panel(unit, [curve(kept, "validation", f"valid_{name}")]) for name, unit in UNITS.items()]
    panels.append(Panel("learning rate", [curve(kept, "learning rate", "lr")]))
    return draw([panel for panel in panels if any(curve.points for curve in panel.curves)])


def curve(rows: Sequence[Mapping[str, Any]], name: str, key: str) -> Curve:
    """The finite values of one key, by step; a step that was run again after a resume keeps its last value."""
    points: dict[float, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(value):
            points[float(step)] = float(value)
    return Curve(name, sorted(points.items()))


def draw(panels: Sequence[Panel]) -> str:
    """Panels from top to bottom with one axis of steps."""
    height = TOP + max(1, len(panels)) * (PANEL_HEIGHT + PANEL_GAP) - PANEL_GAP + BOTTOM
    steps = [step for panel in panels for curve in panel.curves for step, _ in curve.points]
    last_step = max(steps, default=1.0) or 1.0
    body = [
        panel_lines(panel, TOP + number * (PANEL_HEIGHT + PANEL_GAP), last_step) for number, panel in enumerate(panels)
    ]
    if not panels:
        body = [[text(WIDTH / 2, height / 2, "nothing was logged yet", anchor="middle")]]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Learning curves">'
    )
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
    return "\n".join(
        [opening, f"<style>{STYLE}</style>", ground, *(line for part in body for line in part), "</svg>\n"]
    )


def panel_lines(panel: Panel, top: float, last_step: float) -> list[str]:
    """Axes, labels, legend and curves of one panel whose upper edge lies at `top`."""
    drawn = [curve for curve in panel.curves if curve.points]
    values = [value for curve in drawn for _, value in curve.points]
    low, high, ticks = axis(min(values), max(values))
    bottom = top + PANEL_HEIGHT

    def across(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last_step

    def up(value: float) -> float:
        return bottom - PANEL_HEIGHT * (value - low) / (high - low)

    lines = [text(LEFT, top - 14, panel.title, kind="title")]
    for tick in ticks:
        lines.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}"/>')
        lines.append(text(LEFT - 8, up(tick) + 4, number_label(tick), anchor="end"))
    for step in step_ticks(last_step):
        anchor = "end" if across(step) > WIDTH - RIGHT - 20 else "middle"
        lines.append(text(across(step), bottom + 18, number_label(step), anchor=anchor))
    lines.append(text(WIDTH - RIGHT, bottom + 34, "step (update of the weights)", anchor="end"))
    for kind, one in zip("ab", drawn, strict=False):
        path = "L".join(f"{across(step):.1f} {up(value):.1f}" for step, value in one.points)
        lines.append(f'<path class="curve {kind}" d="M{path}"/>')
        if len(one.points) <= 40:
            lines += [
                f'<circle class="dot {kind}" cx="{across(step):.1f}" cy="{up(value):.1f}" r="2.5"/>'
                for step, value in one.points
            ]
    return lines + legend(drawn, top)


def legend(drawn: Sequence[Curve], top: float) -> list[str]:
    """Names of the curves at the right end of the title's line, with the last value of each."""
    lines: list[str] = []
    right = float(WIDTH - RIGHT)
    for kind, one in reversed(list(zip("ab", drawn, strict=False))):
        label = f"{one.name} {number_label(one.points[-1][1])}"
        lines.append(text(right, top - 14, label, anchor="end"))
        right -= len(label) * LABEL_WIDTH + 8
        lines.append(f'<path class="curve {kind}" d="M{right - 20:.1f} {top - 18:.1f}h18"/>')
        right -= 36
    return lines


def axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Ends of an axis that holds both values, and round numbers on it: three to seven."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        margin = abs(high) / 2 or 1.0
        low, high = low - margin, high + margin
    step = round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def step_ticks(last_step: float) -> list[float]:
    """Round numbers of steps from 0 on, so far apart that their labels cannot meet."""
    distance = max(1.0, round_step(last_step / 6))
    return [number * distance for number in range(int(last_step / distance + 1e-9) + 1)]


def round_step(wanted: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten that is not below what is wanted."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= wanted * (1 - 1e-9))


def number_label(value: float) -> str:
    """A number as short as an axis wants it: 12,000, 0.25, 5e-05."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if size >= 1e-3 else f"{value:.2g}"


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """One label; its words are escaped."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(words)}</text>'
