"""A virtual environment for each toolkit, outside the checkout, made once per list of versions. Standard library only.

In: a contestant's pinned requirements. Out: the path of a Python that has them; `UnavailableError` with the reason.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

TORCH = "2.13.0"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_NEEDS = (
    "filelock==4.3.1",
    "fsspec==2026.9.0",
    "Jinja2==3.1.6",
    "MarkupSafe==3.0.4",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "sympy==1.14.0",
    "typing_extensions==4.16.0",
)
STAMP = "malmoi-benchmark.txt"


class UnavailableError(Exception):
    """A contestant that cannot take part, and why."""


def python_of(name: str, requirements: tuple[str, ...], folder: Path, *, torch: bool = True) -> str:
    """The interpreter of a toolkit's environment, which is made if its stamp is not that of these requirements."""
    if not requirements:
        return sys.executable
    place = folder / name
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    listed = (TORCH, TORCH_NEEDS, requirements) if torch else requirements
    stamp = hashlib.blake2b(repr(listed).encode(), digest_size=8).hexdigest()
    if python.exists() and (place / STAMP).exists() and (place / STAMP).read_text(encoding="ascii") == stamp:
        return str(python)
    print(f"{name}: installing into {place}", file=sys.stderr, flush=True)
    run([sys.executable, "-m", "venv", "--clear", str(place)], name)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-compile", "--quiet"]
    if torch:
        from_torch = [*pip, "--index-url", TORCH_INDEX, "--timeout", "10", "--retries", "0", f"torch=={TORCH}"]
        if os.name == "nt" or subprocess.run(from_torch, capture_output=True, check=False).returncode:
            run([*pip, f"torch=={TORCH}"], name)
    run([*pip, *(TORCH_NEEDS if torch else ()), *requirements], name)
    (place / STAMP).write_text(stamp, encoding="ascii")
    return str(python)


def run(command: list[str], name: str, folder: Path | None = None, environment: dict[str, str] | None = None) -> None:
    """A command that must succeed; its last words are the reason if it does not."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    if result.returncode:
        words = " ".join(command[:6])
        raise UnavailableError(f"{name}: `{words} …` ended with {result.returncode}: {last_words(result)}")


def last_words(result: subprocess.CompletedProcess[str]) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in (result.stdout + "\n" + result.stderr).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
