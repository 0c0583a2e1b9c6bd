"""Runs in a folder, whatever lies in it: read once, a part at a time, and one that is odd leaves the others alone."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from malmoi.serving import runs as module
from malmoi.serving.limits import RefusedError
from malmoi.serving.run_files import plain
from malmoi.serving.runs import RunList


def make_run(folder: Path, name: str, lines: str = '{"step": 5, "valid_loss": 2.5}\n', config: str = "") -> Path:
    run = folder / name
    run.mkdir()
    (run / "config.toml").write_text(config)
    (run / "metrics.jsonl").write_text(lines)
    return run


def add(run: Path, *rows: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def check_json(value: Any) -> None:
    """As an answer is written."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "valid_loss": 1' + "0" * 400 + "}",
        '{"step": 1' + "0" * 400 + "}",
        '{"step": 1, "valid_loss": 1' + "0" * 5_000 + "}",
        '{"step": 1, "x": [1e999]}',
        '{"step": 1, "x": {"y": [NaN, -1e999]}}',
        '{"step": 1, "x": "\\ud800", "\\udc00": 1}',
        '{"step": 1, "x": ' + "[" * 500 + "]" * 500 + "}",
        "[" * 50_000,
        '{"step": true, "valid_loss": true, "valid_bleu": "x"}',
        "x" * 100_000,
        '{"step": null}',
        "\udcff",
    ],
    ids=lambda line: line[:30].encode("ascii", "replace").decode(),
)
def test_an_odd_row_is_shown_as_far_as_json_has_it(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path, "a")
    (run / "metrics.jsonl").write_bytes(line.encode("utf-8", "surrogateescape") + b'\n{"step": 7, "valid_loss": 2.0}\n')
    runs = RunList(tmp_path)
    (found,) = runs.list()["runs"]
    assert found["best"]["loss"] == 2.0
    check_json(found)
    answer = runs.read("a", 0)
    assert answer["rows"][-1] == {"step": 7, "valid_loss": 2.0}
    check_json(answer)


def test_odd_settings_and_names_are_shown_too(tmp_path: Path) -> None:
    config = "day = 2020-01-01\nat = 2020-01-01T00:00:00Z\nhour = 10:00:00\nx = [nan, inf, 1]\nn = 1" + "0" * 300
    make_run(tmp_path, "a", config=config)
    odd = os.fsdecode(b"b\xff")
    make_run(tmp_path, odd)
    runs = RunList(tmp_path)
    assert sorted(one["name"] for one in runs.list()["runs"]) == ["a", "b?"]
    check_json(runs.list())
    assert runs.read("a", 0)["config"] == {
        "day": "2020-01-01",
        "at": "2020-01-01T00:00:00+00:00",
        "hour": "10:00:00",
        "x": [None, None, 1],
        "n": None,
    }
    assert len(runs.read("b?", 0)["rows"]) == 1
    assert plain([{"a": object()}]) == [{"a": None}]


def test_a_run_that_cannot_be_read_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "bad")
    make_run(tmp_path, "good")
    once = module.num_parameters

    def fail(run: Path) -> int | None:
        if run.name == "bad":
            raise ZeroDivisionError
        return once(run)

    monkeypatch.setattr(module, "num_parameters", fail)
    assert [one["name"] for one in RunList(tmp_path).list()["runs"]] == ["good"]
    assert RunList(tmp_path / "none").list() == {"runs": [], "left_out": 0}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "model/card.json", "checkpoints/a/card.json"])
