"""The sentences that are being searched, and what one step decides about their rows.

A sentence has K rows all along; a row that holds no hypothesis has a sum of minus infinity. All rows of a sentence have
said as many tokens, other sentences more or fewer. What a row has said is read off backwards when its output is put
aside: nothing is copied from step to step.

Letters: B sentences, K rows of a sentence, R = B x K rows.
"""

from bisect import insort_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from malmoi.decoding.interface import Flags, Floats, Hypothesis, Ids, Integers, Request, Said
from malmoi.decoding.rules import Limits


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


@dataclass(frozen=True, eq=False)
class Live:
    """Hypotheses of all sentences while they grow.

    `said` are the last steps, as many as the oldest sentence has made, `most_said`. Until `steps_left` more are made no
    sentence is at its limit.
    """

    sentences: tuple[Sentence, ...]
    num_tokens_B: Integers
    most_B: Integers
    totals_BK: Floats
    said: tuple[Said, ...]
    most_said: int
    steps_left: int
    is_full: bool = False
    """Whether all rows are known to hold a hypothesis."""

    @classmethod
    def start(cls, sentences: tuple[Sentence, ...], width: int, first_rows: Integers | slice) -> Self:
        """Nothing said yet; only `first_rows` of each sentence hold a hypothesis, for equal rows would stay equal."""
        num_sentences = len(sentences)
        totals_BK = np.full((num_sentences, width), -np.inf)
        totals_BK[:, first_rows] = 0.0
        most = [sentence.limits.most for sentence in sentences]
        num_tokens_B = np.zeros(num_sentences, dtype=np.int64)
        return cls(sentences, num_tokens_B, np.array(most, dtype=np.int64), totals_BK, (), 0, min(most))

    @cached_property
    def maybe_alive(self) -> Integers | None:
        """Numbers of the rows that hold a hypothesis, among all R; None where all do."""
        if self.is_full:
            return None
        is_alive_R = (self.totals_BK > -np.inf).ravel()
        alive = is_alive_R.nonzero()[0]
        return None if len(alive) == len(is_alive_R) else alive

    @property
    def alive(self) -> Integers:
        """Numbers of the rows that hold a hypothesis."""
        alive = self.maybe_alive
        return np.arange(self.totals_BK.size) if alive is None else alive

    @property
    def at_limit_B(self) -> Flags | None:
        """Sentences that may only end; None where there is none."""
        return None if self.steps_left > 0 else self.num_tokens_B >= self.most_B

    def ids_and_log_probs(self, sentence: int, row: int) -> tuple[Ids, tuple[float, ...]]:
        """What a row has said so far."""
        num_tokens = int(self.num_tokens_B[sentence])
        place = sentence * self.totals_BK.shape[1] + row
        ids: list[int] = []
        log_probs: list[float] = []
        for step in self.said[: -num_tokens - 1 : -1]:
            rows_R, ids_R, log_probs_R = step.lists
            ids.append(ids_R[place])
            log_probs.append(log_probs_R[place])
            place = rows_R[place]
        return tuple(ids[::-1]), tuple(log_probs[::-1])

    def advance(self, choice: "Choice", said: Said, maybe_kept: Integers | None) -> Self:
        """The chosen continuations of the sentences with the numbers `maybe_kept`, None for all: `said`, by rows."""
        if maybe_kept is None:
            return type(self)(
                self.sentences,
                self.num_tokens_B + 1,
                self.most_B,
                choice.totals_BK,
                (*self.said, said),
                self.most_said + 1,
                self.steps_left - 1,
                choice.fills_all,
            )
        num_tokens_B, most_B = self.num_tokens_B[maybe_kept] + 1, self.most_B[maybe_kept]
        most_said = int(num_tokens_B.max())
        return type(self)(
            tuple(self.sentences[number] for number in maybe_kept.tolist()),
            num_tokens_B,
            most_B,
            choice.totals_BK[maybe_kept],
            (*self.said, said)[-most_said:],
            most_said,
            int((most_B - num_tokens_B).min()),
            choice.fills_all,
        )

    def keep(self, kept: Integers, rows: Integers) -> Self:
        """The sentences with the numbers `kept`, whose rows are `rows`, as they stand."""
        num_tokens_B, most_B = self.num_tokens_B[kept], self.most_B[kept]
        most_said = int(num_tokens_B.max())
        said = self.said[-most_said:] if most_said else ()
        if said:
            # New sentences have rows behind those of the last step, and have said nothing yet that could be read.
            known = np.minimum(rows, len(said[-1].rows_R) - 1)
            last = said[-1]
            said = (*said[:-1], Said(last.rows_R[known], last.ids_R[known], last.log_probs_R[known]))
        return replace(
            self,
            sentences=tuple(self.sentences[number] for number in kept.tolist()),
            num_tokens_B=num_tokens_B,
            most_B=most_B,
            totals_BK=self.totals_BK[kept],
            said=said,
            most_said=most_said,
            steps_left=int((most_B - num_tokens_B).min()),
        )

    def pass_over(self, plain: tuple[Said, ...], totals_BK: Floats) -> Self:
        """After some plain steps."""
        return replace(
            self,
            num_tokens_B=self.num_tokens_B + len(plain),
            totals_BK=totals_BK,
            said=(*self.said, *plain),
            most_said=self.most_said + len(plain),
            steps_left=self.steps_left - len(plain),
            is_full=True,
        )

    def append(self, other: Self) -> Self:
        """These sentences, then new ones, of which none has said anything yet."""
        assert not other.most_said, "sentences come in before their first step"
        return replace(
            self,
            sentences=self.sentences + other.sentences,
            num_tokens_B=np.concatenate([self.num_tokens_B, other.num_tokens_B]),
            most_B=np.concatenate([self.most_B, other.most_B]),
            totals_BK=np.concatenate([self.totals_BK, other.totals_BK]),
            steps_left=min(self.steps_left, other.steps_left),
            is_full=self.is_full and other.is_full,
        )


class Choice(NamedTuple):
    """What one step decided. `rows_BK` say which row each new one continues; places without one have a total of -inf.

    `ended_BK` marks rows whose output takes the end symbol now, with `end_log_probs_BK`; `cut_BK` marks rows that are
    given up as they stand, since they may not grow any more. Each is None where it marks nothing.
    """

    rows_BK: Integers
    ids_BK: Integers
    log_probs_BK: Floats
    totals_BK: Floats
    ended_BK: Flags | None = None
    end_log_probs_BK: Floats | None = None
    cut_BK: Flags | None = None
    fills_all: bool = False
    """Known that every place is filled."""
    in_place: bool = False
    """Known that each row continues itself."""


def ends_of(choice: Choice) -> tuple[Flags, Floats]:
    """Marks of rows that end and their log-probabilities, as tables that may be changed."""
    if choice.ended_BK is None or choice.end_log_probs_BK is None:
        return np.zeros(choice.ids_BK.shape, dtype=np.bool_), np.full(choice.ids_BK.shape, -np.inf)
    return choice.ended_BK.copy(), choice.end_log_probs_BK.copy()
