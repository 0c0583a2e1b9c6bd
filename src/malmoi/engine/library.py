"""The native code of the engine: built when it is asked for, found again, and talked to.

In: the source files beside this one and a C++ compiler. Out: a shared library in the user's cache, under a name that
holds what it depends on: a library of another source or processor has another name and is never loaded.
Nothing is built but by `build`, which `malmoi doctor --build` alone calls.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from malmoi.decoding.interface import NOT_NUMBERS
from malmoi.errors import CheckpointError, ConfigError

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-std=c++17", "-fPIC", "-shared")
SOURCE_FOLDER = Path(__file__).parent / "native"
BUILD_SECONDS = 600


class Shape(ctypes.Structure):
    """`malmoi::Shape` of layers.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "width",
            "heads",
            "feed_forward",
            "vocabulary",
            "source_vocabulary",
            "encoder_layers",
            "decoder_layers",
            "norm_first",
            "root_mean_square",
            "activation",
            "positions",
            "distance",
            "int8",
        )
    ]


class EncodeCall(ctypes.Structure):
    """`malmoi::EncodeCall` of layers.h."""

    _fields_ = [
        ("sentences", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("ids", "lengths", "memories", "table")),
    ]


class StepCall(ctypes.Structure):
    """`malmoi::StepCall` of layers.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "rows",
                "rows_before",
                "stride_before",
                "stride",
                "best",
                "num_forbidden",
                "end_id",
                "places",
                "slot_shift",
                "sentences",
                "rows_each",
                "merged",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "tokens",
                "origins",
                "lengths_before",
                "slots_before",
                "fresh",
                "lengths",
                "slots",
                "chunks",
                "memories",
                "source_lengths",
                "table",
                "forbidden",
                "no_end",
                "log_probs",
                "best_log_probs",
                "best_ids",
                "end_log_probs",
                "attention",
                "alive",
                "totals",
                "merged_totals",
                "merged_log_probs",
                "merged_rows",
                "merged_ids",
                "is_plain",
            )
        ),
        ("most_steps", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("num_plain", "plain_rows", "plain_ids", "plain_log_probs", "plain_totals")
        ),
    ]


def address(array: NDArray[Any]) -> int:
    """Where the numbers of an array lie, which the caller keeps; quicker than numpy's own answer, as steps need it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array))) if array.size else 0


def check(result: int) -> None:
    """`MemoryError` where a call had none, `IndexError` for an id or a row that there is not, `CheckpointError` for
    numbers that are none: `Result` of layers.h."""
    match result:
        case 0:
            return
        case 1:
            raise MemoryError("no memory for a step of the engine")
        case 2:
            raise IndexError("an id is not in the vocabulary")
        case 3:
            raise IndexError("a row is not among those of the state")
        case _:
            raise CheckpointError(NOT_NUMBERS)


class Library:
    """The functions of a built library. Its calls do not hold Python's lock, so that threads compute side by side."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where the file cannot be loaded, `AttributeError` where it is not this library."""
        loaded = ctypes.CDLL(str(path))
        self.new = loaded.malmoi_engine_new
        self.new.argtypes, self.new.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
        self.free = loaded.malmoi_engine_free
        self.free.argtypes, self.free.restype = [ctypes.c_void_p], None
        self.encode = loaded.malmoi_engine_encode
        self.encode.argtypes, self.encode.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self.step = loaded.malmoi_engine_step
        self.step.argtypes, self.step.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self.go_greedily = loaded.malmoi_engine_go_greedily
        self.go_greedily.argtypes, self.go_greedily.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        kernels = loaded.malmoi_engine_kernels
        kernels.argtypes, kernels.restype = [], ctypes.c_char_p
        self.kernels: str = kernels().decode()


def source_files() -> list[Path]:
    """The source, the file to compile first."""
    return [SOURCE_FOLDER / name for name in ("engine.cpp", "decoder.h", "layers.h", "products.h")]


def cache_folder() -> Path:
    """Where built libraries lie: the user's own cache, as the system has it; `ConfigError` where that is nowhere."""
    maybe_given = os.environ.get("XDG_CACHE_HOME")
    if maybe_given and sys.platform not in ("win32", "darwin"):
        return Path(maybe_given) / "malmoi" / "engine"
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigError("this user has no home folder for the engine's native code: set HOME") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "malmoi" / "engine"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "malmoi" / "engine"
    return home / ".cache" / "malmoi" / "engine"


def processor() -> str:
    """What `-march=native` depends on: the machine and, where Linux tells them, model and flags of its processor."""
    lines = [platform.system(), platform.machine()]
    information = Path("/proc/cpuinfo")
    if information.exists():
        told = information.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].split("\n")
        wanted = ("model name", "flags", "features", "cpu implementer", "cpu part")
        lines += [line for line in told if line.lower().startswith(wanted)]
    else:
        lines.append(platform.processor())
    return "\n".join(lines)


def library_path(folder: Path | None = None) -> Path:
    """Where the library of this source for this processor lies or would lie."""
    key = hashlib.sha256()
    for path in source_files():
        key.update(path.read_bytes())
    key.update("\n".join([*FLAGS, processor()]).encode())
    return (folder or cache_folder()) / f"engine-{key.hexdigest()[:20]}.so"


def find_library(folder: Path | None = None) -> Library | None:
    """The built library, None where there is none for this source and processor, or where it cannot be loaded."""
    try:
        path = library_path(folder)
        return Library(path) if path.is_file() else None
    except (OSError, AttributeError, ConfigError):
        return None


def maybe_compiler() -> str | None:
    """A C++ compiler: the one that `CXX` names, else the first of the usual names that is there."""
    maybe_named = os.environ.get("CXX")
    return next((path for name in (maybe_named, *COMPILERS) if name and (path := shutil.which(name))), None)


def build(folder: Path | None = None) -> Path:
    """Compile the library, and leave it under its name; one that is there already is made anew.

    Raises `ConfigError` where there is no compiler, where it fails, or where the result does not work.
    """
    compiler = maybe_compiler()
    if compiler is None or sys.platform == "win32":
        raise ConfigError(
            "no C++ compiler that can build the engine: install GCC or Clang (c++, g++ or clang++ on the PATH; "
            "Debian: apt install g++; macOS: xcode-select --install)"
        )
    path = library_path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as scratch:
            built = Path(scratch) / path.name
            command = [compiler, *FLAGS, str(source_files()[0]), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            if done.returncode:
                raise ConfigError(f"{compiler} could not compile the engine:\n{done.stderr.strip()[-2000:]}")
            Library(built)
            built.replace(path)
    except (OSError, AttributeError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the engine could not be built in {path.parent}: {error}") from error
    return path


def other_builds(folder: Path | None = None) -> list[Path]:
    """Libraries in the cache that this source and processor do not use: of another version or machine."""
    path = library_path(folder)
    return sorted(one for one in path.parent.glob("engine-*.so") if one != path)
