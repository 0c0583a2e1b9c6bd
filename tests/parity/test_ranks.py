"""Several ranks give what one process gives: losses, weights, validation, decisions (gloo, on the CPU)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks here")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tests.rank_scenarios` found with 1, 2 and 4 ranks."""
    place = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", "tests.rank_scenarios", str(place)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr.decode()
    statuses = json.loads((place / "statuses.json").read_text(encoding="utf-8"))
    assert statuses == {"1": [0], "2": [1, 1], "4": [0, 0, 0, 0]}, done.stderr.decode()
    return place


def found(folder: Path, num_ranks: int) -> dict[str, Any]:
    return json.loads((folder / f"{num_ranks}.json").read_text(encoding="utf-8"))


def flat(weights: dict[str, list[float]]) -> list[float]:
    return [value for name in sorted(weights) for value in weights[name]]


def assert_same(ours: dict[str, Any], alone: dict[str, Any]) -> None:
    """All numbers within 1e-9."""
    for key in ("losses", "norms"):
        assert ours[key] == pytest.approx(alone[key], rel=0, abs=1e-9)
    assert ours["valid"][-1] == pytest.approx(alone["valid"][-1], abs=1e-6)
    assert flat(ours["weights"]) == pytest.approx(flat(alone["weights"]), rel=0, abs=1e-9)
    assert ours["tokens"] == alone["tokens"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize(("num_ranks", "name"), [(2, "whole"), (2, "parts"), (4, "parts"), (2, "again"), (2, "rnn")])
def test_ranks_train_as_one_process(folder: Path, kind: str, num_ranks: int, name: str) -> None:
    """pytorch/pytorch#33148, #38174 and #28257: ranks with unequal rows, and with none, make the same updates.

    In float64, with micro-batches and without, with clipping that binds and averaged weights.
    """
    ours, alone = found(folder, num_ranks)["training"], found(folder, 1)["training"]
    assert len(alone[f"{kind} {name}"]["losses"]) >= 2
    assert max(alone[f"{kind} {name}"]["norms"]) > 0.5
    assert_same(ours[f"{kind} {name}"], alone[f"{kind} {name}"])


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_all_ranks_split_where_one_has_too_little_memory(folder: Path, name: str) -> None:
    """And give the gradients of the update that was not split."""
    ours, alone = found(folder, 2)["splitting"], found(folder, 1)["splitting"]
    whole, split = ours[f"{name} gradients"]
    assert set(split) == set(whole) and len(whole) > 10
    for parameter, values in whole.items():
        assert split[parameter] == pytest.approx(values, rel=0, abs=1e-12), parameter
    assert ours[f"{name} sizes"] == [[7.0], [7.0]]
    assert_same(ours[name], alone[name])


def test_a_split_leaves_no_trace_of_a_stop(folder: Path) -> None:
    """With dropout, down to the last bit, whichever pass had room for the gradients of others."""
    ours = found(folder, 2)["splitting"]
    assert ours["stopped"]["weights"] == ours["long"]["weights"]
    assert ours["stopped"]["losses"] == ours["long"]["losses"]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_read_stores_as_one_process_and_no_pair_twice(folder: Path, num_ranks: int) -> None:
    """In windows, with weights that change, stopped twice: each rank reads its own rows alone."""
    ours, alone = found(folder, num_ranks)["reading"], found(folder, 1)["reading"]
    assert len(alone["losses"]) == 12
    assert_same(ours, alone)
    # What was read ahead of a stop is read again after it, by one process and by many.
    together = [sorted(index for part in parts for index in part) for parts in zip(*ours["read"], strict=True)]
    assert together == [sorted(batch) for batch in alone["read"][0]]
    assert all(len(parts[0]) < 30 for parts in zip(*ours["read"], strict=True))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_in_fp32(folder: Path, kind: str) -> None:
    """Weights may part further: where the true gradient is zero, Adam makes full steps of its rounding."""
    ours, alone = found(folder, 2)["training"][f"{kind} fp32"], found(folder, 1)["training"][f"{kind} fp32"]
    assert ours["losses"] == pytest.approx(alone["losses"], rel=0, abs=1e-5)


def test_a_run_goes_on_with_other_ranks_and_in_the_other_kind(folder: Path) -> None:
    """Two updates by one process, two by two ranks, two by four; and two with FSDP2, then two with DDP."""
    whole = found(folder, 1)["training"]["ddp whole"]["losses"]
    handed_on = found(folder, 4)["hand_on"]
    assert len(handed_on["losses"]) == 6
    assert handed_on["losses"][:3] == pytest.approx(whole, abs=1e-9)
    assert found(folder, 2)["resuming"]["handed on"]["losses"] == handed_on["losses"][:4]
    moved, alone = found(folder, 2)["resuming"]["moved"], found(folder, 1)["resuming"]["moved"]
    assert handed_on["losses"][:4] == pytest.approx(alone["losses"], abs=1e-9)
    assert_same(moved, alone)


def test_a_stop_leaves_no_trace_with_the_same_ranks(folder: Path) -> None:
    """With dropout, whose bits depend on the rank too, down to the last bit."""
    both = found(folder, 2)["resuming"]
    assert both["stopped"]["weights"] == both["long"]["weights"]
    assert both["stopped"]["losses"] == both["long"]["losses"] != found(folder, 1)["resuming"]["long"]["losses"]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("num_lines", [61, 3])
def test_validation_counts_each_line_once_and_in_order(folder: Path, num_ranks: int, num_lines: int) -> None:
    """pytorch/pytorch#25162 and #22584: to the last bit the same on any number of ranks."""
    ours, alone = (found(folder, count)["validating"][str(num_lines)] for count in (num_ranks, 1))
    assert [int(text.split()[0]) for text in ours["texts"]] == list(range(num_lines))
    assert ours == alone


def test_all_ranks_stop_by_the_score_of_the_first(folder: Path) -> None:
    """speechbrain/speechbrain#1939 and #2051: in the same step, and with status 0."""
    assert found(folder, 2)["stopping"]["patient"]["outcomes"] == [["patience", 4, 0, 0]] * 2


@pytest.mark.parametrize(("moment", "step"), [("in an update", 3), ("while waiting", 2), ("in validation", 2)])
def test_a_signal_to_one_rank_stops_all(folder: Path, moment: str, step: int) -> None:
    """speechbrain/speechbrain#1939 and #2051: in the same step, with the signal's status in each."""
    stopped = found(folder, 2)["stopping"][moment]
    assert stopped["outcomes"] == [["signal", step, 143, 0]] * 2
    assert stopped["seconds"] < 60


def test_a_bad_update_of_one_rank_is_skipped_by_all(folder: Path) -> None:
    """And ten in a row send all of them back together."""
    ours, alone = found(folder, 2)["poisoned"], found(folder, 1)["poisoned"]
    assert ours["outcomes"] == [["max_steps", 6, 0, 1]] * 2
    assert ours["skipped"] == alone["skipped"] == 10
    assert_same(ours, alone)


def test_an_error_of_one_rank_ends_all(folder: Path) -> None:
    """pytorch/pytorch#33148, #38174 and #28257: the third batch of the last rank cannot be read."""
    first, last = (json.loads((folder / f"failed-2-{rank}.json").read_text(encoding="utf-8")) for rank in range(2))
    assert last["kind"] == "DataError"
    assert last["message"] == "rank 1: train.src, line 7: cannot be read"
    assert first["kind"] == "RankError"
    assert "another process of this run is gone" in first["message"]
    assert abs(first["time"] - last["time"]) < 60
