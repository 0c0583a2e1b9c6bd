"""The sentences that are being searched, and what one step decides about their rows.

A sentence has K rows all along; a row that holds no hypothesis has a sum of minus infinity. All rows of a sentence have
said as many tokens, other sentences more or fewer.

Letters: B sentences, K rows of a sentence, R = B x K rows, T tokens.
"""

from bisect import insort_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.decoding.rules import Limits

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass
class Pool:
    """The best finished and the best cut outputs of a sentence, best first; what is in it never changes.

    Among cut outputs those that lack fewer phrases come first.
    """

    size: int
    finished: list[Hypothesis] = field(default_factory=list[Hypothesis])
    cut: list[Hypothesis] = field(default_factory=list[Hypothesis])

    @property
    def threshold(self) -> float:
        """What a finished output must beat to come in."""
        return self.finished[-1].score if len(self.finished) >= self.size else -np.inf

    def add(self, hypothesis: Hypothesis, row: int) -> None:
        """Take an output in its place; among equal scores the earlier one comes first, and equal ids stay once."""
        kept = self.finished if hypothesis.finished else self.cut
        if all(other.ids != hypothesis.ids for other in kept):
            insort_right(kept, hypothesis, key=lambda other: (other.num_missing, -other.score))
            del kept[self.size :]

    def outputs(self) -> list[Hypothesis]:
        """Finished outputs, then cut ones."""
        return (self.finished + self.cut)[: self.size]


@dataclass
class Samples:
    """The samples of a sentence, one per row; equal ones are kept, since they are what chance gave."""

    of_rows: dict[int, Hypothesis] = field(default_factory=dict[int, Hypothesis])

    @property
    def threshold(self) -> float:
        """No sample is too bad."""
        return -np.inf

    def add(self, hypothesis: Hypothesis, row: int) -> None:
        self.of_rows[row] = hypothesis

    def outputs(self) -> list[Hypothesis]:
        """In the order of the rows, whatever their scores."""
        return [self.of_rows[row] for row in sorted(self.of_rows)]


@dataclass(frozen=True)
class Sentence:
    """One request in flight. `draws` (K, T) are the random numbers of its samples."""

    number: int
    request: Request
    limits: Limits
    pool: Pool | Samples
    draws: Floats | None = None


@dataclass(frozen=True)
class Live:
    """Hypotheses of all sentences while they grow."""

    sentences: tuple[Sentence, ...]
    num_tokens_B: Integers
    most_B: Integers
    totals_BK: Floats
    ids_BKT: Integers
    log_probs_BKT: Floats

    @classmethod
    def start(cls, sentences: tuple[Sentence, ...], width: int, first_rows: Integers | slice) -> Self:
        """Nothing said yet; only `first_rows` of each sentence hold a hypothesis, for equal rows would stay equal."""
        num_sentences = len(sentences)
        totals_BK = np.full((num_sentences, width), -np.inf)
        totals_BK[:, first_rows] = 0.0
        return cls(
            sentences,
            np.zeros(num_sentences, dtype=np.int64),
            np.array([sentence.limits.most for sentence in sentences], dtype=np.int64),
            totals_BK,
            np.empty((num_sentences, width, 0), dtype=np.int64),
            np.empty((num_sentences, width, 0)),
        )

    @cached_property
    def alive(self) -> Integers:
        """Numbers of the rows that hold a hypothesis, among all R."""
        return (self.totals_BK > -np.inf).ravel().nonzero()[0]

    def said(self, sentence: int, row: int) -> tuple[Ids, tuple[float, ...]]:
        """Ids and log-probabilities of a row so far."""
        length = self.num_tokens_B[sentence]
        ids: list[int] = self.ids_BKT[sentence, row, :length].tolist()
        log_probs: list[float] = self.log_probs_BKT[sentence, row, :length].tolist()
        return tuple(ids), tuple(log_probs)

    def advance(self, choice: "Choice", kept: Integers) -> Self:
        """The chosen continuations of the sentences with the numbers `kept`."""
        rows_BK, ids_BK, log_probs_BK, totals_BK = choice.rows_BK, choice.ids_BK, choice.log_probs_BK, choice.totals_BK
        sentences, num_tokens, most_B = self.sentences, self.num_tokens_B, self.most_B
        if len(kept) < len(sentences):
            rows_BK, ids_BK, log_probs_BK, totals_BK = rows_BK[kept], ids_BK[kept], log_probs_BK[kept], totals_BK[kept]
            sentences = tuple(self.sentences[number] for number in kept.tolist())
            num_tokens, most_B = num_tokens[kept], most_B[kept]
        places = (kept[:, None], rows_BK)
        room = int(num_tokens.max(initial=0)) + 1 - self.ids_BKT.shape[2]
        ids_BKT, log_probs_BKT = self.ids_BKT[places], self.log_probs_BKT[places]
        if room > 0:
            # Room for several tokens at once: growing by one would copy every table in every step.
            room = max(room, 16)
            ids_BKT = np.pad(ids_BKT, ((0, 0), (0, 0), (0, room)))
            log_probs_BKT = np.pad(log_probs_BKT, ((0, 0), (0, 0), (0, room)))
        numbers = np.arange(len(kept))
        ids_BKT[numbers, :, num_tokens] = ids_BK
        log_probs_BKT[numbers, :, num_tokens] = log_probs_BK
        return type(self)(sentences, num_tokens + 1, most_B, totals_BK, ids_BKT, log_probs_BKT)

    def append(self, other: Self) -> Self:
        """These sentences, then those of another one."""
        longest = max(self.ids_BKT.shape[2], other.ids_BKT.shape[2])

        def pad(table: NDArray[np.generic]) -> NDArray[np.generic]:
            return np.pad(table, ((0, 0), (0, 0), (0, longest - table.shape[2])))

        return replace(
            self,
            sentences=self.sentences + other.sentences,
            num_tokens_B=np.concatenate([self.num_tokens_B, other.num_tokens_B]),
            most_B=np.concatenate([self.most_B, other.most_B]),
            totals_BK=np.concatenate([self.totals_BK, other.totals_BK]),
            ids_BKT=np.concatenate([pad(self.ids_BKT), pad(other.ids_BKT)]),
            log_probs_BKT=np.concatenate([pad(self.log_probs_BKT), pad(other.log_probs_BKT)]),
        )


@dataclass(frozen=True)
class Choice:
    """What one step decided. `rows_BK` say which row each new one continues; places without one have a total of -inf.

    `ended_BK` marks rows whose output takes the end symbol now, with `end_log_probs_BK`; `cut_BK` marks rows that are
    given up as they stand, since they may not grow any more.
    """

    rows_BK: Integers
    ids_BK: Integers
    log_probs_BK: Floats
    totals_BK: Floats
    ended_BK: Flags
    end_log_probs_BK: Floats
    cut_BK: Flags
