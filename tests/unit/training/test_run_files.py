"""Rows, kept checkpoints and what is said of a run's health."""

from pathlib import Path

import pytest

from malmoi.errors import CheckpointError
from malmoi.training.checkpoints import Checkpoint, choose_kept, is_better, remove_folder, remove_temporaries
from malmoi.training.meters import Meter, MetricsFile
from malmoi.training.step import UpdateResult


def test_rows_after_the_saved_ones_and_half_rows_go(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (5, 10, 15):
        metrics.append({"step": step, "loss": 1 / 3})
    with metrics.path.open("ab") as file:
        file.write(b'{"step": 20, "lo')
    metrics.cut_back(2)
    assert (
        metrics.path.read_bytes()
        == b'{"step": 5, "loss": 0.3333333333333333}\n{"step": 10, "loss": 0.3333333333333333}\n'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1, "valid_perplexity": float("inf"), "valid_bleu": float("nan")})
    assert metrics.path.read_text(encoding="utf-8") == '{"step": 1, "valid_perplexity": null, "valid_bleu": null}\n'


def test_metrics_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be written"):
        MetricsFile(tmp_path / "metrics.jsonl").append({"step": 1})


def test_a_meter_weights_by_tokens() -> None:
    meter = Meter(seconds=2.0)
    meter.add(UpdateResult(loss=10.0, nll=8.0, num_tokens=5, norm=1.0))
    meter.add(UpdateResult(loss=2.0, nll=1.0, num_tokens=1, norm=3.0))
    assert meter.row() == {"loss": 2.0, "nll": 1.5, "gradient_norm": 2.0, "target_tokens_per_second": 3.0}


def test_kept_checkpoints() -> None:
    values = {1: 5.0, 2: 9.0, 3: 9.0, 4: 1.0, 5: 2.0}
    checkpoints = [Checkpoint(step, f"step-{step}", {"bleu": value}) for step, value in values.items()]
    kept, superfluous = choose_kept(checkpoints, "bleu", keep_last=1, keep_best=1)
    # Of two equal ones the earlier.
    assert [checkpoint.step for checkpoint in kept] == [2, 5]
    assert [checkpoint.step for checkpoint in superfluous] == [1, 3, 4]
    assert choose_kept(checkpoints, "bleu", keep_last=0, keep_best=0) == ([], checkpoints)
    unmeasured = [Checkpoint(6, "step-6")]
    assert choose_kept(unmeasured, "bleu", keep_last=0, keep_best=3) == ([], unmeasured)


@pytest.mark.parametrize("keep_last", [0, 1, 2, 3, 5, 10])
def test_the_last_checkpoints_are_kept_one_by_one(keep_last: int) -> None:
    """As they come: fewer than are to be kept are all kept."""
    kept: list[Checkpoint] = []
    for step in range(1, 21):
        kept, _ = choose_kept([*kept, Checkpoint(step, f"step-{step}", {"loss": 1.0})], "loss", keep_last, keep_best=0)
        assert [one.step for one in kept] == list(range(max(1, step - keep_last + 1), step + 1))


def test_better_goes_by_the_metric() -> None:
    assert is_better("bleu", 2.0, 1.0) and not is_better("bleu", 1.0, 1.0)
    assert is_better("loss", 1.0, 2.0) and not is_better("ser", 2.0, 1.0)
    assert is_better("loss", 9.0, None)
    assert not is_better("loss", float("nan"), None)


def test_folders_are_removed_under_a_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "file").write_bytes(b"x")
    (tmp_path / ".tmp-removed-step-1").mkdir()
    (tmp_path / ".tmp-other").write_bytes(b"x")
    remove_folder(tmp_path / "step-1")
    remove_folder(tmp_path / "step-2")
    assert [path.name for path in tmp_path.iterdir()] == [".tmp-other"]
    remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []
