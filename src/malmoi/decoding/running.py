"""All that moves row by row while sentences are searched, moved as one.

In: what a step chose. Out: sentences, scorer's state, rules and records with the chosen rows.

Letters: B sentences, K rows of a sentence, R = B x K rows, A rows that hold a hypothesis.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from malmoi.decoding.attention import AttentionRecord
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.live import Choice, Live
from malmoi.decoding.rules import Rule
from malmoi.models.interface import DecoderState

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Continuations:
    """For each place of a sentence the row that it continues: by one token, or by none where `ids_BK` is None."""

    rows_BK: Integers
    ids_BK: Integers | None
    log_probs_BK: Floats
    totals_BK: Floats


@dataclass(frozen=True)
class Running:
    """Sentences in flight.

    `state` and `token_A`, what the scorer is fed next, are of the rows that hold a hypothesis alone, A of all R.
    """

    live: Live
    state: DecoderState
    token_A: Tensor
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
            token_A=torch.cat([self.token_A, other.token_A]),
            rules=[mine.append(theirs) for mine, theirs in zip(self.rules, other.rules, strict=True)],
            constraints=self.constraints.append(other.constraints),
            record=record,
        )

    def advance(self, choice: Choice, kept: Integers, state: DecoderState, record: AttentionRecord | None) -> Self:
        """The chosen continuations of the sentences with the numbers `kept`; `state` and `record` after the step."""
        width = choice.rows_BK.shape[1]
        live = self.live.advance(choice, kept)
        rows = (kept[:, None] * width + choice.rows_BK[kept]).reshape(-1)
        ids = choice.ids_BK[kept].reshape(-1)
        device = self.token_A.device
        # Where the rows that live on stood among those that the scorer knows.
        state_rows = rows if len(live.alive) == len(rows) else rows[live.alive]
        if len(self.live.alive) < self.live.totals_BK.size:
            state_rows = self.live.alive.searchsorted(state_rows)
        # Greedy search and samples stay in their rows as long as none ends.
        if len(state_rows) != state.num_rows or np.count_nonzero(state_rows != np.arange(len(state_rows))):
            state = state.select(torch.from_numpy(state_rows).to(device))
        if record and (len(rows) != width * len(self.live.sentences) or (rows != np.arange(len(rows))).any()):
            record = record.select(rows)
        return type(self)(
            live=live,
            state=state,
            token_A=torch.from_numpy(ids[live.alive]).to(device),
            rules=[rule.select(rows).advance(ids) for rule in self.rules],
            constraints=self.constraints.select(rows).advance(ids),
            record=record,
        )
