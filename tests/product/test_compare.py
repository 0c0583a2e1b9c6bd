"""Three systems compared from beginning to end: on equal data, stopped anywhere and gone on with, refused in time."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.product_toys import run_malmoi, sentences, write

from malmoi.commands import compare as road
from malmoi.commands import comparison, trials
from malmoi.commands.compare_plan import CompareRequest, read_request
from malmoi.commands.folder import RunFolder
from malmoi.commands.footprint import measure_run
from malmoi.commands.trials import Footprint
from malmoi.config.model import RnnConfig
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.evaluation.systems import compare_systems
from malmoi.models.build import count_parameters
from malmoi.report.findings import Findings
from malmoi.training.trainer import Trainer

SMALL = (
    "model.width=16",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward=16",
    "text.tokenizer=characters",
    "text.vocabulary_size=60",
    "training.batch_tokens=300",
    "training.log_every=1",
    "training.validate_every=2",
    "training.max_steps=4",
    "training.metrics=['loss', 'chrf']",
    "training.validation_pairs=3",
    "training.threads=1",
    "decoding.beam_size=2",
    "decoding.max_length_ratio=0.3",
    "decoding.max_length_extra=2",
)
MEASURED = {
    *("seconds", "training_seconds", "training_tokens_per_second", "sentences_per_second", "output_tokens_per_second"),
    *("milliseconds_per_sentence", "peak_bytes", "bytes_before", "commands"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    write(path, [f"{source}\t{target}" for source, target in sentences(80, seed=3)])
    return path


@pytest.fixture(autouse=True, scope="module")
def less_work() -> Iterator[None]:
    """Memory is measured by processes of their own, which take longer than all the rest; and fewer samples do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "measure_footprint", lambda run: Footprint(None, 1000, None))
        patch.setattr(comparison, "compare_systems", partial(compare_systems, num_samples=100))
        for name in ("ROUNDS", "TIMED_SENTENCES", "TIMED_ALONE"):
            patch.setattr(trials, name, 1)
        yield


def compare(out: Path, *words: str | Path, **options: Any) -> int:
    request = CompareRequest(words=tuple(map(str, words)), out=out, workers=1, **options)
    return road.run_compare(request, read_request(request), as_json=True, quiet=True)


def report(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_bytes())


