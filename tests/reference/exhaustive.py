"""Search, slow and obvious: a scorer made of a table, and the searches that it is small enough for.

Everything here is plain Python over tuples of ids, written from the stated rules and formulas, one sentence at a time.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from malmoi.decoding.interface import DecoderState, Floats, Integers, Memory

Ids = tuple[int, ...]
Table = Callable[[Ids, Ids], "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]
"""From a source and what was said so far to log-probabilities of the next token (or to attention over the source)."""

END = 1


def random_table(seed: int, vocabulary_size: int, sharpness: float = 2.0, end_log_odds: float = 0.0) -> Table:
    """Log-probabilities that hang on the whole prefix and the source, without a pattern."""

    @cache
    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        logits = np.random.default_rng([seed, len(source), *source, *prefix]).normal(size=vocabulary_size) * sharpness
        logits[END] += end_log_odds
        return logits - np.log(np.exp(logits).sum())

    return table


def random_attention(seed: int) -> Table:
    """Attention that hangs on prefix and source; sums to 1."""

    @cache
    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        weights = np.random.default_rng([seed, 99, len(source), *source, *prefix]).random(len(source)) ** 4
        return weights / weights.sum()

    return table


class TableMemory(Memory):
    def __init__(self, sources: list[Ids]) -> None:
        self.sources = sources

    @property
    def num_sentences(self) -> int:
        return len(self.sources)


class TableState(DecoderState):
    """Rows as (source, what was fed so far, `<s>` first)."""

    def __init__(self, rows: list[tuple[Ids, Ids]], attention_RS: Floats | None, keeps_attention: bool) -> None:
        self.rows = rows
        self.attention_RS = attention_RS
        self.keeps_attention = keeps_attention

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def select(self, rows_R: Integers) -> Self:
        return type(self)([self.rows[row] for row in rows_R.tolist()], None, self.keeps_attention)

    def append(self, other: Self) -> Self:
        return type(self)(self.rows + other.rows, None, self.keeps_attention)


class TableScorer:
    """A scorer whose answers are written down, in float64."""

    def __init__(
        self,
        table: Table,
        vocabulary_size: int,
        attention: Table | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.table = table
        self.attention = attention
        self.vocabulary_size = vocabulary_size
        self.start_id = vocabulary_size
        self.end_id = END
        self.source_padding_id = 10_000
        self.max_steps = max_steps
        self.num_steps = 0
        self.num_rows = 0

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> TableMemory:
        rows = zip(source_BS.tolist(), source_lengths_B.tolist(), strict=True)
        return TableMemory([tuple(row[:length]) for row, length in rows])

    def start(self, memory: Memory, keep_attention: bool = False) -> TableState:
        assert isinstance(memory, TableMemory)
        return TableState([(source, ()) for source in memory.sources], None, keep_attention)

    def step(self, token_R: Integers, state: DecoderState) -> tuple[Floats, TableState]:
        assert isinstance(state, TableState)
        assert token_R.shape == (state.num_rows,)
        self.num_steps += 1
        self.num_rows += state.num_rows
        fed = [(source, (*said, token)) for (source, said), token in zip(state.rows, token_R.tolist(), strict=True)]
        assert all(said[0] == self.start_id for _, said in fed)
        if self.max_steps is not None:
            assert all(len(said) <= self.max_steps for _, said in fed), "one step more than the table has rows"
        log_probs_RV = np.stack([self.table(source, said[1:]) for source, said in fed])
        attention_RS = None
        if self.attention is not None and state.keeps_attention:
            attention_RS = np.zeros((len(fed), max(len(source) for source, _ in fed)))
            for row, (source, said) in enumerate(fed):
                attention_RS[row, : len(source)] = self.attention(source, said[1:])
        return log_probs_RV, TableState(fed, attention_RS, state.keeps_attention)


@dataclass(frozen=True)
class Formula:
    """The stated score, spelt out."""

    kind: str = "none"
    alpha: float = 0.0
    beta: float = 0.0

    def score(self, log_probs: list[float], attention: "list[np.ndarray] | None" = None) -> float:  # type: ignore[type-arg]
        """Sum over length penalty plus coverage of an output with these tokens."""
        n = len(log_probs)
        penalty = 1.0
        if self.kind == "wu":
            penalty = ((5 + n) / 6) ** self.alpha if n else 1.0
        elif self.kind == "divide":
            penalty = float(n) ** self.alpha if n else 1.0
        score = sum(log_probs) / penalty
        if self.beta and attention is not None:
            score += self.beta * sum(math.log(min(max(place, 1e-9), 1.0)) for place in sum(attention).tolist())
        return score


@dataclass(frozen=True)
class Output:
    ids: Ids
    score: float
    finished: bool
    log_probs: tuple[float, ...] = ()


def prefixes(scorer: TableScorer, source: Ids, most: int) -> Iterator[tuple[Ids, list[float]]]:
    """Every possible run of at most `most` words with its log-probabilities."""

    def grow(ids: Ids, log_probs: list[float]) -> Iterator[tuple[Ids, list[float]]]:
        yield ids, log_probs
        if len(ids) < most:
            for token, log_prob in enumerate(scorer.table(source, ids).tolist()):
                if token != END and log_prob > -math.inf:
                    yield from grow((*ids, token), [*log_probs, log_prob])

    yield from grow((), [])


def looked_at(scorer: TableScorer, source: Ids, ids: Ids) -> "list[np.ndarray] | None":  # type: ignore[type-arg]
    """Attention of each token of an output."""
    if scorer.attention is None:
        return None
    return [scorer.attention(source, ids[:place]) for place in range(len(ids))] or [np.zeros(len(source))]


def exhaustive(
    scorer: TableScorer,
    source: Ids,
    most: int,
    formula: Formula,
    may_end: Callable[[Ids], bool] = lambda ids: True,
    allowed: Callable[[Ids], bool] = lambda ids: True,
) -> list[Output]:
    """All outputs, finished ones first, best first. Cut ones are those with `most` words that cannot end."""
    finished: list[Output] = []
    cut: list[Output] = []
    for ids, log_probs in prefixes(scorer, source, most):
        if not allowed(ids):
            continue
        end_log_prob = float(scorer.table(source, ids)[END])
        if may_end(ids) and end_log_prob > -math.inf:
            whole, values = (*ids, END), [*log_probs, end_log_prob]
            finished.append(Output(whole, formula.score(values, looked_at(scorer, source, whole)), True, tuple(values)))
        elif len(ids) == most:
            score = formula.score(log_probs, looked_at(scorer, source, ids))
            cut.append(Output(ids, score, False, tuple(log_probs)))
    return sorted(finished, key=lambda one: -one.score) + sorted(cut, key=lambda one: -one.score)


def greedy(scorer: TableScorer, source: Ids, most: int) -> Ids:
    """The likeliest token, again and again; `most` words, and the end symbol if it is the likeliest then."""
    ids: Ids = ()
    while True:
        token = int(np.argmax(scorer.table(source, ids)))
        if token == END:
            return (*ids, END)
        if len(ids) == most:
            return ids
        ids = (*ids, token)


def plain_beam(
    scorer: TableScorer, source: Ids, most: int, width: int, num_best: int, formula: Formula
) -> list[Output]:
    """Beam search as it is stated, without any early stop, one sentence at a time.

    The `width` best continuations live on. An ending counts if it is better than the last of them; at the limit, if it
    is among the `width` best tokens of its row. A beam of 1 stops with its first ending.
    """
    live: list[tuple[float, Ids, list[float]]] = [(0.0, (), [])]
    finished: list[Output] = []
    cut: list[Output] = []
    for length in range(most + 1):
        ends: list[tuple[float, Ids, list[float]]] = []
        more: list[tuple[float, Ids, list[float]]] = []
        for total, ids, log_probs in live:
            values = scorer.table(source, ids)
            for token, log_prob in enumerate(values.tolist()):
                if log_prob > -math.inf:
                    ends_or_more = ends if token == END else more
                    ends_or_more.append((total + log_prob, (*ids, token), [*log_probs, log_prob]))
        more.sort(key=lambda one: -one[0])
        if length == most:
            ends = [one for one in ends if sum(scorer.table(source, one[1][:-1]) > one[2][-1]) < width]
            ended = {ids[:-1] for _, ids, _ in ends}
            for _, ids, log_probs in live:
                if ids not in ended:
                    score = formula.score(log_probs, looked_at(scorer, source, ids))
                    cut.append(Output(ids, score, False, tuple(log_probs)))
            more = []
        elif len(more) >= width:
            ends = [one for one in ends if one[0] > more[width - 1][0]]
        for _, ids, log_probs in ends:
            score = formula.score(log_probs, looked_at(scorer, source, ids))
            finished.append(Output(ids, score, True, tuple(log_probs)))
        if width == 1 and ends:
            break
        live = more[:width]
    finished.sort(key=lambda one: -one.score)
    cut.sort(key=lambda one: -one.score)
    return (finished + cut)[:num_best]
