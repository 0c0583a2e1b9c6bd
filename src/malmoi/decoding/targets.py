"""What a scorer thinks of whole targets: in one pass where it can, else step by step.

In: sources and targets as padded ids. Out: log-probabilities of the targets' own tokens.

Letters: B pairs, S source places, T target tokens.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from malmoi.decoding.interface import Integers, Numbers, Scorer


@runtime_checkable
class WholeTargets(Protocol):
    """A scorer that need not go step by step where targets are known (teacher forcing)."""

    def score_targets(
        self, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
    ) -> Numbers:
        """Natural log-probabilities (B, T) of each target's tokens, T at least 1; 0 past a target's length."""
        ...


def target_log_probs(
    scorer: Scorer, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
) -> Numbers:
    """Log-probabilities (B, T) of each target's tokens; what stands past its length means nothing."""
    if not target_BT.shape[1]:
        return np.zeros(target_BT.shape)
    if isinstance(scorer, WholeTargets):
        return scorer.score_targets(source_BS, source_lengths_B, target_BT, target_lengths_B)
    return np.stack([column_B for column_B, _ in step_through(scorer, source_BS, source_lengths_B, target_BT)], axis=1)


def step_through(
    scorer: Scorer, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, keep_attention: bool = False
) -> Iterator[tuple[Numbers, Numbers | None]]:
    """For each place the log-probabilities (B,) of the tokens there, and where the model looked (B, S) if asked."""
    state = scorer.start(scorer.encode(source_BS, source_lengths_B), keep_attention=keep_attention)
    token_B = np.full_like(source_lengths_B, scorer.start_id)
    for next_B in target_BT.T:
        log_probs_BV, state = scorer.step(token_B, state)
        token_B = next_B
        yield log_probs_BV[np.arange(len(token_B)), token_B], state.attention_RS
