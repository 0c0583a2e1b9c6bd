"""What users wish of outputs: how they must begin, and which phrases they must hold.

In: texts with their wishes, as text. Out: ids for the search, spelt as the model spells them inside an output.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from malmoi.decoding.interface import Ids, Phrase
from malmoi.errors import DataError
from malmoi.text.ids import UNKNOWN_ID
from malmoi.text.lines import count_lines, normalize, one_line
from malmoi.text.tokenizer import Tokenizer

CONTEXTS = ("a ", "\x01")
"""What stands before a phrase: the end of a word and a space, or something that no piece goes on from."""

WINDOW_CHARACTERS = 1 << 22
"""A window ends with the text that makes it so long, so that lines of megabytes do not add up."""


@dataclass(frozen=True)
class Window:
    """Texts that are translated together, with one wish of each kind per text or none at all."""

    texts: Sequence[str]
    prefixes: Sequence[str] | None
    constraints: Sequence[Sequence[str]] | None
    first_line: int

    def check(self) -> None:
        """`DataError`, with both counts, where there are fewer or more wishes than texts."""
        for name, wishes in (("prefixes", self.prefixes), ("constraints", self.constraints)):
            if wishes is not None and len(wishes) != len(self.texts):
                raise unequal(name, str(len(wishes)), f"{len(self.texts)} texts")

    def wishes(self, index: int) -> tuple[str, Sequence[str], int]:
        """Prefix, phrases and line number of one text."""
        return (
            self.prefixes[index] if self.prefixes is not None else "",
            self.constraints[index] if self.constraints is not None else (),
            self.first_line + index,
        )


def read_windows(
    texts: Iterable[str],
    prefixes: Iterable[str] | None,
    constraints: Iterable[Sequence[str]] | None,
    size: int,
) -> Iterator[Window]:
    """Windows of at most `size` texts, fewer where they are very long, with their wishes; each is made when it is asked
    for.

    `DataError` where there are fewer or more wishes than texts: once the last text that has its own was handed out.
    """
    given = (("prefixes", prefixes), ("constraints", constraints))
    streams: dict[str, Iterator[Any]] = {name: iter(wishes) for name, wishes in given if wishes is not None}
    remaining, num_read = iter(texts), 0
    while block := take(remaining, size):
        found = {name: list(islice(stream, len(block))) for name, stream in streams.items()}
        num_whole = min([len(block), *map(len, found.values())])
        if num_whole:
            starts, phrases = (
                found[name][:num_whole] if name in found else None for name in ("prefixes", "constraints")
            )
            yield Window(block[:num_whole], starts, phrases, num_read + 1)
        num_read += len(block)
        for name, wishes in found.items():
            if len(wishes) < len(block):
                raise unequal(name, str(num_read - len(block) + len(wishes)), f"{num_read} texts or more")
    for name, stream in streams.items():
        if next(stream, None) is not None:
            raise unequal(name, f"more than {num_read}", f"{num_read} texts")


def take(texts: Iterator[str], size: int) -> list[str]:
    """The texts of the next window."""
    block: list[str] = []
    room = WINDOW_CHARACTERS
    for text in islice(texts, size):
        block.append(text)
        room -= len(text)
        # Asked after the text was taken: each window has one, however long it is.
        if room <= 0:
            break
    return block


def unequal(name: str, num_wishes: str, texts: str) -> DataError:
    """What to say where wishes and texts do not go together line by line."""
    return DataError(f"there are {num_wishes} {name} for {texts}: give one for each, empty where there is none")


def check_counts(texts: str | Path, wishes: Mapping[str, str | Path | None]) -> None:
    """`DataError` before any work where a file of wishes has not as many lines as the texts.

    Only files can be counted before they are read; a pipe is checked by `read_windows` at its end.
    """
    paths = {name: Path(path) for name, path in wishes.items() if path is not None and Path(path).is_file()}
    if not paths or not Path(texts).is_file():
        return
    num_texts = count_lines(texts)
    for name, path in paths.items():
        num_wishes = count_lines(path)
        if num_wishes != num_texts:
            raise DataError(
                f"{path} has {num_wishes:,} lines but {texts} has {num_texts:,}; line k of the {name} must belong to "
                "line k of the text, empty where there is none"
            )


def encode_prefix(tokenizer: Tokenizer, prefix: str, number: int) -> Ids:
    """The ids that an output must begin with.

    Subwords carry the space before a word, so that a space at the end of the prefix is left to the word that follows.
    """
    text = one_line(normalize(prefix))
    if tokenizer.kind in ("bpe", "unigram"):
        text = text.rstrip()
    return check_spelling(tokenizer.encode(text), prefix, "prefix", number) if text else ()


def encode_phrase(tokenizer: Tokenizer, phrase: str, number: int) -> Phrase:
    """A phrase as it is spelt at the start of a text and, for subwords, behind a space and inside of a word.

    Scripts without spaces know the last way alone but at the start. A subword that goes on beyond the end of the phrase
    is a spelling that no list can hold.
    """
    text = one_line(normalize(phrase)).strip()
    if not text:
        raise DataError(f"line {number}: a phrase that the translation must hold is empty")
    at_start = check_spelling(tokenizer.encode(text), phrase, "phrase", number)
    if tokenizer.kind not in ("bpe", "unigram"):
        return at_start
    found = {at_start, *(tuple(ids) for context in CONTEXTS if (ids := encode_behind(tokenizer, context, text)))}
    return at_start if len(found) == 1 else tuple(sorted(found))


def encode_behind(tokenizer: Tokenizer, context: str, text: str) -> list[int]:
    """The ids of a text as they stand behind another one; none where both share a piece."""
    before, both = tokenizer.encode(context), tokenizer.encode(context + text)
    return both[len(before) :] if both[: len(before)] == before else []


def check_spelling(ids: Sequence[int], text: str, name: str, number: int) -> Ids:
    """The ids, or `DataError` where one of them is the unknown symbol."""
    if UNKNOWN_ID in ids or not ids:
        raise DataError(f"line {number}: the {name} {text!r} cannot be spelt with the model's vocabulary")
    return tuple(ids)
