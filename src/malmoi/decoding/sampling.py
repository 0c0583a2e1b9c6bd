"""Sampling, one step: each row draws its own next token.

In: log-probabilities of all rows and one random number per row, drawn beforehand for each request by itself. Out: a
`Choice`. Probabilities are p^(1/temperature), then the `top_k` most likely tokens alone, then the fewest most likely
tokens that have at least `top_p` of what is left; what remains is scaled to a sum of 1. Log-probabilities in outputs
and scores stay the model's own.

Letters: B sentences, K rows (samples) of a sentence, R = B x K rows, V vocabulary, C candidates.
"""

from dataclasses import dataclass

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.candidates import stable_topk
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.interface import Floats, Integers, Numbers
from malmoi.decoding.live import Choice, Live
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

    def choose(self, log_probs_RV: Numbers, live: Live, constraints: Constraints) -> Choice:
        """One step of all sentences; a row ends when it draws the end symbol, or is cut at its limit."""
        assert not constraints.active, "constraints are refused before sampling starts"
        num_sentences, width = live.totals_BK.shape
        draws = [
            sentence.draws[:, length]
            for sentence, length in zip(live.sentences, live.num_tokens_B.tolist(), strict=True)
            if sentence.draws is not None
        ]
        ids_R = self.sample(log_probs_RV, np.concatenate(draws))
        log_probs_R = log_probs_RV[np.arange(len(ids_R)), ids_R].astype(np.float64)
        ids_BK = ids_R.reshape(num_sentences, width)
        log_probs_BK = log_probs_R.reshape(num_sentences, width)
        totals_BK = live.totals_BK + log_probs_BK
        if np.isnan(totals_BK).any():
            raise CheckpointError("the model's log-probabilities are not numbers (NaN): its weights are damaged")
        alive_BK = totals_BK > -np.inf
        ended_BK = alive_BK & (ids_BK == self.end_id)
        goes_on_BK = alive_BK & ~ended_BK & (live.num_tokens_B < live.most_B)[:, None]
        return Choice(
            rows_BK=np.broadcast_to(np.arange(width), (num_sentences, width)),
            ids_BK=np.where(goes_on_BK, ids_BK, self.end_id),
            log_probs_BK=log_probs_BK,
            totals_BK=np.where(goes_on_BK, totals_BK, -np.inf),
            ended_BK=ended_BK,
            end_log_probs_BK=log_probs_BK,
            cut_BK=(live.totals_BK > -np.inf) & ~ended_BK & ~goes_on_BK,
            in_place=True,
        )

    def sample(self, log_probs_RV: Numbers, draws_R: Floats) -> Integers:
        """A token per row, by the place of its random number in the cumulated probabilities."""
        if not self.top_k and self.top_p == 1.0:
            return draw(log_probs_RV.astype(np.float64) / self.temperature, draws_R)
        size = log_probs_RV.shape[1]
        # Before a rounding of its own could change the order, the most likely tokens are taken.
        count = min(self.top_k, size) if self.top_k else min(FIRST_CANDIDATES, size)
        best_RC, ids_RC = stable_topk(log_probs_RV, count)
        scaled_RC = best_RC.astype(np.float64) / self.temperature
        whole_R1 = log_of_sum(scaled_RC if self.top_k else log_probs_RV.astype(np.float64) / self.temperature)
        while not self.top_k and count < size and (shares(scaled_RC, whole_R1).sum(axis=1) < self.top_p).any():
            count = min(4 * count, size)
            best_RC, ids_RC = stable_topk(log_probs_RV, count)
            scaled_RC = best_RC.astype(np.float64) / self.temperature
        before_RC = np.roll(shares(scaled_RC, whole_R1).cumsum(axis=1), 1, axis=1)
        before_RC[:, 0] = 0.0
        scaled_RC[before_RC >= self.top_p] = -np.inf
        return np.take_along_axis(ids_RC, draw(scaled_RC, draws_R)[:, None], 1)[:, 0]


def shares(log_weights_RC: Floats, whole_R1: Floats) -> Floats:
    """Weights over their sum; no numbers in a row without any weight."""
    with np.errstate(invalid="ignore"):
        return np.exp(log_weights_RC - whole_R1)


def log_of_sum(values_RX: Floats) -> Floats:
    """The logarithm of the sum of exponentials of each row, `(R, 1)`; minus infinity where there is nothing."""
    most_R1 = values_RX.max(axis=1, keepdims=True)
    most_R1 = np.where(most_R1 == -np.inf, 0.0, most_R1)
    with np.errstate(divide="ignore"):
        return most_R1 + np.log(np.exp(values_RX - most_R1).sum(axis=1, keepdims=True))


def draw(log_weights_RC: Floats, draws_R: Floats) -> Integers:
    """The first place of each row where the cumulated weights exceed the drawn share of their sum.

    A place without weight is never taken; a row without any weight gives its first place.
    """
    most_R1 = log_weights_RC.max(axis=1, keepdims=True)
    weights_RC = np.exp(log_weights_RC - np.where(most_R1 == -np.inf, 0.0, most_R1))
    sums_RC = np.nan_to_num(weights_RC, copy=False, nan=0.0).cumsum(axis=1)
    wanted_R1 = draws_R[:, None] * sums_RC[:, -1:]
    # Rounding may bring the share up to the whole sum: then the last place with weight is meant.
    last_R = (sums_RC < sums_RC[:, -1:]).sum(axis=1)
    return np.minimum((sums_RC <= wanted_R1).sum(axis=1), last_R)
