"""`torchrun -m malmoi train`: killed and restarted, told to stop, resumed; to the weights of an undisturbed run."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.product_toys import FAST, sentences, write
from torch import equal

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are looked up in /proc")
LAST_STEP = 200
WORDS = (
    "train",
    "train.tsv",
    *FAST,
    f"training.max_steps={LAST_STEP}",
    "training.save_every=10",
    "training.validate_every=1000",
    "training.metrics=['loss','exact']",
    "training.log_every=1",
)
MINUTES = 10 * 60
ROOT = Path(__file__).parents[2]
IN_FORKS = """
import sys
from malmoi.commands import train
from malmoi.commands.main import app
from tests.rank_processes import fork_ranks
for out in ("hurt", "whole"):
    statuses = fork_ranks(2, lambda _: app([*sys.argv[1:], "--out", out], standalone_mode=False) or 0)
    assert statuses == [0, 0], statuses
"""
"""Two runs, each by two ranks; forks do what torchrun's processes do, and need not import everything anew."""


def start(folder: Path, out: str, *, max_restarts: int = 0) -> "subprocess.Popen[bytes]":
    """Two ranks; what they say goes to a file, so that nobody waits for a reader."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={max_restarts}"]
    with (folder / f"{out}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *words, "-m", "malmoi", *WORDS, "--out", out],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )


def ranks_of(launcher: "subprocess.Popen[bytes]") -> dict[int, int]:
    """Process ids of a launcher's children by rank."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        rank = next((word[5:] for word in words if word.startswith(b"RANK=")), None)
        if parent == launcher.pid and rank is not None:
            found[int(rank)] = int(path.name)
    return found


def steps(folder: Path, out: str) -> int:
    """The newest step that a run has told of."""
    metrics = folder / out / "metrics.jsonl"
    told = re.findall(rb'"step": (\d+)', metrics.read_bytes()) if metrics.exists() else []
    return int(told[-1]) if told else 0


def wait_until(condition: Callable[[], bool], launcher: "subprocess.Popen[bytes]", log: Path) -> None:
    began = time.monotonic()
    while not condition():
        assert launcher.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() - began < MINUTES, log.read_text(encoding="utf-8")
        time.sleep(0.01)


def test_killed_restarted_stopped_and_resumed(tmp_path: Path) -> None:
    """pytorch/pytorch#33148, #38174 and #28257: who is left does not wait for who is gone."""
    write(tmp_path / "train.tsv", [f"{source}\t{target}" for source, target in sentences(300, seed=3)])
    log = tmp_path / "hurt.log"
    launcher = start(tmp_path, "hurt", max_restarts=1)
    try:
        wait_until(lambda: steps(tmp_path, "hurt") >= 25, launcher, log)
        first = ranks_of(launcher)
        os.kill(first[1], signal.SIGKILL)
        wait_until(lambda: b"going on from step" in log.read_bytes(), launcher, log)
        resumed_at = int(re.findall(rb"going on from step (\d+)", log.read_bytes())[0])
        assert 20 <= resumed_at < LAST_STEP
        wait_until(lambda: steps(tmp_path, "hurt") >= resumed_at + 15, launcher, log)
        second = ranks_of(launcher)
        assert set(second) == {0, 1} and not set(second.values()) & set(first.values())
        for process in second.values():
            os.kill(process, signal.SIGTERM)
        told = time.monotonic()
        assert launcher.wait(MINUTES) != 0
        assert time.monotonic() - told < 25
    finally:
        launcher.kill()
        launcher.wait()
    text = log.read_text(encoding="utf-8")
    assert text.count("received SIGTERM: state of step") == 1
    assert text.count("malmoi: rank 0: another process of this run is gone") == 1
    assert re.findall(r"exitcode +: (-?\d+)", text.rpartition("received SIGTERM")[2]) == ["143", "143"]
    stopped_at = int(re.findall(r"state of step (\d+) saved", text)[0])
    assert resumed_at < stopped_at < LAST_STEP

    done = subprocess.run(
        [sys.executable, "-c", IN_FORKS, *WORDS],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=MINUTES,
    )
    assert done.returncode == 0, done.stderr.decode()
    weights = [
        load_file(tmp_path / out / "checkpoints" / f"step-{LAST_STEP:08d}" / "model.safetensors")
        for out in ("hurt", "whole")
    ]
    assert all(equal(weights[0][name], tensor) for name, tensor in weights[1].items())
    # Each message once, whatever the number of ranks.
    assert done.stdout.count(b"updates in") == 2
    assert done.stderr.count(b"step 200: loss") == 2
