"""Breaks each mechanism once, in a copy of the tree, and sees that a test fails.

    python tests/mutations.py            all of them, which takes a while
    python tests/mutations.py mask beam  those whose mechanism holds one of the words

In: the list in `mutations.toml`. Out: a line per mutation with the first test that failed, or `SURVIVED`; status 1 if
one survived. Not collected by pytest. A mutation that no longer fits the source is an error: bring it up to date.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("src", "tests", "configs", "pyproject.toml", "README.md")
NOT_COPIED = shutil.ignore_patterns("__pycache__")
TIME_LIMIT = 900
"""Seconds for the tests of one mutation; a search without an end counts as noticed."""


@dataclass(frozen=True)
class Mutation:
    """One mechanism, what is broken about it, and the tests that must notice."""

    mechanism: str
    broken: str
    file: str
    old: str
    new: str
    tests: list[str]


def read_mutations() -> list[Mutation]:
    """The list of `mutations.toml`."""
    rows = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**row, "tests": [f"tests/{test}" for test in row["tests"]]}) for row in rows]


def main(words: list[str]) -> int:
    """Run the mutations whose mechanism holds one of the words, all without any."""
    chosen = [one for one in read_mutations() if not words or any(word in one.mechanism for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        status, first = run_tests(tree, sorted({test for one in chosen for test in one.tests}), None)
        if status != 0:
            raise SystemExit(f"the tests fail before anything is broken: {first}")
        for one in chosen:
            noticed = try_mutation(tree, one)
            survivors += noticed is None
            tell(f"{one.mechanism} | {one.broken} (src/malmoi/{one.file}) | {noticed or 'SURVIVED'}")
    tell(f"{len(chosen)} mutations, {survivors} survived")
    return int(survivors > 0)


def copy_tree(tree: Path) -> None:
    """What the tests need, and proof that they import it."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=NOT_COPIED)
        else:
            shutil.copy2(ROOT / part, tree / part)
    command = [sys.executable, "-c", "import malmoi; print(malmoi.__file__)"]
    found = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(tree / "src"), f"the copy is not what is imported, but {found}"


def environment(tree: Path) -> dict[str, str]:
    """The copy's source first; no bytecode, which goes by time stamps too coarse for quick changes."""
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def try_mutation(tree: Path, mutation: Mutation) -> str | None:
    """The first test that notices; None if none does."""
    path = tree / "src" / "malmoi" / mutation.file
    sound = path.read_text(encoding="utf-8")
    count = sound.count(mutation.old)
    assert count == 1, f"{mutation.file} holds {mutation.old!r} {count} times instead of once"
    path.write_text(sound.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        status, first = run_tests(tree, mutation.tests, TIME_LIMIT)
    finally:
        path.write_text(sound, encoding="utf-8")
    assert status in (0, 1), f"{mutation.mechanism}, {mutation.broken}: the tests cannot run ({first})"
    return first if status else None


def run_tests(tree: Path, tests: list[str], limit: int | None) -> tuple[int, str]:
    """Status of pytest, and the first test that failed (or the end of what was printed)."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=no", *tests]
    try:
        result = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {limit} s"
    failed = [line.split(" ")[1] for line in result.stdout.splitlines() if line.startswith("FAILED ")]
    return result.returncode, failed[0] if failed else result.stdout[-500:] + result.stderr[-500:]


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