def test_nobody_waits_for_what_is_no_file(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, "a")
    place = run / name
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place)
    runs = RunList(tmp_path)
    assert [one["parameters"] for one in runs.list()["runs"]] in ([], [None])
    assert (run / "config.toml").is_fifo() or (run / "metrics.jsonl").is_fifo() or runs.read("a", 0)["rows"]


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "model/card.json", "model", "checkpoints"])
def test_links_of_files_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    folder, secret = tmp_path / "runs", tmp_path / "secret"
    folder.mkdir()
    run, other = make_run(folder, "a"), make_run(tmp_path, "secret", '{"step": 1, "x": 9}\n', 'secret = "x"')
    for card in (other / "model" / "card.json", other / "checkpoints" / "one" / "card.json"):
        card.parent.mkdir(parents=True)
        card.write_text('{"num_parameters": 9}')
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(secret / name)
    runs = RunList(folder)
    if name == "metrics.jsonl":
        assert runs.list()["runs"] == []
        with pytest.raises(RefusedError):
            runs.read("a", 0)
    else:
        assert [one["parameters"] for one in runs.list()["runs"]] == [None]
        assert runs.read("a", 0)["config"] == {}


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": step, "valid_loss": 100.0 - step, "pad": "x" * 1_000} for step in range(1, 301)]
    run = make_run(tmp_path, "a", "")
    add(run, *rows)
    runs, seen = RunList(tmp_path), [0]
    parse = module.maybe_row

    def count(line: bytes) -> Any:
        seen[0] += 1
        return parse(line)

    monkeypatch.setattr(module, "maybe_row", count)
    assert runs.list()["runs"][0]["step"] == 300 and seen == [300]
    assert runs.list()["runs"][0]["step"] == 300 and seen == [300]
    add(run, {"step": 301, "valid_loss": -500.0})
    (found,) = runs.list()["runs"]
    assert (found["step"], found["best"], seen) == (301, {"loss": -500.0}, [301])
    # From a place near to the step, not from the beginning.
    assert [row["step"] for row in runs.read("a", 299)["rows"]] == [300, 301] and seen[0] < 301 + 100
    assert [row["step"] for row in runs.read("a", -1)["rows"]] == list(range(1, 302))


def test_a_file_that_was_cut_back_is_read_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "")
    add(run, *({"step": step} for step in range(1, 20)))
    runs = RunList(tmp_path)
    assert runs.list()["runs"][0]["step"] == 19
    place = run / "metrics.jsonl"
    whole = place.read_text()
    place.write_text('{"step": 1}\n')
    assert runs.list()["runs"][0]["step"] == 1
    # Cut back and longer than before, between two looks.
    place.write_text(whole)
    assert runs.list()["runs"][0]["step"] == 19
    place.write_text('{"step": 1, "x": 1}\n{"step": 2}\n' + '{"step": 3, "x": 1}\n' * 30)
    assert runs.list()["runs"][0]["step"] == 3


def test_of_a_large_file_the_end_is_read_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2_000)
    run = make_run(tmp_path, "a", "")
    runs = RunList(tmp_path)
    add(run, *({"step": step} for step in range(1, 11)))
    assert runs.list()["runs"][0]["whole"] and runs.read("a", -1)["whole"]
    add(run, *({"step": step} for step in range(11, 1_001)))
    (found,) = runs.list()["runs"]
    answer = runs.read("a", -1)
    assert found["step"] == 1_000 and not found["whole"] and not answer["whole"]
    steps = [row["step"] for row in answer["rows"]]
    assert steps == list(range(steps[0], 1_001)) and 80 < len(steps) < 200


def test_an_answer_has_so_many_rows_and_says_that_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    run = make_run(tmp_path, "a", "")
    add(run, *({"step": step} for step in range(1, 26)))
    runs, steps, more = RunList(tmp_path), [0], True
    while more:
        answer = runs.read("a", steps[-1])
        steps += [row["step"] for row in answer["rows"]]
        more = answer["more"]
    assert steps == list(range(26))


def test_the_last_changed_runs_are_listed_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 3)
    for number in range(5):
        os.utime(make_run(tmp_path, f"run{number}") / "metrics.jsonl", (0, 1_000 * (number % 4)))
    runs = RunList(tmp_path)
    listed = runs.list()
    assert [one["name"] for one in listed["runs"]] == ["run3", "run2", "run1"] and listed["left_out"] == 2
    # What is known of a run that is not listed is not kept; it can be read by its name all the same.
    assert runs.read("run0", 0)["rows"] == [{"step": 5, "valid_loss": 2.5}]
    assert runs.list() == listed and set(runs.records) == {"run1", "run2", "run3"}
    os.utime(tmp_path / "run0" / "metrics.jsonl", (0, 9_000))
    assert [one["name"] for one in runs.list()["runs"]] == ["run0", "run3", "run2"]


def test_a_line_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", '{"step": 1}\n{"ste')
    runs = RunList(tmp_path)
    assert runs.list()["runs"][0]["step"] == 1
    with (run / "metrics.jsonl").open("a") as file:
        file.write('p": 2}\n')
    assert runs.list()["runs"][0]["step"] == 2
    assert runs.read("a", 0)["rows"] == [{"step": 1}, {"step": 2}]
