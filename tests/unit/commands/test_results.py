"""Standard output: JSON that strict parsers read, and a progress bar that is silent where nobody looks."""

import json
import math

import pytest

from malmoi.commands.progress import progress_bar, silent
from malmoi.commands.results import finite, write_json


def test_json_holds_no_number_that_json_cannot_spell(capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch/serve#1304; sgl-project/sglang#4097."""
    write_json({"score": -math.inf, "rows": [math.nan, 1.5], "text": "é\u2028"})
    line = capsys.readouterr().out
    assert line == '{"score": null, "rows": [null, 1.5], "text": "é\u2028"}\n'

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(line, parse_constant=refuse)["score"] is None


def test_finite_keeps_everything_else() -> None:
    assert finite({"a": (1, "x", None, True), 3: b"y"}) == {"a": [1, "x", None, True], "3": b"y"}


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("reading", 10.0) as bar:
        assert bar is silent
        bar(3.0, "half")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
