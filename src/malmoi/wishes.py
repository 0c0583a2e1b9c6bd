"""What users wish of outputs: how they must begin, and which phrases they must hold.

In: texts with their wishes, as text. Out: ids for the search, spelt as the model spells them inside an output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from malmoi.decoding.interface import Ids, Phrase
from malmoi.errors import DataError
from malmoi.text.ids import UNKNOWN_ID
from malmoi.text.lines import normalize, one_line
from malmoi.text.tokenizer import Tokenizer


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
                raise DataError(
                    f"there are {len(wishes)} {name} for {len(self.texts)} texts (from line {self.first_line}): "
                    "give one for each, empty where there is none"
                )

    def wishes(self, index: int) -> tuple[str, Sequence[str], int]:
        """Prefix, phrases and line number of one text."""
        return (
            self.prefixes[index] if self.prefixes is not None else "",
            self.constraints[index] if self.constraints is not None else (),
            self.first_line + index,
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
    """A phrase as it stands at the start of a text and, for subwords, as it stands behind a space."""
    text = one_line(normalize(phrase)).strip()
    if not text:
        raise DataError(f"line {number}: a phrase that the translation must hold is empty")
    at_start = check_spelling(tokenizer.encode(text), phrase, "phrase", number)
    if tokenizer.kind not in ("bpe", "unigram"):
        return at_start
    before = tokenizer.encode("a")
    behind = tokenizer.encode(f"a {text}")
    if behind[: len(before)] != before:
        return at_start
    inside = tuple(behind[len(before) :])
    return at_start if inside == at_start else (at_start, inside)


def check_spelling(ids: Sequence[int], text: str, name: str, number: int) -> Ids:
    """The ids, or `DataError` where one of them is the unknown symbol."""
    if UNKNOWN_ID in ids or not ids:
        raise DataError(f"line {number}: the {name} {text!r} cannot be spelt with the model's vocabulary")
    return tuple(ids)
