"""`malmoi translate`: text, one sentence a line, to its translation, line for line.

In: a model, and a file or standard input. Out: on standard output one line for each line of input, or n-best lists, or
one JSON object per line with the keys line, text, score, finished, tokens, token_scores, alternatives, notes, error.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from malmoi.commands.results import json_text, write_text
from malmoi.config.decoding import DecodingConfig
from malmoi.config.training import Device
from malmoi.errors import ConfigError, DataError
from malmoi.log import get_logger
from malmoi.settings import parse_overrides
from malmoi.text.lines import read_lines
from malmoi.translate import WINDOW_LINES, Translation, Translator, maybe_too_few
from malmoi.wishes import check_counts

Writer = Callable[[int, Translation], str]
"""The lines of output, each with its LF, for the translation of a line with its number."""


@dataclass(frozen=True)
class TranslateRequest:
    """What the command line asked for; `file` is `-` for standard input."""

    model: Path
    file: str
    beam: int | None
    n_best: int | None
    settings: tuple[str, ...]
    prefix: Path | None
    constraints: Path | None
    unbuffered: bool
    device: str
    threads: int
    as_json: bool


def run_translate(request: TranslateRequest) -> int:
    """Translate everything; 1 if a line could not be translated (it is an empty line of output then), else 0."""
    for path in (request.file, request.prefix, request.constraints):
        check_readable(path)
    check_counts(request.file, {"prefixes": request.prefix, "phrases": request.constraints})
    options = decoding_options(request.settings, request.beam, request.n_best)
    translator = Translator.load(request.model, device=cast(Device, request.device), threads=request.threads)
    options = widen_beam(options, translator.decoding)
    write = writer(request)
    answer_at_once = request.unbuffered or (request.file == "-" and sys.stdin.isatty())
    flush = answer_at_once or sys.stdout.isatty()
    translations = translator.translate_lines(
        read_lines(request.file),
        options=options,
        prefixes=read_lines(request.prefix) if request.prefix else None,
        constraints=read_phrases(request.constraints) if request.constraints else None,
        window=1 if answer_at_once else WINDOW_LINES,
    )
    num_failed = 0
    for number, translation in enumerate(translations, start=1):
        num_failed += translation.error is not None
        write_text(write(number, translation), flush=flush)
    return 1 if num_failed else 0


def writer(request: TranslateRequest) -> Writer:
    """How the output of a line is written; other processes find it by its name."""
    if request.as_json:
        return as_json_line
    return as_line if request.n_best is None else partial(as_list, num_wanted=request.n_best)


def as_line(number: int, translation: Translation) -> str:
    """The text of a translation."""
    del number
    return f"{translation.text}\n"


def as_json_line(number: int, translation: Translation) -> str:
    """A translation as one JSON object."""
    return f"{json_text(as_object(number, translation))}\n"


def as_list(number: int, translation: Translation, num_wanted: int) -> str:
    """The n-best list of one line, best first; a list that is shorter than was asked for is told beside it."""
    found = (translation, *translation.alternatives)
    maybe_note = maybe_too_few(len(found), num_wanted)
    # A blank line, or one that was refused, has one output whatever was asked for.
    if maybe_note is not None and translation.score is not None:
        get_logger().warning("line %d: %s", number, maybe_note)
    return "".join(f"{number}\t{'' if one.score is None else f'{one.score:.6f}'}\t{one.text}\n" for one in found)


def check_readable(path: str | Path | None) -> None:
    """Refuse a file that is not there before the model is read."""
    if path is None or str(path) == "-":
        return
    if not Path(path).exists():
        raise DataError(f"{path}: no such file")
    if Path(path).is_dir():
        raise DataError(f"{path}: this is a folder, not a file of text")


def decoding_options(settings: Sequence[str], beam: int | None, n_best: int | None = None) -> dict[str, Any]:
    """`--set`, `--beam` and `--n-best` as one table."""
    options = parse_overrides(settings)
    for key, value in options.items():
        if isinstance(value, Mapping):
            raise ConfigError(f"--set {key}: decoding settings stand alone, as in --set length_alpha=0.6")
    if beam is not None:
        options["beam_size"] = beam
    if n_best is not None:
        options["n_best"] = n_best
    return options


def widen_beam(options: Mapping[str, Any], decoding: DecodingConfig) -> Mapping[str, Any]:
    """An n-best list longer than the model's own beam takes a wider one, unless a width was asked for."""
    n_best = options.get("n_best", 1)
    if "beam_size" in options or not isinstance(n_best, int) or n_best <= decoding.beam_size:
        return options
    return {**options, "beam_size": n_best}


def read_phrases(path: Path) -> Iterator[tuple[str, ...]]:
    """The phrases of each line, by tabs; an empty line has none."""
    for line in read_lines(path):
        yield tuple(phrase for phrase in line.split("\t") if phrase.strip())


def as_object(number: int, translation: Translation) -> dict[str, Any]:
    """A translation with its stable JSON keys."""
    return {
        "line": number,
        "text": translation.text,
        "score": translation.score,
        "finished": translation.finished,
        "tokens": translation.tokens,
        "token_scores": translation.token_scores,
        "alternatives": [{"text": one.text, "score": one.score} for one in translation.alternatives],
        "notes": translation.notes,
        "error": translation.error,
    }
