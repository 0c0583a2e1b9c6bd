"""A job of bulk translation as a folder beside its output: whatever ends it, the same command goes on from there.

In: what is to be translated, by which model and how; answers, block by block. Out: the output file.

While a job lasts, `OUT.parts/` stands beside OUT:

* `job.json`: size and hash of the input and of files of wishes, hash of the model folder, decoding settings, what is
  written for a line, lines of a block; and how many lines and blocks there are. A job goes on only if all of it is the
  same; otherwise it is refused, with the names of what differs.
* `NUMBER.block`: the answers to a block, named by the number of its first line. It is written under a temporary name,
  flushed and renamed, so that it is whole or not there, and it is never made twice. It has the form of OUT (plain,
  gzip, zstd): OUT is all blocks one after another, since gzip and zstd files may be strung together.
* `NUMBER.faults`: messages about lines of a block that could not be translated (they are empty in OUT); written before
  the block, and only where there are any.
* `lock`: held by the process that leads the job. Workers never write here.
* `whole`: OUT while it is put together. It is flushed, renamed to OUT, and only then the folder goes.

Line k of OUT answers line k of the input; of n-best lists, each line says which one it answers. OUT is never written
over. Errors: `ConfigError` for an OUT that is there already or a job of another kind, `DataError` for what cannot be
read or written; each says what to do, and leaves finished blocks where they are.
"""

import json
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from malmoi.bulk.work import Answer, compress, compression_of
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.files import TEMPORARY, flush, hash_bytes, measure, try_lock, write_atomically
from malmoi.log import get_logger

FORMAT = "malmoi bulk job 1"
FOLDER_ENDING = ".parts"
JOB_FILE, LOCK_FILE, WHOLE_FILE = "job.json", "lock", "whole"
OWN_NAME = re.compile(rf"{JOB_FILE}|{LOCK_FILE}|{WHOLE_FILE}|[0-9]+\.(block|faults)|{re.escape(TEMPORARY)}.*")
COPY_BYTES = 1 << 20

Written = Literal["text", "n-best", "json"]


@dataclass(frozen=True)
class Identity:
    """All that decides what OUT will hold."""

    files: Mapping[str, Mapping[str, int | str]]
    """Size and hash of the input and of each file of wishes, by what it is for."""
    model: str
    """Hash of all files of the model folder."""
    options: Mapping[str, Any]
    """Decoding settings, resolved."""
    written: Written
    compression: str
    block_lines: int

    def as_json(self) -> dict[str, Any]:
        """As `job.json` holds it."""
        return {
            "files": {name: dict(record) for name, record in self.files.items()},
            "model": self.model,
            "options": dict(self.options),
            "written": self.written,
            "compression": self.compression,
            "block_lines": self.block_lines,
        }


