"""Stop anywhere and resume: the same batches, rates, losses and weights, bit for bit."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training_toys import VOCABULARY, ToyRun, ToyStream, limit_memory, toy_batch, toy_pairs

from malmoi.data.batch import Batch, collate
from malmoi.data.batching import BatchPlan, Place
from malmoi.data.store import IntArray, Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.errors import CheckpointError
from malmoi.training import state as state_module

TIMES = ("seconds", "target_tokens_per_second")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def assert_same(one: ToyRun, other: ToyRun) -> None:
    """Same rows and same weights."""
    assert rows_of(one.folder) == rows_of(other.folder)
    ours, theirs = one.weights(), other.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("micro_batch_tokens", [0, 12])
@pytest.mark.parametrize("stops", [(7,), (1, 9, 10, 18)])
def test_resumed_run_equals_one_long_run(tmp_path: Path, micro_batch_tokens: int, stops: tuple[int, ...]) -> None:
    """facebookresearch/fairseq#441, #781, #4973 and #5344; Lightning-AI/pytorch-lightning#1772 and #4655.

    Nine batches an epoch, so that stops fall inside, at the end and at the beginning of epochs.
    """
    settings = {"micro_batch_tokens": micro_batch_tokens, "average_decay": 0.9, "log_every": 4, "validate_every": 6}
    long = ToyRun(tmp_path / "long", **settings)
    long.trainer().run()
    parts = ToyRun(tmp_path / "parts", **settings)
    for stop in stops:
        with_signal = stop_at(parts, stop)
        assert with_signal.exit_status == 143
        assert with_signal.step == stop
    parts.trainer().run()
    assert parts.seen == long.seen
    assert_same(parts, long)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_real_store_resumes_to_the_same_lines(tmp_path: Path, prefetch: int) -> None:
    """facebookresearch/fairseq#441, #781, #4973 and #5344: with batches made ahead by a thread, and without."""
    lengths = np.array([2 + number % 5 for number in range(60)])
    with StoreWriter(tmp_path / "store", VOCABULARY, VOCABULARY) as writer:
        ids = 2 + np.arange(lengths.sum()) % (VOCABULARY - 2)
        writer.add(ids, lengths, ids[::-1], lengths, np.arange(1, 61))
        writer.finish(key="k", description="toy", inputs={}, weight=1.0, cleaning={})
    store = Store.open(tmp_path / "store")

    def real(run: ToyRun, batch_tokens: int = 24) -> ToyRun:
        plan = BatchPlan([store], batch_tokens, seed=1)

        def make(indices: IntArray, epoch: int, position: int) -> Batch:
            return collate([store], indices, VOCABULARY, VOCABULARY)

        def open_stream(state: dict[str, Any] | None) -> Any:
            return LoggedStream(plan, make, plan.resume(state) if state else Place(), prefetch, run.seen)

        run.open_stream = open_stream  # type: ignore[method-assign]
        return run

    long, parts = real(ToyRun(tmp_path / "long")), real(ToyRun(tmp_path / "parts"))
    long.trainer(max_steps=30).run()
    for limit in (7, 20, 30):
        parts.trainer(max_steps=limit).run()
    assert parts.seen == long.seen
    assert len({line for lines in long.seen for line in lines}) == 60
    assert all(torch.equal(parts.weights()[name], tensor) for name, tensor in long.weights().items())
    # Another batch size: positions mean nothing any more, the epoch starts anew.
    changed = real(parts, batch_tokens=30)
    epoch = long.trainer(max_steps=30).record.store.newest()
    assert epoch is not None and epoch[0].run.stream is not None
    before = len(parts.seen)
    changed.trainer(max_steps=31).run()
    first = BatchPlan([store], 30, seed=1).epoch(epoch[0].run.epoch)[0]
    assert parts.seen[before] == [int(index) + 1 for index in first]


