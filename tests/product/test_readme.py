"""The README is true: its commands are run as they stand, with few updates, and the Korean one has the same."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.product_toys import FAST, sentences, write

ROOT = Path(__file__).parents[2]
README, README_KO = ROOT / "README.md", ROOT / "README.ko.md"
SETUP = ("git ", "make ", "python3 -m venv", "pip install")
"""Lines that need a network or make an environment; `.ci/run` starts from the very same."""


def blocks(path: Path, language: str) -> list[str]:
    """Fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(path: Path) -> list[str]:
    """Lines of the shell blocks without their comments."""
    lines = [line.split("  #")[0].strip() for block in blocks(path, "sh") for line in block.splitlines()]
    return [line for line in lines if line]


def to_run(path: Path) -> list[str]:
    """Commands that use malmoi itself."""
    return [line for line in commands(path) if not line.startswith(SETUP)]


def shortened(command: str) -> str:
    """The same command with settings that make it short; what it does stays."""
    if command.startswith("malmoi demo"):
        return f"{command} --steps 2"
    if command.startswith("malmoi train"):
        settings = [word for word in FAST if "preset" not in command or not word.startswith("model.")]
        return " ".join([command, *map(shlex.quote, settings)])
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader stands: the files that the README speaks of, and the configs of the checkout."""
    folder = tmp_path_factory.mktemp("reader")
    for name, count in (("train", 200), ("valid", 20)):
        pairs = sentences(count, seed=count)
        write(folder / f"{name}.en", [source for source, _ in pairs])
        write(folder / f"{name}.de", [target for _, target in pairs])
    (folder / "configs").symlink_to(ROOT / "configs")
    return folder


def test_the_korean_readme_has_the_same_commands() -> None:
    assert len(commands(README)) >= 8
    assert commands(README_KO) == commands(README)
    assert blocks(README_KO, "python") == blocks(README, "python")


def test_every_command_works(folder: Path) -> None:
    """In their order, each in a shell of its own, then the Python example, which uses the model that they left."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    outputs: dict[str, str] = {}
    messages: dict[str, str] = {}
    for command in to_run(README):
        words = shortened(command)
        result = subprocess.run(
            words, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{words}\n{result.stderr}"
        outputs[command], messages[command] = result.stdout, result.stderr
    translated = outputs['echo "a dog runs" | malmoi translate run']
    assert translated.count("\n") == 1
    # "The best checkpoint or the mean of the last ones, whichever does better."
    assert "mean of 2 checkpoints" in messages["malmoi train train.en train.de --out run"]
    for block in blocks(README, "python"):
        result = subprocess.run(
            [sys.executable, "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout == translated


def test_linked_files_exist() -> None:
    for path in (README, README_KO):
        links = re.findall(r"\]\((?!https?://)([^)#]+)\)", path.read_text(encoding="utf-8"))
        assert links
        for link in links:
            assert (ROOT / link).exists(), f"{path.name}: {link}"
