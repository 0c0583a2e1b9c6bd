"""A scorer that says the source once more, and translators around it, for tests of all that surrounds a model."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.interface import DecoderState, Integers, Memory, Numbers
from malmoi.text.ids import END_ID
from malmoi.text.tokenizer import Tokenizers, train_tokenizers
from malmoi.translate import Translation, Translator

LINES = [
    "bano dori felu gasi",
    "hemo jipu kato",
    "luni bano",
    "dori dori gasi hemo jipu kato luni",
    "kato. felu, gasi!",
]


class CopyMemory(Memory):
    def __init__(self, sources: list[list[int]]) -> None:
        self.sources = sources

    @property
    def num_sentences(self) -> int:
        return len(self.sources)


class CopyState(DecoderState):
    """Each row is a source and how much of it was said."""

    def __init__(self, rows: list[tuple[list[int], int]], attention_RS: Numbers | None = None) -> None:
        self.rows = rows
        self.attention_RS = attention_RS

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def select(self, rows_R: Integers) -> "CopyState":
        kept = rows_R.tolist()
        attention_RS = None if self.attention_RS is None else self.attention_RS[rows_R]
        return CopyState([self.rows[row] for row in kept], attention_RS)

    def append(self, other: "CopyState") -> "CopyState":
        return CopyState(self.rows + other.rows)


class CopyScorer:
    """Says the source once more with probability `certainty` for each token; everything else shares the rest.

    With `says` its first tokens are replaced, whatever the source. It looks at the place that it copies.
    """

    def __init__(self, size: int, certainty: float = 0.9, says: Sequence[int] = (), max_steps: int | None = None):
        self.vocabulary_size = size
        self.start_id = size
        self.end_id = END_ID
        self.source_padding_id = size
        self.max_steps = max_steps
        self.certainty = certainty
        self.says = tuple(says)

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> CopyMemory:
        lengths = source_lengths_B.tolist()
        return CopyMemory([row[:length] for row, length in zip(source_BS.tolist(), lengths, strict=True)])

    def start(self, memory: Memory, keep_attention: bool = False) -> CopyState:
        assert isinstance(memory, CopyMemory)
        return CopyState([(source, 0) for source in memory.sources])

    def step(self, token_R: Integers, state: DecoderState) -> tuple[Numbers, CopyState]:
        assert isinstance(state, CopyState)
        rest = (1.0 - self.certainty) / (self.vocabulary_size - 1)
        log_probs_RV = np.full((state.num_rows, self.vocabulary_size), math.log(rest), dtype=np.float32)
        longest = max(len(source) for source, _ in state.rows)
        attention_RS = np.zeros((state.num_rows, longest), dtype=np.float32)
        for row, (source, place) in enumerate(state.rows):
            says = [*self.says, *source[len(self.says) :]]
            token = says[place] if place < len(says) else END_ID
            log_probs_RV[row, token] = math.log(self.certainty)
            attention_RS[row, min(place, len(source) - 1)] = 1.0
        return log_probs_RV, CopyState([(source, place + 1) for source, place in state.rows], attention_RS)


def make_tokenizers(kind: Any = "characters", lines: Sequence[str] = LINES) -> Tokenizers:
    tokenizers = train_tokenizers(TextConfig(tokenizer=kind, vocabulary_size=320), lines, lines, seed=1)
    return tokenizers.trained_on({index for row in tokenizers.encode_sources(lines) for index in row})


def copier(kind: Any = "characters", decoding: DecodingConfig | None = None, **arguments: Any) -> Translator:
    tokenizers = make_tokenizers(kind)
    scorer = CopyScorer(tokenizers.target.size, **arguments)
    return Translator(scorer, tokenizers, decoding or DecodingConfig(beam_size=2))


def texts_of(translations: Sequence[Translation]) -> list[str]:
    return [translation.text for translation in translations]
