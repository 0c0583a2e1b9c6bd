"""The picture of learning curves: what it shows, what it leaves out, and that its labels never meet."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from malmoi.errors import DataError
from malmoi.report.curves import (
    LABEL_WIDTH,
    WIDTH,
    axis,
    curve,
    draw,
    learning_curves,
    number_label,
    read_metrics,
    round_step,
    step_ticks,
)

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    {"step": step, "nll": 9.0 / step**0.3, "lr": 1e-4 * step, "valid_loss": 8.0 / step**0.25, "valid_bleu": step / 50}
    for step in range(50, 2001, 50)
]


def labels(svg: str) -> list[tuple[float, float, float]]:
    """Left end, right end and height of every label."""
    boxes: list[tuple[float, float, float]] = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        x, width = float(element.attrib["x"]), len(element.text or "") * LABEL_WIDTH
        left = {"start": x, "middle": x - width / 2, "end": x - width}[element.attrib["text-anchor"]]
        boxes.append((left, left + width, float(element.attrib["y"])))
    return boxes


def test_shows_each_curve_with_its_unit_and_name() -> None:
    svg = learning_curves(ROWS)
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    axis = "step (update of the weights)"
    for expected in ("negative log-likelihood per token, nats", "BLEU", "learning rate", axis):
        assert expected in texts
    assert any(str(text).startswith("training ") for text in texts)
    assert any(str(text).startswith("validation ") for text in texts)
    assert "TER" not in texts
    assert svg.count('class="curve a"') >= 3


@pytest.mark.parametrize("last_step", [1, 7, 100, 999, 20_000, 1_000_000])
def test_labels_never_meet(last_step: int) -> None:
    rows = [
        {"step": step, "loss": 3.25, "lr": 3.3e-5 * step, "valid_loss": 2.0, "valid_chrf": 99.123}
        for step in sorted({1, max(1, last_step // 2), last_step})
    ]
    boxes = labels(learning_curves(rows))
    assert all(left >= 0 and right <= WIDTH for left, right, _ in boxes)
    for number, (left, right, height) in enumerate(boxes):
        for other_left, other_right, other_height in boxes[number + 1 :]:
            apart = right <= other_left or other_right <= left
            assert apart or abs(height - other_height) >= 12


def test_no_rows_give_a_picture_that_says_so() -> None:
    assert "nothing was logged yet" in learning_curves([])


def test_values_that_are_no_numbers_are_left_out() -> None:
    rows = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"step": 3, "loss": math.inf}, {"loss": 1.0}]
    assert curve(rows, "training", "loss").points == []
    assert curve([*rows, {"step": 4, "loss": 2}], "training", "loss").points == [(4.0, 2.0)]


def test_a_step_run_twice_keeps_its_last_value() -> None:
    rows = [{"step": 2, "loss": 5.0}, {"step": 1, "loss": 6.0}, {"step": 2, "loss": 4.0}]
    assert curve(rows, "training", "loss").points == [(1.0, 6.0), (2.0, 4.0)]


def test_higher_values_stand_higher() -> None:
    svg = learning_curves([{"step": 1, "nll": 1.0}, {"step": 2, "nll": 3.0}])
    first, second = [float(one.attrib["cy"]) for one in ElementTree.fromstring(svg).iter(f"{SVG}circle")]
    assert second < first


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (2.31, 2.32), (-5.0, 70.0), (3.0, 3.0), (0.0, 0.0), (1e-7, 5e-4)]
)
def test_axis_holds_its_values_with_few_round_ticks(low: float, high: float) -> None:
    first, last, ticks = axis(low, high)
    assert first <= low and high <= last
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == first and ticks[-1] == last


def test_round_steps() -> None:
    assert [round_step(value) for value in (1.0, 1.1, 0.3, 60.0)] == pytest.approx([1.0, 2.0, 0.5, 100.0])
    assert step_ticks(10) == [0, 2, 4, 6, 8, 10]
    assert step_ticks(1) == [0, 1]


def test_number_labels_are_short() -> None:
    assert [number_label(value) for value in (0, 12000, 0.25, 3.14159, 5e-5)] == [
        "0",
        "12,000",
        "0.25",
        "3.14",
        "5e-05",
    ]


def test_both_grounds_are_served_and_markup_is_escaped() -> None:
    from malmoi.report.curves import Curve, Panel

    svg = draw([Panel("a<b & c", [Curve("x</text>", [(1.0, 1.0), (2.0, 2.0)])])])
    assert "prefers-color-scheme: dark" in svg
    assert "a&lt;b &amp; c" in svg
    ElementTree.fromstring(svg)


def test_metrics_are_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 2.0}\n\n{"step": 2}\n')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}, {"step": 2}]
    path.write_bytes(b'{"step": 1}\n{"step":')
    with pytest.raises(DataError, match="line 2"):
        read_metrics(path)
    path.write_bytes(b"[1]\n")
    with pytest.raises(DataError, match="not a JSON object"):
        read_metrics(path)
