"""The run folder: where everything lies that belongs to a run, and whether a run can live there.

In: a path. Out: the names of its parts; `ConfigError` or `CheckpointError` before any work where it cannot serve.
"""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from malmoi.config.run import RunConfig
from malmoi.errors import CheckpointError, ConfigError
from malmoi.files import TEMPORARY, try_lock
from malmoi.settings import build_config, read_toml

LOCK = ".lock"
EARLY = (LOCK, "log.txt", "environment.json")
"""What a start that ended before its `config.toml` leaves, beside temporary names."""
MARKS = (LOCK, "environment.json", "data/ready.json")
"""What tells a folder of malmoi with a `config.toml` from a folder of the user with one."""
SPARE_BYTES = 200 * 2**20


@dataclass(frozen=True)
class RunFolder:
    """A run folder and the names of its parts."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def curves(self) -> Path:
        return self.path / "curves.svg"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def read_config(self) -> RunConfig | None:
        """The config of the run that lives here, if one does."""
        return build_config(read_toml(self.config), str(self.config)) if self.config.exists() else None


def claim_folder(path: Path, option: str = "--out", mark: str = "config.toml") -> RunFolder:
    """Make the folder, unless it is somebody else's, cannot be written or has no room.

    `mark` is the file by which a folder of the kind that is wanted is known.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{option} {str(path)!r}: the name must be UTF-8, since it is written down") from None
    if path.is_file():
        raise ConfigError(f"{option} {path}: this is a file; give the name of a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        maybe_stranger = find_stranger(path, mark)
        if maybe_stranger is not None:
            raise ConfigError(
                f"{option} {path}: holds other files ({maybe_stranger}, ...) and no complete run; "
                "give the name of a new folder"
            )
        with tempfile.TemporaryFile(dir=path):
            pass
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise CheckpointError(f"{option} {path}: cannot be written ({error.strerror or error})") from error
    if free < SPARE_BYTES:
        raise CheckpointError(f"{option} {path}: only {free / 2**20:.0f} MiB are free there; make room first")
    return RunFolder(path)


def find_stranger(path: Path, own: str = "config.toml") -> str | None:
    """A file by which a folder is seen not to be malmoi's, so that nobody's own `model` or `data` is overwritten."""
    if (path / own).is_file() and any((path / mark).is_file() for mark in MARKS):
        return None
    inside = sorted(one.name for one in path.iterdir())
    is_early = LOCK in inside
    strange = [name for name in inside if not (is_early and (name in EARLY or name.startswith(TEMPORARY)))]
    return strange[0] if strange else None


@contextmanager
def alone_in(folder: RunFolder) -> Generator[None]:
    """Hold the folder for as long as the `with` block lasts: two runs in one would overwrite each other.

    The system lets go of it however the process ends.
    """
    with (folder.path / LOCK).open("ab") as file:
        if not try_lock(file):
            raise CheckpointError(f"{folder.path}: another process is at work in this folder; wait for it")
        yield
