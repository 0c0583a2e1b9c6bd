"""Standard streams that were closed before the program started."""

import sys

import pytest

from malmoi.__main__ import open_missing_streams


def test_closed_streams_are_empty_and_swallow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_missing_streams()
    with sys.stdin, sys.stdout, sys.stderr:
        assert sys.stdin.buffer.read() == b""
        assert sys.stdout.write("lost") == 4
        assert sys.stderr.write("lost") == 4