def test_a_split_for_memory_is_kept_by_a_run_that_goes_on(tmp_path: Path) -> None:
    """Stopped before and after it, with dropout; another size that the user gives counts."""

    def limited(run: ToyRun, **overrides: Any) -> Any:
        trainer = run.trainer(**overrides)
        limit_memory(run.network, 13)
        return trainer

    def uneven(folder: Path) -> ToyRun:
        run = ToyRun(folder)
        # Nothing is too large up to the fifth update.
        small, large = (toy_batch(toy_pairs([3] * count, seed=count), count) for count in (3, 4))
        run.batches = [small] * 4 + [large] * 2 + [small] * 3
        run.open_stream = lambda state: InOrder(run.batches, state, run.seen)  # type: ignore[method-assign]
        return run

    long, parts = uneven(tmp_path / "long"), uneven(tmp_path / "parts")
    limited(long, max_steps=12).run()
    for limit in (3, 5, 7, 12):
        trainer = limited(parts, max_steps=limit)
        trainer.run()
        assert trainer.run_state.micro_batch_tokens == (0 if limit < 5 else 8)
    assert all(torch.equal(parts.weights()[name], tensor) for name, tensor in long.weights().items())
    changed = limited(parts, max_steps=13, micro_batch_tokens=6)
    changed.run()
    assert changed.run_state.micro_batch_tokens == 6


class InOrder(ToyStream):
    """Batches in their order."""

    def __next__(self) -> Any:
        place = self.epoch * len(self.batches) + self.position
        self.epoch, self.position = divmod(place + 1, len(self.batches))
        return *divmod(place, len(self.batches)), self.batches[place % len(self.batches)]


class LoggedStream(BatchStream):
    """A stream that remembers the lines that it handed out."""

    def __init__(self, plan: Any, make: Any, start: Any, prefetch: int, seen: list[list[int]]) -> None:
        super().__init__(plan, make, start, prefetch)
        self.seen = seen

    def __next__(self) -> Any:
        item = super().__next__()
        self.seen.append([int(line) for line in item[2].lines_B])
        return item


def stop_at(run: ToyRun, step: int) -> Any:
    """Run until a SIGTERM that comes during the forward pass of update `step`; that update is finished."""
    trainer = run.trainer()
    original = trainer.updater.update

    def update(*arguments: Any) -> Any:
        if trainer.run_state.step + 1 == step:
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    trainer.updater.update = update  # type: ignore[method-assign]
    return trainer.run()


