"""All that moves row by row while sentences are searched, moved as one.

In: what a step chose. Out: sentences, scorer's state, rules and records with the chosen rows.

Letters: B sentences, K rows of a sentence, R = B x K rows, A rows that hold a hypothesis.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from malmoi.decoding.attention import AttentionRecord
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.interface import DecoderState, Floats, Integers, Said
from malmoi.decoding.live import Choice, Live
from malmoi.decoding.rules import Rule


class Continuations(NamedTuple):
    """For each place of a sentence the row that it continues: by one token, or by none where `ids_BK` is None."""

    rows_BK: Integers
    ids_BK: Integers | None
    log_probs_BK: Floats
    totals_BK: Floats


@dataclass(frozen=True, eq=False)
class Running:
    """Sentences in flight.

    `state` and `token_A`, what the scorer is fed next, are of the rows that hold a hypothesis alone, A of all R.
    """

    live: Live
    state: DecoderState
    token_A: Integers
    rules: list[Rule]
    constraints: Constraints
    record: AttentionRecord | None

    @property
    def num_tokens_R(self) -> Integers:
        """Tokens so far, row by row."""
        return np.repeat(self.live.num_tokens_B, self.live.totals_BK.shape[1])

    def append(self, other: Self) -> Self:
        """These sentences, then those of another one."""
        record = self.record.append(other.record) if self.record and other.record else None
        return type(self)(
            live=self.live.append(other.live),
            state=self.state.append(other.state),
            token_A=np.concatenate([self.token_A, other.token_A]),
            rules=[mine.append(theirs) for mine, theirs in zip(self.rules, other.rules, strict=True)],
            constraints=self.constraints.append(other.constraints),
            record=record,
        )

    def keep(self, kept: Integers) -> Self:
        """The sentences with the numbers `kept`, as they stand."""
        width = self.live.totals_BK.shape[1]
        rows = (kept[:, None] * width + np.arange(width)).reshape(-1)
        live = self.live.keep(kept, rows)
        alive, alive_before = live.maybe_alive, self.live.maybe_alive
        state_rows = rows if alive is None else rows[alive]
        if alive_before is not None:
            state_rows = alive_before.searchsorted(state_rows)
        return type(self)(
            live=live,
            state=self.state.select(state_rows),
            token_A=self.token_A[state_rows],
            rules=[rule.select(rows) for rule in self.rules],
            constraints=self.constraints.select(rows),
            record=self.record.select(rows) if self.record else None,
        )

    def advance(
        self, choice: Choice, maybe_kept: Integers | None, state: DecoderState, record: AttentionRecord | None
    ) -> Self:
        """The chosen continuations of the sentences with the numbers `maybe_kept`, None for all of them; `state` and
        `record` after the step."""
        before, (num_sentences, width) = self.live, choice.rows_BK.shape
        rows_BK, ids_BK, log_probs_BK = choice.rows_BK, choice.ids_BK, choice.log_probs_BK
        # Greedy search and samples stay in their rows as long as no sentence leaves.
        stays = maybe_kept is None and choice.in_place
        if maybe_kept is not None:
            rows_BK, ids_BK, log_probs_BK = rows_BK[maybe_kept], ids_BK[maybe_kept], log_probs_BK[maybe_kept]
        if num_sentences > 1:
            numbers_B = np.arange(num_sentences) if maybe_kept is None else maybe_kept
            rows_BK = rows_BK + (numbers_B * width)[:, None]
        said = Said(rows_BK.reshape(-1), ids_BK.reshape(-1), log_probs_BK.reshape(-1))
        live = before.advance(choice, said, maybe_kept)
        rows, ids = said.rows_R, said.ids_R
        alive, alive_before = live.maybe_alive, before.maybe_alive
        # Where the rows that live on stood among those that the scorer knows.
        state_rows, token_A = (rows, ids) if alive is None else (rows[alive], ids[alive])
        if alive_before is not None:
            state_rows = alive_before.searchsorted(state_rows)
        if not stays or len(state_rows) != state.num_rows:
            state = state.select(state_rows)
        return type(self)(
            live=live,
            state=state,
            token_A=token_A,
            rules=[rule.select(rows).advance(ids) for rule in self.rules],
            constraints=self.constraints.select(rows).advance(ids),
            record=record if record is None or stays else record.select(rows),
        )
