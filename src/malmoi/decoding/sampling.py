"""Sampling, one step: each row draws its own next token.

In: log-probabilities of all rows and one random number per row, drawn beforehand for each request by itself. Out: a
`Choice`. Probabilities are p^(1/temperature), then the `top_k` most likely tokens alone, then the fewest most likely
tokens that have at least `top_p` of what is left; what remains is scaled to a sum of 1. Log-probabilities in outputs
and scores stay the model's own.

Letters: B sentences, K rows (samples) of a sentence, R = B x K rows, V vocabulary, C candidates.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from malmoi.config import DecodingConfig
from malmoi.decoding.candidates import stable_topk
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.live import Choice, Flags, Floats, Live
from malmoi.errors import CheckpointError

FIRST_CANDIDATES = 128
"""So many most likely tokens are tried for `top_p`, then four times as many, until they have enough probability."""


def draw_numbers(seed: int, index: int, num_samples: int, num_steps: int) -> Floats:
    """Random numbers in [0, 1) for the samples of one request, (num_samples, num_steps).

    They depend on nothing but the seed and the place of the request among all, so that neighbours never matter.
    """
    return np.random.default_rng([seed, index]).random((num_samples, num_steps))


@dataclass(frozen=True)
class SampleChooser:
    """Draws a token for each row."""

    end_id: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def from_config(cls, config: DecodingConfig, end_id: int) -> "SampleChooser":
        return cls(end_id, config.temperature, config.top_k, config.top_p)

    @property
    def first_rows(self) -> slice:
        """Every row is a sample from the beginning."""
        return slice(None)

    def choose(self, log_probs_RV: Tensor, live: Live, at_limit_B: Flags, constraints: Constraints) -> Choice:
        """One step of all sentences; a row ends when it draws the end symbol, or is cut at its limit."""
        assert not constraints.active, "constraints are refused before sampling starts"
        num_sentences, width = live.totals_BK.shape
        draws = [
            sentence.draws[:, length]
            for sentence, length in zip(live.sentences, live.num_tokens_B.tolist(), strict=True)
            if sentence.draws is not None
        ]
        draws_R = torch.from_numpy(np.concatenate(draws)).to(log_probs_RV.device)
        ids_R = self.sample(log_probs_RV, draws_R)
        log_probs_R = log_probs_RV.gather(1, ids_R[:, None])[:, 0].double()
        ids_BK = ids_R.cpu().numpy().reshape(num_sentences, width)
        log_probs_BK = log_probs_R.cpu().numpy().reshape(num_sentences, width)
        totals_BK = live.totals_BK + log_probs_BK
        if np.isnan(totals_BK).any():
            raise CheckpointError("the model's log-probabilities are not numbers (NaN): its weights are damaged")
        alive_BK = totals_BK > -np.inf
        ended_BK = alive_BK & (ids_BK == self.end_id)
        goes_on_BK = alive_BK & ~ended_BK & ~at_limit_B[:, None]
        return Choice(
            rows_BK=np.broadcast_to(np.arange(width), (num_sentences, width)),
            ids_BK=np.where(goes_on_BK, ids_BK, self.end_id),
            log_probs_BK=log_probs_BK,
            totals_BK=np.where(goes_on_BK, totals_BK, -np.inf),
            ended_BK=ended_BK,
            end_log_probs_BK=log_probs_BK,
            cut_BK=(live.totals_BK > -np.inf) & ~ended_BK & ~goes_on_BK,
        )

    def sample(self, log_probs_RV: Tensor, draws_R: Tensor) -> Tensor:
        """A token per row, by the place of its random number in the cumulated probabilities."""
        if not self.top_k and self.top_p == 1.0:
            return draw(log_probs_RV.double() / self.temperature, draws_R)
        size = log_probs_RV.size(1)
        # Before a rounding of its own could change the order, the most likely tokens are taken.
        count = min(self.top_k, size) if self.top_k else min(FIRST_CANDIDATES, size)
        best_RC, ids_RC = stable_topk(log_probs_RV, count)
        scaled_RC = best_RC.double() / self.temperature
        whole_R1 = torch.logsumexp(scaled_RC, 1, keepdim=True)
        if not self.top_k:
            whole_R1 = torch.logsumexp(log_probs_RV.double() / self.temperature, 1, keepdim=True)
            while count < size and bool(((scaled_RC - whole_R1).exp().sum(1) < self.top_p).any()):
                count = min(4 * count, size)
                best_RC, ids_RC = stable_topk(log_probs_RV, count)
                scaled_RC = best_RC.double() / self.temperature
        before_RC = (scaled_RC - whole_R1).exp().cumsum(1).roll(1, 1)
        before_RC[:, 0] = 0.0
        scaled_RC = scaled_RC.masked_fill(before_RC >= self.top_p, -torch.inf)
        return ids_RC.gather(1, draw(scaled_RC, draws_R)[:, None])[:, 0]


def draw(log_weights_RC: Tensor, draws_R: Tensor) -> Tensor:
    """The first place of each row where the cumulated weights exceed the drawn share of their sum.

    A place without weight is never taken; a row without any weight gives its first place.
    """
    weights_RC = (log_weights_RC - log_weights_RC.amax(1, keepdim=True)).exp().nan_to_num(nan=0.0)
    sums_RC = weights_RC.cumsum(1)
    wanted_R1 = draws_R[:, None] * sums_RC[:, -1:]
    # Rounding may bring the share up to the whole sum: then the last place with weight is meant.
    last_R = (sums_RC < sums_RC[:, -1:]).sum(1)
    return torch.minimum((sums_RC <= wanted_R1).sum(1), last_R)
