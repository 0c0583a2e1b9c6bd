"""`malmoi explain` in this process: what stands on standard output."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from golden.make import MODEL
from malmoi.commands.main import app
from malmoi.errors import ConfigError
from malmoi.explain import explain

TEXT = "two small dogs sleep."


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["explain", str(MODEL), *words, "--quiet"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_alignments_are_one_line_in_the_format_of_pharaoh() -> None:
    assert run(TEXT, "--alignments") == "1-0 2-1 2-2 3-3 3-4\n"


def test_json_is_one_object_with_all_arrays() -> None:
    (line,) = run(TEXT, "--json", "--n-best", "2", "--alignments").splitlines()
    found = json.loads(line)
    expected = explain(MODEL, TEXT, n_best=2)
    assert [one["text"] for one in found["outputs"]] == [one.text for one in expected.outputs]
    assert found["source"]["words"] == ["two", "small", "dogs", "sleep.", "</s>"]
    assert set(found["arrays"]) == set(expected.arrays())
    for name, values in expected.arrays().items():
        assert np.allclose(np.array(found["arrays"][name], dtype=float), values, atol=1e-5, equal_nan=True), name
    assert found["alignment"]["pairs"][0] == [1, 0]
    assert found["boxes"][0]["kind"] == "embedding"
    assert json.loads(run(TEXT, "--json"))["alignment"] is None


def test_another_sentence_to_compare_with() -> None:
    order = json.loads(run(TEXT, "--json", "--against", "two small cats sleep."))["order"]
    assert order == {"first": TEXT, "second": "two small cats sleep.", "is_reordering": False}


def test_a_fault_is_told() -> None:
    with pytest.raises(Exception, match="blank"):
        CliRunner().invoke(app, ["explain", str(MODEL), " "], catch_exceptions=False)


def test_a_page_is_written_and_its_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(TEXT) == "explain.html\n"
    assert '<html lang="en">' in Path("explain.html").read_text(encoding="utf-8")
    assert run(TEXT, "--out", "other.html", "--language", "ko") == "other.html\n"
    assert '<html lang="ko">' in Path("other.html").read_text(encoding="utf-8")
    run(TEXT, "--alignments")
    run(TEXT, "--json", "--out", "third.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["explain.html", "other.html", "third.html"]


@pytest.mark.parametrize("words", [["--language", "de"], ["--out", "nowhere/page.html"]])
def test_what_cannot_be_written_is_told_before_the_work(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=words[1].split("/")[0]):
        CliRunner().invoke(app, ["explain", "no-model", TEXT, *words], catch_exceptions=False)
