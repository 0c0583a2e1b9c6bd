"""What the rows of a search have looked at: sums for the coverage penalty, and the whole trail where it is asked for.

In: `attention_RS` of each step. Out: coverage terms for scores, and attention (T, S) of a chosen output.
Like a scorer's state, a record is moved by `select` and `append` and never changed.

Letters: R rows, T target tokens, S source places.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.interface import Floats, Integers, Numbers
from malmoi.decoding.scoring import Scoring
from malmoi.errors import ConfigError


@dataclass(frozen=True)
class AttentionRecord:
    """Attention of each row from the first step to the last one."""

    source_lengths_R: Integers
    sums_RS: Floats
    trail_RTS: NDArray[np.float32] | None

    @classmethod
    def start(cls, source_lengths_R: Integers, keep_trail: bool) -> Self:
        """Nothing seen yet. `keep_trail`: remember each step, not the sums alone."""
        num_rows, longest = len(source_lengths_R), int(source_lengths_R.max())
        trail_RTS = np.zeros((num_rows, 0, longest), dtype=np.float32) if keep_trail else None
        return cls(source_lengths_R, np.zeros((num_rows, longest)), trail_RTS)

    def add(self, attention_RS: Numbers | None, num_tokens_R: Integers) -> Self:
        """One more step, the first one (number 0) included; rows may have said as many tokens as they like before.

        Raises `ConfigError` where the model has no attention.
        """
        if attention_RS is None:
            raise ConfigError(
                "this model has no attention, which a coverage penalty, the replacement of unknown words and attention "
                "pictures need: set coverage_beta = 0 and replace_unknown = false, or use a model with attention"
            )
        attention_RS = attention_RS[:, : self.sums_RS.shape[1]]
        sums_RS = self.sums_RS.copy()
        sums_RS[:, : attention_RS.shape[1]] += attention_RS
        trail_RTS = self.trail_RTS
        if trail_RTS is not None:
            most = int(num_tokens_R.max()) + 1
            trail_RTS = resize(trail_RTS, max(most, trail_RTS.shape[1]), trail_RTS.shape[2])
            trail_RTS[np.arange(len(trail_RTS)), num_tokens_R, : attention_RS.shape[1]] = attention_RS
        return replace(self, sums_RS=sums_RS, trail_RTS=trail_RTS)

    def coverage(self, scoring: Scoring) -> Floats:
        """The coverage term of each row."""
        return scoring.coverage(self.sums_RS, self.source_lengths_R)

    def trail(self, row: int, num_tokens: int) -> NDArray[np.float32] | None:
        """Attention (T, S) of a row's tokens, over its own source."""
        if self.trail_RTS is None:
            return None
        return self.trail_RTS[row, :num_tokens, : int(self.source_lengths_R[row])].copy()

    def select(self, rows: Integers) -> Self:
        return replace(
            self,
            source_lengths_R=self.source_lengths_R[rows],
            sums_RS=self.sums_RS[rows],
            trail_RTS=None if self.trail_RTS is None else self.trail_RTS[rows],
        )

    def append(self, other: Self) -> Self:
        longest = max(self.sums_RS.shape[1], other.sums_RS.shape[1])
        sums = [np.pad(part.sums_RS, ((0, 0), (0, longest - part.sums_RS.shape[1]))) for part in (self, other)]
        trail_RTS = None
        if self.trail_RTS is not None and other.trail_RTS is not None:
            most = max(self.trail_RTS.shape[1], other.trail_RTS.shape[1])
            trail_RTS = np.concatenate([resize(part, most, longest) for part in (self.trail_RTS, other.trail_RTS)])
        lengths_R = np.concatenate([self.source_lengths_R, other.source_lengths_R])
        return replace(self, source_lengths_R=lengths_R, sums_RS=np.concatenate(sums), trail_RTS=trail_RTS)


def resize(trail_RTS: NDArray[np.float32], num_tokens: int, num_places: int) -> NDArray[np.float32]:
    """A copy of a trail with zeros after its tokens and places."""
    return np.pad(trail_RTS, ((0, 0), (0, num_tokens - trail_RTS.shape[1]), (0, num_places - trail_RTS.shape[2])))
