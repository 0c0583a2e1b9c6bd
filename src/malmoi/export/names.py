"""A name for every id of a tokeniser, for formats that speak of tokens and not of ids.

In: the two tokenisers of a model. Out: lists of different names, the start symbol `<s>` last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from malmoi.text.ids import END_ID, START_SYMBOL, UNKNOWN_ID
from malmoi.text.tokenizer import Tokenizer, Tokenizers


@dataclass(frozen=True)
class Names:
    """What the ids of both sides are called; the same for both where the vocabulary is shared.

    Names of SentencePiece's pieces are its own, so that its output can be used as it is.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    """One more than the target has ids: `start` is the last."""
    start: str

    @classmethod
    def of(cls, tokenizers: Tokenizers) -> "Names":
        source, target = name_ids(tokenizers.source), name_ids(tokenizers.target)
        start = free_name(START_SYMBOL, {*source, *target})
        return cls(tuple(source), (*target, start), start)

    @property
    def unknown(self) -> str:
        return self.target[UNKNOWN_ID]

    @property
    def end(self) -> str:
        return self.target[END_ID]


def name_ids(tokenizer: Tokenizer) -> list[str]:
    """Different names for all ids. A word or character is its own name, unless it spells a control symbol."""
    ids = range(tokenizer.size)
    if tokenizer.kind not in ("characters", "words"):
        return tokenizer.pieces(ids)
    names = tokenizer.pieces([UNKNOWN_ID, END_ID])
    taken = set(names)
    for index in ids[len(names) :]:
        # Not the visible name, in which a space looks like U+2581, another character.
        names.append(free_name(tokenizer.decode([index]), taken))
        taken.add(names[-1])
    return names


def free_name(name: str, taken: set[str]) -> str:
    """The name with as many underscores behind it as it takes to be a new one."""
    while name in taken:
        name += "_"
    return name


def ids_of(names: Sequence[str]) -> dict[str, int]:
    """From name to id."""
    return {name: index for index, name in enumerate(names)}
