"""What an output may hold: small rules that forbid tokens row by row.

In: log-probabilities of R rows, changed in place: a forbidden token gets minus infinity, every other one keeps its
value, so that scores stay the model's own. A rule carries one row of state per live row, moved by the same `select`
as the scorer's state; like that state, a rule is never changed by its methods.

Letters: B sentences, R rows, P prefix places, T tokens so far, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import IMPOSSIBLE, Flags, Integers, Numbers, Request

NOTHING = -1
"""Fills places of id tables that hold no token; no id equals it."""

NO_IDS = np.empty(0, dtype=np.int64)


class Rule(Protocol):
    """One restriction on outputs."""

    def start(self, requests: Sequence[Request], width: int) -> Self:
        """The same rule for new sentences of `width` rows each, nothing said yet."""
        ...

    def apply(self, log_probs_RV: Numbers) -> None:
        """Forbid tokens, in place."""
        ...

    def select(self, rows: Integers) -> Self:
        """The rows with these numbers, in this order."""
        ...

    def advance(self, ids: Integers) -> Self:
        """One more token on each row."""
        ...

    def append(self, other: Self) -> Self:
        """These rows, then those of another one."""
        ...


@dataclass(frozen=True)
class Limits:
    """Fewest and most tokens of an output, `</s>` not counted, forced prefix counted."""

    least: int
    most: int

    @classmethod
    def of(cls, request: Request, config: DecodingConfig, end_id: int) -> Self:
        """Limits from the request's own source alone.

        The source is counted without its end symbol. At most `max_length_ratio` * source + `max_length_extra` tokens,
        but never fewer than the minimum asks for; `max_length` goes above both; a forced prefix is always whole.
        """
        source = len(request.source) - (request.source[-1:] == (end_id,))
        # Cut before rounding: a ratio may be as large as infinity.
        shortest = math.ceil(min(config.min_length_ratio * source, config.max_length)) if source else 0
        longest = int(min(config.max_length_ratio * source, config.max_length)) if source else 0
        least = max(config.min_length, shortest)
        most = min(max(longest + config.max_length_extra, least), config.max_length)
        return cls(least, max(most, len(request.prefix)))


@dataclass(frozen=True)
class ForbiddenIds:
    """Ids that never come out."""

    ids: Integers

    def start(self, requests: Sequence[Request], width: int) -> Self:
        return self

    def apply(self, log_probs_RV: Numbers) -> None:
        log_probs_RV[:, self.ids] = -np.inf

    def select(self, rows: Integers) -> Self:
        return self

    def advance(self, ids: Integers) -> Self:
        return self

    def append(self, other: Self) -> Self:
        return self


@dataclass(frozen=True)
class MinimumLength:
    """No end symbol before the output is long enough."""

    config: DecodingConfig
    end_id: int
    missing_R: Integers
    """Tokens that each row still needs; below 0 once there are more."""

    def start(self, requests: Sequence[Request], width: int) -> Self:
        least = [Limits.of(request, self.config, self.end_id).least for request in requests]
        return replace(self, missing_R=np.repeat(np.array(least, dtype=np.int64), width))

    def apply(self, log_probs_RV: Numbers) -> None:
        rows = np.flatnonzero(self.missing_R > 0)
        if rows.size:
            log_probs_RV[rows, self.end_id] = -np.inf

    def select(self, rows: Integers) -> Self:
        return type(self)(self.config, self.end_id, self.missing_R[rows])

    def advance(self, ids: Integers) -> Self:
        return type(self)(self.config, self.end_id, self.missing_R - 1)

    def append(self, other: Self) -> Self:
        return replace(self, missing_R=np.concatenate([self.missing_R, other.missing_R]))


@dataclass(frozen=True)
class ForcedPrefix:
    """The output begins with the request's prefix, whatever the model thinks of it.

    Comes before every other rule, since it needs the model's own values. A prefix token of probability 0 counts
    `IMPOSSIBLE`.
    """

    prefix_RP: Integers
    """What is still to be said, from the left; `NOTHING` after it."""

    def start(self, requests: Sequence[Request], width: int) -> Self:
        table = id_table([request.prefix for request in requests])
        return replace(self, prefix_RP=np.repeat(table, width, axis=0))

    def apply(self, log_probs_RV: Numbers) -> None:
        if not self.prefix_RP.size:
            return
        rows = np.flatnonzero(self.prefix_RP[:, 0] != NOTHING)
        if not rows.size:
            return
        ids = self.prefix_RP[rows, 0]
        values = log_probs_RV[rows, ids]
        log_probs_RV[rows] = -np.inf
        log_probs_RV[rows, ids] = np.where(values == -np.inf, IMPOSSIBLE, values)

    def select(self, rows: Integers) -> Self:
        return self if not self.prefix_RP.size else replace(self, prefix_RP=self.prefix_RP[rows])

    def advance(self, ids: Integers) -> Self:
        if not self.prefix_RP.size:
            return self if len(ids) == len(self.prefix_RP) else replace(self, prefix_RP=self.prefix_RP[: len(ids)])
        rest = self.prefix_RP[:, 1:]
        return replace(self, prefix_RP=rest if (rest != NOTHING).any() else rest[:, :0])

    def append(self, other: Self) -> Self:
        return replace(self, prefix_RP=stack_tables(self.prefix_RP, other.prefix_RP))


@dataclass(frozen=True)
class NoRepeat:
    """No run of `size` tokens occurs twice in an output; the forced prefix itself is free to repeat."""

    size: int
    ids_RT: Integers
    """Tokens so far, shifted to the right end; `NOTHING` before them."""
    prefix_R: Integers
    """Tokens of the forced prefix still to come."""

    def start(self, requests: Sequence[Request], width: int) -> Self:
        prefix = np.array([len(request.prefix) for request in requests], dtype=np.int64)
        empty = np.empty((len(requests) * width, 0), dtype=np.int64)
        return replace(self, ids_RT=empty, prefix_R=np.repeat(prefix, width))

    def apply(self, log_probs_RV: Numbers) -> None:
        num_windows = self.ids_RT.shape[1] - self.size + 1
        if num_windows < 1:
            return
        # A run is about to occur again where the last tokens equal the beginning of an earlier window; windows that
        # reach before the first token hold `NOTHING`.
        equal = (self.ids_RT[:, :num_windows] != NOTHING) & (self.prefix_R <= 0)[:, None]
        for place in range(self.size - 1):
            last = self.ids_RT[:, self.ids_RT.shape[1] - self.size + 1 + place]
            equal &= self.ids_RT[:, place : place + num_windows] == last[:, None]
        rows, windows = np.nonzero(equal)
        if rows.size:
            log_probs_RV[rows, self.ids_RT[rows, windows + self.size - 1]] = -np.inf

    def select(self, rows: Integers) -> Self:
        return replace(self, ids_RT=self.ids_RT[rows], prefix_R=self.prefix_R[rows])

    def advance(self, ids: Integers) -> Self:
        return replace(self, ids_RT=np.concatenate([self.ids_RT, ids[:, None]], axis=1), prefix_R=self.prefix_R - 1)

    def append(self, other: Self) -> Self:
        longest = max(self.ids_RT.shape[1], other.ids_RT.shape[1])
        tables = [pad_left(table, longest) for table in (self.ids_RT, other.ids_RT)]
        prefixes = np.concatenate([self.prefix_R, other.prefix_R])
        return replace(self, ids_RT=np.concatenate(tables), prefix_R=prefixes)


def id_table(rows: Sequence[Sequence[int]]) -> Integers:
    """Rows of ids as a table, `NOTHING` after the shorter ones."""
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), NOTHING, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def stack_tables(above: Integers, below: Integers) -> Integers:
    """Two tables of ids as one, `NOTHING` after the shorter rows."""
    table = np.full((len(above) + len(below), max(above.shape[1], below.shape[1])), NOTHING, dtype=np.int64)
    table[: len(above), : above.shape[1]] = above
    table[len(above) :, : below.shape[1]] = below
    return table


def pad_left(table: Integers, size: int) -> Integers:
    """A table with `NOTHING` before its rows, so that they have `size` places."""
    padding = np.full((len(table), size - table.shape[1]), NOTHING, dtype=np.int64)
    return np.concatenate([padding, table], axis=1)


@dataclass(frozen=True)
class Bans:
    """What rules forbid, where it is no more than ids that never come out and rows that may not end yet."""

    ids: Integers
    no_end_R: Flags | None

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> Self | None:
        """None where a rule asks for more."""
        ids, no_end_R = NO_IDS, None
        for rule in rules:
            match rule:
                case ForbiddenIds():
                    ids = rule.ids
                case MinimumLength():
                    no_end_R = rule.missing_R > 0
                case ForcedPrefix() if not rule.prefix_RP.size:
                    pass
                case _:
                    return None
        return cls(ids, no_end_R if no_end_R is not None and np.count_nonzero(no_end_R) else None)
