"""Locks that the system lets go of, and what is done where it has none."""

import errno
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from malmoi.files import try_lock


class FakeWindows(ModuleType):
    """`msvcrt` as its documentation has it: a byte is locked by one descriptor at a time."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.taken: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        # All descriptors of these tests are of one file, at its start.
        if self.taken:
            raise OSError(errno.EACCES, "Permission denied")
        self.taken[descriptor, 0] = count


def test_a_second_holder_is_refused_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msvcrt", FakeWindows())
    path = tmp_path / "lock"
    path.write_bytes(b"left over")
    with path.open("ab") as first, path.open("ab") as second:
        assert try_lock(first, "win32")
        assert first.tell() == 0
        assert not try_lock(second, "win32")


def test_a_second_holder_is_refused_here_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as first, path.open("ab") as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.close()
        assert try_lock(second)


def test_a_file_system_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    posix = ModuleType("fcntl")

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(posix, "flock", flock, raising=False)
    monkeypatch.setattr(posix, "LOCK_EX", 2, raising=False)
    monkeypatch.setattr(posix, "LOCK_NB", 4, raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", posix)
    with (tmp_path / "lock").open("ab") as file:
        assert try_lock(file, "linux")
    assert "No locks available" in caplog.text and str(tmp_path / "lock") in caplog.text
