"""Files and folders that are whole or not there, and the hashes by which they are known again.

In: a complete folder under a temporary name, or the bytes of a file. Out: the same under its own name, in one step, so
that a kill or a full disk leaves what was there before.
"""

import hashlib
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from malmoi.errors import CheckpointError
from malmoi.log import get_logger

TEMPORARY = ".tmp-"
"""What the names of half-written files and folders begin with."""
FORMER = ".former-"
BYTES_AT_ONCE = 1 << 22


def replace_folder(new: Path, folder: Path) -> None:
    """Put a complete folder under its name. The former one steps aside first and goes last, see `recover`."""
    former = former_of(folder)
    if folder.exists():
        if former.exists():
            shutil.rmtree(former)
        folder.rename(former)
    new.rename(folder)
    flush(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def former_of(folder: Path) -> Path:
    """Where a folder stands while another takes its place."""
    return folder.with_name(f"{FORMER}{folder.name}")


def recover(folder: Path) -> None:
    """Bring back the former folder where a kill came between the two renames of `replace_folder`."""
    former = present(folder)
    if former != folder:
        former.rename(folder)


def present(folder: Path) -> Path:
    """The folder, or the former one where a save was cut short between its renames; nothing is changed."""
    # A folder without a name is `.` or the root, which no save replaces.
    if folder.exists() or not folder.name:
        return folder
    former = former_of(folder)
    if not former.is_dir():
        return folder
    get_logger().warning("%s: a save was cut short; the former one is used", folder)
    return former


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    try:
        # Windows flushes only what is open for writing.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except PermissionError:
        # Windows does not open folders; renames there are journalled.
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace one file by new content, whole or not at all; `CheckpointError` where that fails."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}); what was there before is unchanged"
        ) from error


def try_lock(file: BinaryIO, platform: str = sys.platform) -> bool:
    """Take a file for this process until it is closed or the process ends, however that comes; False if it is taken.

    `flock` of POSIX; where a file system refuses it nothing is locked, and that is told. On Windows the
    first byte is locked (`msvcrt.locking`; untried on a real one).
    """
    if platform == "win32":
        windows: Any = import_module("msvcrt")
        file.seek(0)
        try:
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    posix: Any = import_module("fcntl")
    try:
        posix.flock(file, posix.LOCK_EX | posix.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        get_logger().warning(
            "%s: cannot be locked (%s); see to it that no other process works in this folder", file.name, error.strerror
        )
    return True


def measure(path: Path) -> tuple[int, str]:
    """Size in bytes and blake2b hash of a file."""
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with path.open("rb") as file:
        while block := file.read(BYTES_AT_ONCE):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def hash_bytes(data: bytes) -> str:
    """blake2b of bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
