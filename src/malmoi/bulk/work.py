"""What a worker does: a block of lines to the bytes of its answers.

In: a `Plan`, once; blocks (`Window`s of lines with their wishes). Out: an `Answer` for each. A worker reads the model
and nothing else, and writes no file: whoever leads the job keeps what it answers.
"""

import gzip
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

import zstandard

from malmoi.config.training import Device
from malmoi.errors import MalmoiError
from malmoi.log import get_logger
from malmoi.translate import Translation, Translator
from malmoi.wishes import Window

Compression = Literal["none", "gzip", "zstd"]
Message = tuple[int, str]
"""Level and text of a message for people."""


@dataclass(frozen=True)
class Plan:
    """What all workers are told."""

    model: Path
    device: Device
    threads: int
    options: dict[str, Any]
    write: Callable[[int, Translation], str]
    """The lines of output, each with its LF, for the translation of a line with its number; found by its name in
    another process."""
    compression: Compression


@dataclass(frozen=True)
class Ready:
    """A worker has read its model."""


@dataclass(frozen=True)
class Answer:
    """A block as it is kept; messages about lines that could not be translated, and all messages, in order."""

    data: bytes
    faults: tuple[str, ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Refusal:
    """What no worker can do, as an option that the model cannot follow; another try would end the same."""

    error: MalmoiError


@dataclass(frozen=True)
class Lost:
    """A worker has ended, or failed in a way that nobody foresaw."""

    reason: str


Event = Ready | Answer | Refusal | Lost


class Worker:
    """One process's translator. Refusals are answers; any other exception ends the worker."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.maybe_translator: Translator | None = None

    def open(self) -> Ready | Refusal:
        """Read the model."""
        plan = self.plan
        try:
            translator = Translator.load(plan.model, device=plan.device, threads=plan.threads)
            translator.resolve(plan.options)
        except MalmoiError as error:
            return Refusal(error)
        self.maybe_translator = translator
        return Ready()

    def answer(self, block: Window) -> Answer | Refusal:
        """Translate a block."""
        translator = self.maybe_translator
        assert translator is not None, "a worker is opened before it is asked"
        try:
            with heard() as messages:
                translations = translator.translate_window(block, translator.resolve(self.plan.options))
                rows = [self.plan.write(number, one) for number, one in enumerate(translations, start=block.first_line)]
        except MalmoiError as error:
            return Refusal(error)
        return Answer(
            data=compress("".join(rows).encode("utf-8"), self.plan.compression),
            faults=tuple(one.error for one in translations if one.error is not None),
            messages=tuple(messages),
        )


@contextmanager
def heard() -> Generator[list[Message]]:
    """Messages are gathered instead of said, for as long as the `with` block lasts."""
    messages: list[Message] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    logger = get_logger()
    before, ear = list(logger.handlers), Ear(logging.INFO)
    logger.handlers = [ear]
    try:
        yield messages
    finally:
        logger.handlers = before


def compression_of(path: Path) -> Compression:
    """How a file is written, by the end of its name."""
    match path.suffix.lower():
        case ".zst":
            return "zstd"
        case ".gz":
            return "gzip"
        case _:
            return "none"


def compress(data: bytes, compression: Compression) -> bytes:
    """Bytes as a file of its own, equal for equal bytes; several of them one after another are one file."""
    match compression:
        case "none":
            return data
        case "gzip":
            return gzip.compress(data, compresslevel=6, mtime=0)
        case "zstd":
            return zstandard.ZstdCompressor(write_checksum=True).compress(data)
        case _:
            assert_never(compression)
