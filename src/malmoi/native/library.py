"""Native code: built when it is asked for, and found again.

In: the source files beside this one and a C++ compiler. Out: a shared library in the user's cache, under a name that
holds what it depends on: a library of another source or processor has another name and is never loaded. Who talks to it
stands in `engine` (search) and `training.py` (updates). Nothing is built but by `build`, which `malmoi doctor --build`
alone calls.
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

from malmoi.errors import ConfigError

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-std=c++17", "-fPIC", "-shared")
SOURCE_FOLDER = Path(__file__).parent / "source"
SYMBOLS = ("malmoi_engine_new", "malmoi_training_loss")
"""One function of each part, without which a file is not this library."""
BUILD_SECONDS = 600


def source_files() -> list[Path]:
    """The source, the file to compile first."""
    return [
        SOURCE_FOLDER / name
        for name in (
            "engine.cpp",
            "decoder.h",
            "layers.h",
            "products.h",
            "bytes.h",
            "vectors.h",
            "halves.h",
            "training.h",
            "consistency.h",
            "attention.h",
            "residual.h",
            "share.h",
        )
    ]


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


def find_library_path(folder: Path | None = None) -> Path | None:
    """The built library, None where there is none for this source and processor."""
    try:
        path = library_path(folder)
        return path if path.is_file() else None
    except (OSError, ConfigError):
        return None


def check_symbols(path: Path) -> None:
    """Raises `OSError` where the file cannot be loaded, `AttributeError` where it is not this library."""
    loaded = ctypes.CDLL(str(path))
    for symbol in SYMBOLS:
        getattr(loaded, symbol)


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
                raise ConfigError(f"{compiler} could not compile the native code:\n{done.stderr.strip()[-2000:]}")
            check_symbols(built)
            built.replace(path)
    except (OSError, AttributeError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the native code could not be built in {path.parent}: {error}") from error
    return path


def other_builds(folder: Path | None = None) -> list[Path]:
    """Libraries in the cache that this source and processor do not use: of another version or machine."""
    path = library_path(folder)
    return sorted(one for one in path.parent.glob("engine-*.so") if one != path)
