"""The search doorway: what a search asks of a model, what it is asked for, and what it answers.

In: `Request`s, sentences as source ids with what their outputs must hold. Out: `Hypothesis` lists, best first.
Whatever gives log-probabilities step by step is a `Scorer`: a network, an ensemble, a fast engine, a table in a test.

All that passes here are numpy's arrays in the memory of the machine: what computes elsewhere, or with other arrays,
turns its own into them (`scorer.py` for networks). Nothing of a search needs torch.

Letters: B sentences, S source places, T target tokens, R live rows, C candidates, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.floating[Any]]
"""float32 or float64, as the scorer computes."""

Ids = tuple[int, ...]
Phrase = Ids | tuple[Ids, ...]
"""Ids that stand together in the output, or several spellings of which any one will do."""

IMPOSSIBLE = -1e4
"""What a token of probability 0 counts in a score, so that scores are finite: forced tokens alone can need it."""


NOT_NUMBERS = "the model's log-probabilities are not numbers (NaN): its weights are damaged"


class Memory(ABC):
    """What a scorer keeps of encoded sources; opaque to search."""

    @property
    @abstractmethod
    def num_sentences(self) -> int: ...


class DecoderState(ABC):
    """Hypotheses while they grow: one row each, and each row knows which sentence it belongs to.

    A state is never changed by the methods of a scorer: `step`, `select` and `append` give a new one.
    """

    attention_RS: Numbers | None
    """Where the last step looked in the source, mean over heads, if `start` was asked to keep it."""

    @property
    @abstractmethod
    def num_rows(self) -> int: ...

    @abstractmethod
    def select(self, rows_R: Integers) -> Self:
        """The rows with these numbers in this order; they may be repeated or left out."""

    @abstractmethod
    def append(self, other: "DecoderState") -> Self:
        """The rows of this state, then those of another one, of the same scorer, with other sentences and lengths."""


class Scorer(Protocol):
    """Log-probabilities of the next token, row by row; the same whatever other rows there are."""

    @property
    def vocabulary_size(self) -> int:
        """V: ids below it can come out."""
        ...

    @property
    def start_id(self) -> int:
        """What is fed in the first step; never comes out."""
        ...

    @property
    def end_id(self) -> int:
        """The last token of every finished output."""
        ...

    @property
    def source_padding_id(self) -> int:
        """Fills short sources; its value never matters."""
        ...

    @property
    def max_steps(self) -> int | None:
        """Most steps that the scorer can make for a row, None where there is no limit."""
        ...

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> Memory:
        """Read sources, padded on the right."""
        ...

    def start(self, memory: Memory, keep_attention: bool = False) -> DecoderState:
        """One row per sentence, before the first step."""
        ...

    def step(self, token_R: Integers, state: DecoderState) -> tuple[Numbers, DecoderState]:
        """Feed a token per row: natural log-probabilities `log_probs_RV`, a fresh array that the caller may change,
        and the state after it, with `attention_RS` if it was asked for and the scorer has any."""
        ...


@dataclass(frozen=True)
class Best:
    """The best tokens of each row in the order of their ids, float64; places that no token fills have minus infinity.

    Of equal tokens those with the lower ids are among them. `end_log_probs_R` is that of the end symbol, wherever it
    ranks, minus infinity where it may not come.
    """

    log_probs_RC: Floats
    ids_RC: Integers
    end_log_probs_R: Floats


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first, ties to the lower row and then to the lower token.

    Places that no continuation fills have a total of minus infinity, and then row and id mean nothing. `totals_BC` are
    sums with the token's log-probability, `log_probs_BC` the token's alone, both float64.
    """

    totals_BC: Floats
    log_probs_BC: Floats
    rows_BC: Integers
    ids_BC: Integers
    maybe_plain: bool | None = None
    """Whether the K best of each sentence are there and none of them ends, where that is known."""


class BestScorer(Protocol):
    """A scorer that can choose candidates itself, so that no table of all rows and tokens is made.

    All raise `CheckpointError` where a log-probability is not a number.
    """

    @property
    def most_candidates(self) -> int:
        """So many of each row it can choose."""
        ...

    def step_best(
        self,
        token_R: Integers,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: Integers,
        no_end_R: Flags | None,
    ) -> tuple[Best, DecoderState]:
        """Like `step`. `forbidden_ids` are no candidates of any row, the end symbol none of the rows that are marked;
        they keep their share of probability."""
        ...


@dataclass(frozen=True, eq=False)
class Said:
    """One step of all rows: the rows of the step before that they continue, and what they said then."""

    rows_R: Integers
    ids_R: Integers
    log_probs_R: Floats

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[float]]:
        """The same numbers, quicker to read one by one."""
        return self.rows_R.tolist(), self.ids_R.tolist(), self.log_probs_R.tolist()


class Merged(NamedTuple):
    """Candidates of the last step that was made, the plain steps before it, and the sums after those."""

    candidates: Candidates
    plain: tuple[Said, ...]
    totals_BK: Floats


class MergingScorer(BestScorer, Protocol):
    """A scorer that can also merge the candidates of a sentence's rows."""

    def step_merged(
        self,
        token_A: Integers,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: Integers,
        no_end_A: Flags | None,
        totals_BK: Floats,
        maybe_alive: Integers | None,
        most_steps: int = 1,
    ) -> tuple[Merged, DecoderState]:
        """`step_best`, and what `merge_best` of `candidates.py` makes of it.

        The rows are those with the numbers `maybe_alive` of all, None for all of them. If all are alive and may end,
        up to `most_steps` may be made at once: a step whose K best continuations of each sentence are there, none of
        them ending, is plain, since those live on, and the next step may follow.
        """
        ...


@dataclass(frozen=True, eq=False)
class Run:
    """What rows said in several steps of greedy search, `steps` at most.

    Row r said the first `counts_R[r]` tokens of its column; with fewer than the steps, or with the end symbol as the
    last, it goes no further, and has no row in the state after the run that may be asked. `totals_R` are the sums after
    what was said.
    """

    ids_TR: Integers
    log_probs_TR: Floats
    counts_R: Integers
    totals_R: Floats


class GreedyScorer(Scorer, BestScorer, Protocol):
    """A scorer that can go on by itself where each sentence has one row."""

    def run_greedily(
        self, token_R: Integers, state: DecoderState, forbidden_ids: Integers, totals_R: Floats, num_steps: int
    ) -> tuple[Run, DecoderState]:
        """So many steps, each row saying its best token (of equal ones that with the lowest id) until the end symbol
        is said or nothing may come. The state has all rows, those that stopped as placeholders."""
        ...


@dataclass(frozen=True)
class Request:
    """One sentence to search for.

    `source` ends with `</s>`, as in training. The output begins with `prefix` and holds every phrase of `constraints`
    as a run of tokens. A phrase that is listed several times must occur as many times; occurrences are counted by the
    place where they end, so that phrases may overlap or lie within one another, and one run of tokens counts for every
    phrase that it spells.
    """

    source: Ids
    prefix: Ids = ()
    constraints: tuple[Phrase, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """An output: `ids` without `<s>`; the last one, and only the last one, is `</s>` if it is `finished`.

    `score` follows the formula of `scoring.py` from `log_probs`, one per id. An output that is not finished was cut at
    its length limit, or where no token was allowed any more; `num_missing` phrases of the request are then not in it.
    `attention` (T, S), fp32, says where the model looked in the source for each id, if that was asked for.
    """

    ids: Ids
    score: float
    log_probs: tuple[float, ...]
    finished: bool
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    num_missing: int = 0