def test_rates_do_not_depend_on_stops(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#1772; pytorch/pytorch#60265 and #29697; OpenNMT/OpenNMT-py#1190."""
    long = ToyRun(tmp_path / "long", max_steps=30)
    long.trainer().run()
    wanted = [(row["step"], row["lr"]) for row in rows_of(long.folder) if "lr" in row]
    assert [step for step, _ in wanted] == list(range(1, 31))
    assert wanted[0][1] > 0
    assert max(wanted, key=lambda pair: pair[1])[0] == 10
    parts = ToyRun(tmp_path / "parts")
    for limit in (1, 9, 10, 11, 25, 30):
        parts.trainer(max_steps=limit).run()
    assert [(row["step"], row["lr"]) for row in rows_of(parts.folder) if "lr" in row] == wanted


def test_a_changed_rate_wins_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenNMT/OpenNMT-py#1190: settings given at resume count, and what changed is said."""
    run = ToyRun(tmp_path / "run")
    run.trainer(max_steps=3).run()
    with caplog.at_level("WARNING", logger="malmoi"):
        run.trainer(max_steps=4, lr=0.5).run()
    assert "training.lr was 0.01 and is now 0.5" in caplog.text
    assert [row["lr"] for row in rows_of(run.folder) if row["step"] == 4 and "lr" in row] == [0.5 * 4 / 10]


def test_other_surroundings_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = ToyRun(tmp_path / "run")
    run.trainer(max_steps=3).run()
    trainer = run.trainer(max_steps=4)
    trainer.surroundings["torch"] = "99.0"
    with caplog.at_level("WARNING", logger="malmoi"):
        trainer.run()
    assert "and is now 99.0" in caplog.text


@pytest.mark.parametrize("point", range(1, 13))
def test_a_failure_at_any_point_of_saving_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """Lightning-AI/pytorch-lightning#688; pytorch/pytorch#10577; rwth-i6/returnn#1829: stop between any two writes."""
    long = ToyRun(tmp_path / "long", max_steps=6, save_every=2)
    long.trainer().run()
    broken = ToyRun(tmp_path / "broken", max_steps=6, save_every=2)
    calls = 0
    original = state_module.flush

    def flush(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == point + 4:
            raise SystemExit
        original(path)

    with monkeypatch.context() as patch:
        patch.setattr(state_module, "flush", flush)
        with pytest.raises(SystemExit):
            broken.trainer().run()
    broken.trainer().run()
    assert_same(broken, long)
    assert not list(broken.folder.rglob(".tmp-*"))


def test_rows_of_a_step_that_was_saved_before_them_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state saved at the very step of a validation may be older than the row of the validation."""
    long = ToyRun(tmp_path / "long", max_steps=6, validate_every=4)
    long.trainer().run()
    parts = ToyRun(tmp_path / "parts", max_steps=6, validate_every=4)
    assert stop_at(parts, 4).step == 4

    def fail(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(ToyRun, "save_model", fail)
        with pytest.raises(SystemExit):
            parts.trainer().run()
    assert [row["step"] for row in rows_of(parts.folder) if "valid_loss" in row] == [4]
    parts.trainer().run()
    assert_same(parts, long)


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from malmoi.training import state
from tests.training_toys import VOCABULARY, ToyRun
calls = 0
original = state.flush
def flush(path):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    original(path)
state.flush = flush
ToyRun(Path(sys.argv[1]), max_steps=6, save_every=2).trainer().run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_kill_9_in_a_save(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#688: killed with a half-written state on the disk."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED_RUN, str(tmp_path / "killed"), "10"], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "killed" / "state").glob(".tmp-*"))
    killed = ToyRun(tmp_path / "killed", max_steps=6, save_every=2)
    killed.trainer().run()
    long = ToyRun(tmp_path / "long", max_steps=6, save_every=2)
    long.trainer().run()
    assert_same(killed, long)
    assert not list(killed.folder.rglob(".tmp-*"))


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_state_is_named_and_the_one_before_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    """pytorch/pytorch#10577: the error must name the bad file, and the run goes on from the former state."""
    long = ToyRun(tmp_path / "long", max_steps=8, save_every=2)
    long.trainer().run()
    run = ToyRun(tmp_path / "run", max_steps=8, save_every=2)
    run.trainer(max_steps=6).run()
    newest = sorted((run.folder / "state").iterdir())[-1] / name
    data = newest.read_bytes()
    if damage == "gone":
        newest.unlink()
    elif damage == "cut":
        newest.write_bytes(data[: len(data) // 2])
    else:
        newest.write_bytes(data[:-40] + bytes([data[-40] ^ 0xFF]) + data[-39:])
    with caplog.at_level("WARNING", logger="malmoi"):
        run.trainer().run()
    assert str(newest) in caplog.text
    assert "step-00000004" in caplog.text
    assert all(torch.equal(run.weights()[key], long.weights()[key]) for key in long.weights())
    assert len(list((run.folder / "state").iterdir())) == 2
    assert not newest.parent.exists()


def test_all_states_damaged(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", max_steps=4, save_every=2)
    run.trainer().run()
    for path in (run.folder / "state").glob("*/state.json"):
        path.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="no state of this run can be used"):
        run.trainer().run()


def test_a_full_disk_leaves_the_last_good_state(tmp_path: Path) -> None:
    """facebookresearch/fairseq#2684: a file system that fills up, played by a limit on the size of files."""
    resource = pytest.importorskip("resource")
    run = ToyRun(tmp_path / "run", max_steps=8, save_every=2)
    run.trainer(max_steps=4).run()
    before = sorted((run.folder / "state").iterdir())
    trainer = run.trainer()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be saved .* is intact"):
            trainer.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted((run.folder / "state").iterdir()) == before
    run.trainer().run()
    long = ToyRun(tmp_path / "long", max_steps=8, save_every=2)
    long.trainer().run()
    assert all(torch.equal(run.weights()[key], long.weights()[key]) for key in long.weights())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#688: told before training, with the folder's name."""
    run = ToyRun(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "state").write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="state: cannot be written"):
        run.trainer().run()


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", max_steps=2)
    run.trainer().run()
    trainer = run.trainer(max_steps=4)
    other = ToyRun(tmp_path / "other").trainer()
    trainer.network.target_embedding.weight.data = torch.zeros(5, 16)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        trainer.run()
    assert other is not trainer


def test_metrics_without_a_state_are_not_overwritten(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n', encoding="utf-8")
    with pytest.raises(CheckpointError, match="no state to go on from"):
        run.trainer().run()
    assert rows_of(run.folder) == [{"step": 5, "loss": 1.0}]


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", max_steps=5, log_every=4)
    first = run.trainer().run()
    rows, seen = rows_of(run.folder), list(run.seen)
    second = run.trainer().run()
    assert (second.reason, second.step) == (first.reason, first.step) == ("max_steps", 5)
    assert rows_of(run.folder) == rows
    assert run.seen == seen
