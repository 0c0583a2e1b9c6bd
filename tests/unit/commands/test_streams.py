"""What is put right before a command runs: streams that were closed, threads that would spin."""

import subprocess
import sys

import pytest

from malmoi.__main__ import SPIN_COUNT, open_missing_streams, shorten_spinning


def test_closed_streams_are_empty_and_swallow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_missing_streams()
    with sys.stdin, sys.stdout, sys.stderr:
        assert sys.stdin.buffer.read() == b""
        assert sys.stdout.write("lost") == 4
        assert sys.stderr.write("lost") == 4


def test_threads_sleep_soon_unless_the_user_said_how_they_wait() -> None:
    environment: dict[str, str] = {}
    shorten_spinning(environment)
    assert environment == {"GOMP_SPINCOUNT": str(SPIN_COUNT)}
    for own in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        environment = dict(own)
        shorten_spinning(environment)
        assert environment == own


def test_torch_is_not_loaded_before() -> None:
    """It reads the variables when it is loaded, so that nothing that the program begins with may load it."""
    command = [sys.executable, "-c", "import sys, malmoi.__main__; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
