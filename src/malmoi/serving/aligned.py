"""Words of a sentence and of its translation: where they stand, how sure the model was, which belongs to which.

In: texts with the ids that stand for them, and attention. Out: units (words; the tokens of a text that is one word)
with their places as characters, and pairs of units. A translated unit belongs to the source unit that the search looked
at most when it wrote it (mean of the last layer's heads).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malmoi.explain.words import Span, group, merge
from malmoi.text.ids import END_ID
from malmoi.text.lines import normalize, one_line
from malmoi.text.tokenizer import Tokenizer, Tokenizers

WORD = re.compile(r"[^ \n\r\0]+")
ANY_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Unit:
    """Characters `start` to `end` of a text, and the tokens `first` to `behind` that stand for them."""

    start: int
    end: int
    first: int
    behind: int


def source_units(tokenizers: Tokenizers, text: str, ids: Sequence[int]) -> list[Unit]:
    """Units of a sentence as the user wrote it; `ids` are what the model read of it, which may be less."""
    tokenizer = tokenizers.source
    spans = word_spans(tokenizer, ids)
    words = list((ANY_WORD if tokenizer.kind == "words" else WORD).finditer(text))
    if len(spans) == 1 and len(words) == 1 and one_line(normalize(text)) == text:
        units = token_units(tokenizer, text, ids, spans)
        if units and units[-1].end == len(text):
            return units
    if len(words) != len(spans):
        # Words whose every character is new to the model were never read.
        read = tokenizers.encode_sources([word.group() for word in words])
        words = [word for word, row in zip(words, read, strict=True) if row]
    if len(words) != len(spans):
        return [Unit(0, len(text), 0, spans[-1][1])] if spans else []
    return [Unit(*word.span(), *span) for word, span in zip(words, spans, strict=True)]


def target_units(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[Unit]:
    """Units of an output."""
    spans = word_spans(tokenizer, ids)
    if one_line(tokenizer.decode(ids)) != text:
        # A word was put in by hand.
        words = list(ANY_WORD.finditer(text))
        if len(words) == len(spans):
            return [Unit(*word.span(), *span) for word, span in zip(words, spans, strict=True)]
        return [Unit(0, len(text), 0, spans[-1][1])] if spans and text else []
    return token_units(tokenizer, text, ids, spans)


def word_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """Words as spans of tokens, without the end symbol."""
    kept = ids[:-1] if ids and ids[-1] == END_ID else ids
    return group(kept, tokenizer.pieces(kept), tokenizer.kind)


def token_units(tokenizer: Tokenizer, text: str, ids: Sequence[int], spans: Sequence[Span]) -> list[Unit]:
    """Spans with their places in the text that all ids spell; a single span is taken apart into its tokens.

    Tokens that spell nothing of their own, as the first bytes of a character, go with those that end it.
    """
    pieces = [(place, place + 1) for place in range(*spans[0])] if len(spans) == 1 else spans
    units: list[Unit] = []
    end, first = 0, None
    for start_token, behind in pieces:
        first = start_token if first is None else first
        spelt = one_line(tokenizer.decode(ids[:behind]))
        # What is not whole yet is no beginning of the text.
        if not text.startswith(spelt):
            continue
        start = end
        while start < len(spelt) and text[start].isspace():
            start += 1
        if start < len(spelt):
            units.append(Unit(start, len(spelt), first, behind))
            end, first = len(spelt), None
    return units


def pairs_of(attention: Any, source: Sequence[Unit], target: Sequence[Unit]) -> list[tuple[int, int]]:
    """Numbers of a source and a target unit that belong together, by target unit; none without attention (T, S)."""
    if attention is None or not source or not target:
        return []
    weights_TS: NDArray[np.float32] = np.asarray(attention, dtype=np.float32)
    looking = [(unit.first, unit.behind) for unit in target]
    looked_at = [(unit.first, unit.behind) for unit in source]
    merged = np.nan_to_num(merge(weights_TS, looking, looked_at))
    return [(int(source_number), number) for number, source_number in enumerate(merged.argmax(1))]
