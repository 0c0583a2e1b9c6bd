"""Tokens grouped into words, and weights between tokens merged into weights between words.

In: ids with their visible pieces. Out: a `Side`: tokens, words, and which tokens make which word.

Merging: where several tokens of a word are looked at, their weights add up; where several tokens of a word look, the
mean is taken. Rows that sum to 1 then sum to 1 between words as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malmoi.config.text import TokenizerKind
from malmoi.text.ids import END_ID, END_SYMBOL, SPACE_SYMBOL, START_SYMBOL
from malmoi.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Span = tuple[int, int]
"""First token of a word and the one behind its last."""


@dataclass(frozen=True)
class Side:
    """One side of a pair: its tokens, `</s>` included if it is there, and its words; spans join without a gap."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def has_end(self) -> bool:
        return self.ids[-1:] == (END_ID,)

    @property
    def text_spans(self) -> tuple[Span, ...]:
        """The spans of all words but the end symbol."""
        return self.spans[:-1] if self.has_end else self.spans

    @property
    def units(self) -> tuple[Span, ...]:
        """What can be left out one at a time: words, or the tokens of a text that is one word."""
        spans = self.text_spans
        if len(spans) > 1:
            return spans
        return tuple((place, place + 1) for place in range(spans[0][1])) if spans else ()

    def names(self, spans: Sequence[Span]) -> tuple[str, ...]:
        """What spans are called: a word, or a token where a span is not a word."""
        known = dict(zip(self.spans, self.words, strict=True))
        return tuple(known.get(span) or "".join(self.tokens[slice(*span)]) for span in spans)

    def as_input(self) -> "Side":
        """What a decoder reads to say this side: `<s>` in front, and no last token."""
        last = len(self.ids)
        moved = [(first + 1, min(behind + 1, last)) for first, behind in self.spans if first + 1 < last]
        return Side(
            (-1, *self.ids[:-1]),
            (START_SYMBOL, *self.tokens[:-1]),
            (START_SYMBOL, *self.words[: len(moved)]),
            ((0, 1), *moved),
        )


def make_side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    """Ids with their pieces and words."""
    tokens = tokenizer.pieces(ids)
    spans = group(ids, tokens, tokenizer.kind)
    words = [
        END_SYMBOL
        if ids[first] == END_ID
        else tokenizer.decode(ids[first:behind]).strip() or "".join(tokens[first:behind])
        for first, behind in spans
    ]
    return Side(tuple(ids), tuple(tokens), tuple(words), tuple(spans))


def group(ids: Sequence[int], tokens: Sequence[str], kind: TokenizerKind) -> list[Span]:
    """Spans of words: a word goes on until the next space; spaces belong to the word behind them, if there is one."""
    starts: list[int] = []
    is_blank = False
    for place, (index, token) in enumerate(zip(ids, tokens, strict=True)):
        is_end = index == END_ID
        if is_end and is_blank and len(starts) > 1:
            # Spaces at the end have no word behind them.
            starts.pop()
        begins = kind == "words" or is_end or not starts or (token.startswith(SPACE_SYMBOL) and not is_blank)
        if begins:
            starts.append(place)
        is_blank = kind != "words" and not token.strip(SPACE_SYMBOL) and (begins or is_blank)
    if is_blank and len(starts) > 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], len(ids)], strict=True)) if ids else []


def merge(weights: Floats, looking: Sequence[Span], looked_at: Sequence[Span]) -> Floats:
    """Weights `(..., T, S)` between tokens as weights between words: mean of rows, sum of columns."""
    columns = [weights[..., first:behind].sum(-1) for first, behind in looked_at]
    narrow = np.stack(columns, axis=-1)
    return np.stack([narrow[..., first:behind, :].mean(-2) for first, behind in looking], axis=-2)
