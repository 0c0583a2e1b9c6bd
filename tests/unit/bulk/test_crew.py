"""Workers in processes of this machine."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from malmoi.bulk.crew import end_with_parent

LONG = 120.0


def work() -> None:
    """A block that takes long, in a worker's process."""
    end_with_parent()
    sys.stdout.write("at work\n")
    sys.stdout.flush()
    time.sleep(LONG)


def begin() -> None:
    """Start a worker and wait to be killed."""
    multiprocessing.get_context("spawn").Process(target=work, daemon=True).start()
    time.sleep(LONG)


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe ends otherwise there")
def test_workers_end_with_whoever_started_them() -> None:
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", "from tests.unit.bulk.test_crew import begin; begin()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with subprocess.Popen(words, cwd=root, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"at work\n"
        began = time.monotonic()
        process.kill()
        # The worker holds the other end of this pipe as long as it lives.
        assert process.stdout.read() == b""
    assert time.monotonic() - began < LONG / 2