def hash_model(folder: Path) -> str:
    """One hash for all files of a model folder, by their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(TEMPORARY))
    rows = [(path.relative_to(folder).as_posix(), *measure(path)) for path in files]
    return hash_bytes(json.dumps(rows).encode())


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    num_lines: int
    num_blocks: int


class JobFolder:
    """`OUT.parts`: begun or gone on with, filled block by block, put together at the end."""

    def __init__(self, out: Path) -> None:
        if out.is_dir():
            raise ConfigError(f"--out {out}: this is a folder; give the name of a file")
        self.out = out
        self.path = out.with_name(out.name + FOLDER_ENDING)

    @contextmanager
    def held(self) -> Generator[None]:
        """The folder, made if need be, for this process alone as long as the `with` block lasts."""
        if not self.path.exists():
            self.check_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strange = sorted(path.name for path in self.path.iterdir() if not OWN_NAME.fullmatch(path.name))
            if strange:
                raise ConfigError(f"{self.path}: holds files of others ({strange[0]}, ...); choose another --out")
            file = (self.path / LOCK_FILE).open("ab")
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written ({error.strerror or error})") from error
        with file:
            if not try_lock(file):
                raise DataError(f"{self.path}: another process is at work on this job; wait for it")
            try:
                if not (self.path / JOB_FILE).exists():
                    self.check_free()
                yield
            finally:
                # Nothing was begun, or everything is done.
                if not (self.path / JOB_FILE).exists():
                    shutil.rmtree(self.path, ignore_errors=True)

    def check_free(self) -> None:
        """`ConfigError` where there is something under the output's name."""
        if self.out.exists() or self.out.is_symlink():
            raise ConfigError(f"--out {self.out}: is there already; choose another name or remove it")

    def begun(self, identity: Identity) -> Size | None:
        """The size of the job that was begun here, None for a new one; `ConfigError` where it is another job."""
        path = self.path / JOB_FILE
        if not path.exists():
            return None
        try:
            told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"format is {told['format']!r}, not {FORMAT!r}")
            size, maker = Size(int(told["num_lines"]), int(told["num_blocks"])), told["malmoi"]
            differences = list(describe_differences(told["job"], identity.as_json()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
            raise DataError(
                f"{path}: is not the description of a job ({error}); remove {self.path} to begin anew"
            ) from error
        if differences:
            raise ConfigError(
                f"{self.path}: a job was begun here that is not this one ({'; '.join(differences)}): run it as it was "
                "begun, choose another --out, or remove the folder to begin anew"
            )
        if len(self.finished()) < size.num_blocks:
            self.check_free()
        if maker != version("malmoi"):
            get_logger().warning("%s: was begun by malmoi %s and goes on with another version", self.path, maker)
        return size

    def begin(self, identity: Identity, size: Size) -> None:
        """Write down what the job is; blocks without a job are nobody's."""
        for path in self.path.glob("[0-9]*.*"):
            path.unlink()
        told = {
            "format": FORMAT,
            "malmoi": version("malmoi"),
            "num_lines": size.num_lines,
            "num_blocks": size.num_blocks,
            "job": identity.as_json(),
        }
        self.write(JOB_FILE, (json.dumps(told, ensure_ascii=False, indent=1) + "\n").encode())

    def block_path(self, first_line: int) -> Path:
        return self.path / f"{first_line:012d}.block"

    def finished(self) -> list[Path]:
        """Blocks that are done, in order."""
        return sorted(self.path.glob("[0-9]*.block"))

    def is_done(self, first_line: int) -> bool:
        return self.block_path(first_line).exists()

    def keep(self, first_line: int, answer: Answer) -> None:
        """Write a finished block."""
        path = self.block_path(first_line)
        if answer.faults:
            text = "".join(f"{json.dumps(fault, ensure_ascii=False)}\n" for fault in answer.faults)
            self.write(path.with_suffix(".faults").name, text.encode())
        self.write(path.name, answer.data)

    def write(self, name: str, data: bytes) -> None:
        """A file of the folder, whole or not at all."""
        try:
            write_atomically(self.path / name, data)
        except CheckpointError as error:
            raise DataError(f"{error}. {self.advice()}") from error

    def advice(self) -> str:
        """What to do after a disk was full."""
        return (
            f"{len(self.finished())} finished block(s) are kept in {self.path}: make room, and the same command goes on"
        )

    def faults(self) -> list[str]:
        """What is known about lines that could not be translated."""
        rows: list[str] = []
        for path in sorted(self.path.glob("[0-9]*.faults")):
            if path.with_suffix(".block").exists():
                rows += [str(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        return rows

    def assemble(self, size: Size) -> None:
        """All blocks in order under the name of the output, in one step; then the folder is no longer needed."""
        blocks = self.finished()
        assert len(blocks) == size.num_blocks, f"{len(blocks)} blocks of {size.num_blocks} are done"
        whole = self.path / WHOLE_FILE
        try:
            # Without any line there is no block, but an archive must be one all the same.
            is_empty = not blocks
            with whole.open("wb") as file:
                if is_empty:
                    file.write(compress(b"", compression_of(self.out)))
                for block in blocks:
                    with block.open("rb") as part:
                        shutil.copyfileobj(part, file, COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            whole.unlink(missing_ok=True)
            raise DataError(f"{whole}: cannot be written ({error.strerror or error}). {self.advice()}") from error
        if not (self.out.is_file() and measure(self.out) == measure(whole)):
            # An equal one was put there just before a kill.
            self.check_free()
        whole.replace(self.out)
        flush(self.out.parent)
        # First of all, so that what is left after a kill is no job any more.
        (self.path / JOB_FILE).unlink()


def describe_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    """What a job has otherwise than the one that was begun, by name."""
    names = {"input": "the input", "prefixes": "the prefixes", "constraints": "the phrases"}
    for key, name in names.items():
        if before["files"].get(key) != now["files"].get(key):
            yield f"{name} is another file" if key == "input" else f"{name} are others"
    if before["model"] != now["model"]:
        yield "the model is another"
    for key in sorted({*before["options"], *now["options"]}):
        old, new = before["options"].get(key), now["options"].get(key)
        if old != new:
            yield f"{key}: {old} -> {new}"
    for key in ("written", "compression", "block_lines"):
        if before[key] != now[key]:
            yield f"{key.replace('_', ' ')}: {before[key]} -> {now[key]}"