def without_times(value: Any) -> Any:
    """What must be equal however often a comparison was stopped."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in MEASURED}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A comparison that nobody stopped."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert compare(out, data, *SMALL) == 0
    return out


def test_all_systems_read_the_same_and_are_asked_the_same(whole: Path) -> None:
    found = report(whole)
    runs = [run for system in found["systems"] for run in system["runs"]]
    assert found["data"]["is_equal"] and len({run["data"] for run in runs}) == 1
    assert len({(run["steps"], run["target_tokens"], run["ended_by"]) for run in runs}) == 1
    # Not only the stores: the tokens of every row of every run, and so the batches, in their order.
    rows = [
        [(row["step"], row["target_tokens"]) for row in map(json.loads, path.read_text().splitlines())]
        for path in sorted(whole.glob("runs/*/metrics.jsonl"))
    ]
    assert len(rows) == 3 and rows[0] == rows[1] == rows[2]
    trials = [json.loads(path.read_bytes()) for path in whole.glob("tests/*.json")]
    assert len(trials) == 3 and {len(trial["outputs"]) for trial in trials} == {found["data"]["num_test"]}


def test_no_source_stands_on_two_sides(whole: Path, data: Path) -> None:
    def sources(path: Path) -> set[str]:
        return {json.loads(line)["source"] for line in path.read_text(encoding="utf-8").splitlines()}

    everything = [line.split("\t")[0] for line in data.read_text(encoding="utf-8").splitlines()]
    test, valid = sources(whole / "test.jsonl"), sources(whole / "store" / "data" / "valid.jsonl")
    assert test and valid and not test & valid and test | valid < set(everything)
    found = report(whole)["data"]
    assert found["num_pairs"] + found["num_validation"] + found["num_test"] == len(everything)
    assert found["num_pairs"] == sum(source not in test | valid for source in everything)


def test_the_page_and_the_json_say_the_same(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (whole / "report.html").read_text(encoding="utf-8")
    found = report(whole)
    assert f'value="{found["quality"]["scores"]["transformer"][0]["mean"]!r}"' in page
    assert list(found) == list(Findings.__dataclass_fields__)
    assert compare(whole) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == report(whole) and without_times(printed) == without_times(found)


class Killed(BaseException):
    """What stands for a kill: nothing catches it, and nothing is saved."""


def stop(patch: pytest.MonkeyPatch, when: Callable[[Trainer], bool], act: Callable[[], None]) -> None:
    """Do something after the update of a run at which `when` is true."""
    inner = Trainer.after_update

    def after_update(self: Trainer, began: float, epochs: float) -> None:
        inner(self, began, epochs)
        if when(self):
            act()

    patch.setattr(Trainer, "after_update", after_update)


def kill() -> None:
    raise Killed


def folder_of(trainer: Trainer) -> str:
    return trainer.record.folder.name


def test_a_kill_within_and_between_systems_changes_nothing(
    whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, lambda one: folder_of(one) == "seq2seq-1" and one.run_state.step == 3, kill)
        with pytest.raises(Killed):
            compare(out, data, *SMALL)
    assert not (out / "tests").exists()
    with monkeypatch.context() as patch:
        # Between its training and its test.
        patch.setattr(road, "make_trial", lambda *words: kill())
        with pytest.raises(Killed):
            compare(out)
    with monkeypatch.context() as patch:
        stop(patch, lambda one: folder_of(one) == "transformer-1" and one.run_state.step == 1, kill)
        with pytest.raises(Killed):
            compare(out, data, *SMALL)
    assert len(list((out / "tests").iterdir())) == 2 and not (out / "report.json").exists()
    assert compare(out) == 0
    assert without_times(report(out)) == without_times(report(whole))


def test_a_kill_while_data_is_prepared_leaves_nothing_half_done(
    whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("malmoi.commands.shared_data.make_material", lambda *words, **options: kill())
        with pytest.raises(Killed):
            compare(out, data, *SMALL)
    with monkeypatch.context() as patch:
        stop(patch, lambda one: True, kill)
        with pytest.raises(Killed):
            compare(out)
    same = [(folder / "test.jsonl").read_bytes() for folder in (out, whole)]
    assert same[0] == same[1]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, lambda one: one.run_state.step == 1, lambda: os.kill(os.getpid(), number))
        assert compare(out, data, *SMALL) == status
    rows = (out / "runs" / "seq2seq-1" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 1 and list((out / "runs" / "seq2seq-1" / "state").iterdir())
    assert not (out / "runs" / "seq2seq-attention-1").exists() and not (out / "report.html").exists()


def test_more_seeds_and_longer_trainings_go_on_with_what_is_there(whole: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert compare(out, data, *SMALL, "training.max_steps=2") == 0
    short = report(out)
    assert compare(out, "training.max_steps=4") == 0
    longer = report(out)
    assert {run["steps"] for system in longer["systems"] for run in system["runs"]} == {4}
    assert longer["quality"]["scores"] == report(whole)["quality"]["scores"] != short["quality"]["scores"]
    trials = {path.name: path.read_bytes() for path in (out / "tests").iterdir()}
    assert compare(out, num_seeds=2) == 0
    found = report(out)
    assert [[run["seed"] for run in system["runs"]] for system in found["systems"]] == [[1, 2]] * 3
    score = found["quality"]["scores"]["seq2seq"][0]
    assert len(score["values"]) == 2 and score["deviation"] is not None
    assert all((out / "tests" / name).read_bytes() == content for name, content in trials.items())
    assert "± " in (out / "report.html").read_text(encoding="utf-8")


def test_another_comparison_in_the_same_folder_is_refused(whole: Path, data: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*.json")}
    with pytest.raises(ConfigError, match="model"):
        compare(whole, data, *SMALL, "model.width=32")
    with pytest.raises(ConfigError, match="rule: tokens -> parameters"):
        compare(whole, data, *SMALL, rule="parameters")
    with pytest.raises(ConfigError, match="goes on with its own data"):
        compare(whole, test=("x.tsv",))
    assert {path: path.read_bytes() for path in whole.rglob("*.json")} == before


def test_what_cannot_work_is_told_before_any_work(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="missing"):
        compare(out, tmp_path / "missing.tsv", *SMALL)
    with pytest.raises(DataError, match="missing"):
        compare(out, data, *SMALL, test=(str(tmp_path / "missing.tsv"),))
    assert not (out / "compare.json").exists()
    with pytest.raises(ConfigError, match="en and ko"):
        compare(out, data, *SMALL, language="fr")
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(tmp_path / "none")
    assert not (out / "runs").exists() and not (tmp_path / "none").exists()


def test_folders_of_others_are_left_alone(data: Path, tmp_path: Path, whole: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "report.html").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds other files"):
        compare(theirs, data, *SMALL)
    # A run is no comparison, and a comparison is no run.
    with pytest.raises(ConfigError, match="holds other files"):
        compare(whole / "runs" / "transformer-1", data, *SMALL)
    result = run_malmoi("train", data, "--out", whole, *SMALL, cwd=tmp_path, status=2)
    assert b"holds other files" in result.stderr
    assert [path.name for path in theirs.iterdir()] == ["report.html"]


def test_equal_parameters_and_given_test_pairs(data: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.tsv"
    rows = [f"{source}\t{target}" for source, target in sentences(3, seed=9)]
    write(test, [*rows, "<b>tag</b> & 'x'\t<script>alert(1)</script>"])
    out = tmp_path / "out"
    assert compare(out, data, *SMALL, test=(str(test),), rule="parameters", language="ko") == 0
    found = report(out)
    assert found["data"]["num_test"] == 4 and not found["data"]["is_test_held_out"]
    sizes = [system["cost"]["num_parameters"] for system in found["systems"]]
    # In models as small as these one more unit is much.
    assert max(sizes) < 1.15 * min(sizes)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.startswith('<!doctype html>\n<html lang="ko">')
    assert "&lt;script&gt;alert(1)" in page and "<script>alert" not in page


def test_runs_are_compared_though_their_text_is_gone(tmp_path: Path) -> None:
    """What trained them may have been moved or changed since: nothing is trained on it any more."""
    write(tmp_path / "text.tsv", [f"{source}\t{target}" for source, target in sentences(60, seed=4)])
    write(tmp_path / "test.tsv", [f"{source}\t{target}" for source, target in sentences(4, seed=5)])
    for name, attention in (("one", "none"), ("two", "dot")):
        words = ("model.architecture=rnn", f"model.attention={attention}", "model.width=16", "model.hidden=16")
        kept = [word for word in SMALL if not word.startswith("model.")]
        run_malmoi("train", "text.tsv", "--out", name, *kept, *words, cwd=tmp_path)
    (tmp_path / "text.tsv").unlink()
    runs = (tmp_path / "one", tmp_path / "two")
    assert compare(tmp_path / "out", *runs, test=(str(tmp_path / "test.tsv"),)) == 0
    assert measure_run(RunFolder(runs[0]))["peak"]


def test_a_system_that_was_trained_further_is_tested_anew(whole: Path) -> None:
    """Outputs belong to weights: those of other weights are not shown as theirs."""
    place = whole / "tests" / "seq2seq-1.json"
    told = json.loads(place.read_bytes())
    place.write_text(json.dumps({**told, "model": "0" * 64, "outputs": ["?"] * len(told["outputs"])}))
    assert compare(whole) == 0
    assert json.loads(place.read_bytes()) == told


def test_what_checkpoints_are_chosen_by_is_no_test(data: Path, tmp_path: Path) -> None:
    """Every source of `--valid` stands in the training data as well; none of them is held out to test with."""
    rows = data.read_text(encoding="utf-8").splitlines()
    write(tmp_path / "valid.tsv", rows[:70])
    out = tmp_path / "out"
    with suppress(DataError):
        compare(out, data, *SMALL, "training.max_steps=1", valid=(str(tmp_path / "valid.tsv"),))
    tested = [json.loads(line)["source"] for line in (out / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {" ".join(row.split("\t")[0].upper().split()) for row in rows[:70]}
    assert tested and not known & {source.upper() for source in tested}


def test_the_command_itself_and_its_memory(data: Path, tmp_path: Path, whole: Path) -> None:
    """In processes of its own, with the memory of a training of its own; only what the others have done is left."""
    before = report(whole)
    result = run_malmoi("compare", "--out", whole, "--json", "--quiet", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert result.stderr == b"" and without_times(found) == without_times(report(whole))
    scores = [one["mean"] for one in (row[0] for row in found["quality"]["scores"].values())]
    assert scores == [row[0]["mean"] for row in before["quality"]["scores"].values()]
    for system in found["systems"]:
        cost = system["cost"]
        assert cost["peak_bytes"] > cost["bytes_before"] > 2**20


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_states_are_chosen_to_the_nearest_number_of_parameters(attention: str) -> None:
    config, sizes = RnnConfig.model_validate({"attention": attention, "width": 64}), (1000, 1000)
    for wanted in (1, 300_000, 1_000_000):
        hidden = road.nearest_hidden(config, wanted, sizes)
        around = [
            abs(count_parameters(config.model_copy(update={"hidden": one}), *sizes) - wanted)
            for one in (hidden, hidden - 2, hidden + 2)
            if one > 0
        ]
        assert hidden % 2 == 0 and around[0] == min(around)


def test_runs_that_are_there_make_the_same_report(whole: Path, data: Path, tmp_path: Path) -> None:
    names = ("seq2seq-1", "seq2seq-attention-1", "transformer-1")
    runs = [whole / "runs" / name for name in names]
    test = tmp_path / "test.jsonl"
    rows = [json.loads(line) for line in (whole / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    write(test, [json.dumps({"source": row["source"], "target": row["targets"][0]}) for row in rows])
    before = {path: path.read_bytes() for run in runs for path in run.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert compare(out, *runs, test=(str(test),)) == 0
    found, expected = report(out), report(whole)
    assert [system["label"] for system in found["systems"]] == list(names) and found["rule"] == "given"
    values = [[row[0]["values"] for row in one["quality"]["scores"].values()] for one in (found, expected)]
    assert values[0] == values[1]
    assert found["data"]["is_equal"] and not found["data"]["is_test_held_out"]
    assert {path: path.read_bytes() for run in runs for path in run.rglob("*") if path.is_file()} == before
    # Going on with it tests nothing anew.
    trials = {path.name: path.stat().st_mtime_ns for path in (out / "tests").iterdir()}
    assert compare(out) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (out / "tests").iterdir()} == trials
    with pytest.raises(ConfigError, match="trained already"):
        compare(out, num_seeds=2)
    # Other runs in the same folder would put an end to what it says of these.
    with pytest.raises(ConfigError, match="holds another comparison"):
        compare(out, *runs[:2], test=(str(test),))
    strange = tmp_path / os.fsdecode(b"caf\xe9")
    strange.symlink_to(runs[0])
    with pytest.raises(ConfigError, match="cannot be shown: rename it"):
        compare(tmp_path / "new", strange, runs[1], test=(str(test),))
    for options, reason in (
        ({}, "--test"),
        ({"test": (str(test),), "rule": "time"}, "--equal: these runs are trained already"),
        ({"test": (str(test),), "num_seeds": 2}, "--seeds: these runs"),
    ):
        with pytest.raises(ConfigError, match=reason):
            compare(tmp_path / "new", *runs, **options)
    with pytest.raises(ConfigError, match="two runs are called transformer-1"):
        compare(tmp_path / "new", runs[2], runs[2], test=(str(test),))
    with pytest.raises(ConfigError, match="no comparison"):
        compare(tmp_path / "new", runs[2], test=(str(test),))


def test_a_terminal_gets_a_table(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = CompareRequest(words=(), out=whole)
    assert road.run_compare(request, None, as_json=False, quiet=True) == 0
    listed = capsys.readouterr().out
    assert "chrF2++: nrefs:1" in listed and "Transformer minus Seq2Seq, chrF2++" in listed
    assert listed.splitlines()[-1] == str(whole / "report.html")


def test_a_damaged_plan_is_named(whole: Path) -> None:
    broken = whole / "compare.json"
    content = broken.read_bytes()
    broken.write_bytes(b"[]")
    with pytest.raises(CheckpointError, match="damaged"):
        compare(whole)
    broken.write_bytes(content)
