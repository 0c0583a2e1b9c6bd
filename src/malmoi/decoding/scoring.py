"""The one formula of a hypothesis' score (Wu et al., 2016, eq. 14), and the bound that ends a search.

    score = (log p_1 + ... + log p_n) / lp(n) + beta * sum over source places of log(min(a_i, 1))

n counts every token of the output: forced prefix and `</s>` included, `<s>` not. lp(n) is ((5 + n) / 6)^alpha ("wu"),
n^alpha ("divide") or 1 ("none"). a_i is the attention that source place i (`</s>` included) got in all n steps.
Outputs that ended and outputs that were cut follow the same formula. Sums are made in float64, token after token.

Letters: B sentences, R rows, S source places.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Floats, Integers, Numbers

LEAST_COVERAGE = 1e-9
"""Source places that got less attention than this are taken to have got so much: scores stay finite."""


@dataclass(frozen=True)
class Scoring:
    """Turns sums of log-probabilities into scores."""

    kind: Literal["wu", "divide", "none"] = "wu"
    alpha: float = 1.0
    beta: float = 0.0

    @classmethod
    def from_config(cls, config: DecodingConfig) -> Self:
        return cls(config.length_penalty, config.length_alpha, config.coverage_beta)

    def length_penalty(self, num_tokens: Integers) -> Floats:
        """lp(n), at least 1 for n = 0 too, where an empty cut output has a sum of 0."""
        tokens = np.maximum(num_tokens, 1).astype(np.float64)
        match self.kind:
            case "wu":
                return ((5.0 + tokens) / 6.0) ** self.alpha
            case "divide":
                return tokens**self.alpha
            case "none":
                return np.ones_like(tokens)

    def score(self, totals: Floats, num_tokens: Integers, coverage: Floats | float = 0.0) -> Floats:
        """Scores from sums of log-probabilities, lengths and coverage terms (beta applied)."""
        return totals / self.length_penalty(num_tokens) + coverage

    def bound(self, totals: Floats, num_tokens: Integers, most_tokens: Integers) -> Floats:
        """The best score that rows with these sums and lengths can still reach with at most `most_tokens` tokens.

        A sum never grows and lp never falls, so a sum below 0 is best divided by the largest lp; the coverage term is
        at most 0. The other end counts where rounding lifted a sum above 0.
        """
        shortest = totals / self.length_penalty(num_tokens + 1)
        return np.maximum(shortest, totals / self.length_penalty(most_tokens))

    def coverage(self, attention_sum_RS: Numbers, source_lengths_R: Integers) -> Floats:
        """The coverage term for rows whose source places got so much attention."""
        is_place_RS = np.arange(attention_sum_RS.shape[1]) < source_lengths_R[:, None]
        logs_RS = np.log(attention_sum_RS.astype(np.float64).clip(LEAST_COVERAGE, 1.0))
        return self.beta * np.where(is_place_RS, logs_RS, 0.0).sum(1)
