"""The engine's native code for tests: built once for a process, in a folder that goes when the process ends."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from malmoi.engine.library import Library, find_library
from malmoi.native.library import build, maybe_compiler


@functools.cache
def folder_with_library() -> Path:
    """A cache folder that holds the built library."""
    folder = Path(tempfile.mkdtemp(prefix="malmoi-engine-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


@functools.cache
def loaded() -> Library:
    library = find_library(folder_with_library())
    assert library is not None
    return library


def native_library() -> Library:
    """The library; without a compiler the test that asks is skipped."""
    if maybe_compiler() is None:
        pytest.skip("there is no C++ compiler here, so the engine's native code cannot be tried")
    return loaded()
