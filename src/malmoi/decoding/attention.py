"""What the rows of a search have looked at: sums for the coverage penalty, and the whole trail where it is asked for.

In: `attention_RS` of each step. Out: coverage terms for scores, and attention (T, S) of a chosen output.
Like a scorer's state, a record is moved by `select` and `append` and never changed.

Letters: R rows, T target tokens, S source places.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from malmoi.decoding.scoring import Floats, Scoring
from malmoi.errors import ConfigError

Integers = NDArray[np.int64]


def choosing_device(device: torch.device) -> torch.device:
    """Where float64 sums are made: the scorer's device, or the processor where that has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


@dataclass(frozen=True)
class AttentionRecord:
    """Attention of each row from the first step to the last one."""

    source_lengths_R: Tensor
    sums_RS: Tensor
    trail_RTS: Tensor | None

    @classmethod
    def start(cls, source_lengths_R: Tensor, keep_trail: bool) -> Self:
        """Nothing seen yet. `keep_trail`: remember each step, not the sums alone."""
        device = source_lengths_R.device
        num_rows, longest = source_lengths_R.numel(), int(source_lengths_R.max())
        sums_RS = torch.zeros(num_rows, longest, dtype=torch.float64, device=device)
        trail_RTS = torch.zeros(num_rows, 0, longest, device=device) if keep_trail else None
        return cls(source_lengths_R, sums_RS, trail_RTS)

    def add(self, attention_RS: Tensor | None, num_tokens_R: Integers) -> Self:
        """One more step, in which row r chose its token number `num_tokens_R[r]` (from 0).

        Raises `ConfigError` where the model has no attention.
        """
        if attention_RS is None:
            raise ConfigError(
                "this model has no attention, which a coverage penalty, the replacement of unknown words and attention "
                "pictures need: set coverage_beta = 0 and replace_unknown = false, or use a model with attention"
            )
        attention_RS = attention_RS[:, : self.sums_RS.size(1)].to(self.sums_RS.device)
        sums_RS = self.sums_RS.clone()
        sums_RS[:, : attention_RS.size(1)] += attention_RS
        trail_RTS = self.trail_RTS
        if trail_RTS is not None:
            most = int(num_tokens_R.max()) + 1
            trail_RTS = resize(trail_RTS, max(most, trail_RTS.size(1)), trail_RTS.size(2)).clone()
            rows_R = torch.arange(trail_RTS.size(0), device=trail_RTS.device)
            tokens_R = torch.from_numpy(num_tokens_R).to(trail_RTS.device)
            trail_RTS[rows_R, tokens_R, : attention_RS.size(1)] = attention_RS.to(trail_RTS.dtype)
        return replace(self, sums_RS=sums_RS, trail_RTS=trail_RTS)

    def coverage(self, scoring: Scoring) -> Floats:
        """The coverage term of each row."""
        return scoring.coverage(self.sums_RS, self.source_lengths_R)

    def trail(self, row: int, num_tokens: int) -> Tensor | None:
        """Attention (T, S) of a row's tokens, over its own source."""
        if self.trail_RTS is None:
            return None
        return self.trail_RTS[row, :num_tokens, : int(self.source_lengths_R[row])].cpu().clone()

    def select(self, rows: Integers) -> Self:
        rows_R = torch.from_numpy(rows).to(self.sums_RS.device)
        trail_RTS = self.trail_RTS
        return replace(
            self,
            source_lengths_R=self.source_lengths_R[rows_R],
            sums_RS=self.sums_RS[rows_R],
            trail_RTS=None if trail_RTS is None else trail_RTS[rows_R],
        )

    def append(self, other: Self) -> Self:
        longest = max(self.sums_RS.size(1), other.sums_RS.size(1))
        sums = [torch.nn.functional.pad(part.sums_RS, (0, longest - part.sums_RS.size(1))) for part in (self, other)]
        trail_RTS = None
        if self.trail_RTS is not None and other.trail_RTS is not None:
            most = max(self.trail_RTS.size(1), other.trail_RTS.size(1))
            trail_RTS = torch.cat([resize(part, most, longest) for part in (self.trail_RTS, other.trail_RTS)])
        lengths_R = torch.cat([self.source_lengths_R, other.source_lengths_R])
        return replace(self, source_lengths_R=lengths_R, sums_RS=torch.cat(sums), trail_RTS=trail_RTS)


def resize(trail_RTS: Tensor, num_tokens: int, num_places: int) -> Tensor:
    """A trail with zeros after its tokens and places."""
    padding = (0, num_places - trail_RTS.size(2), 0, num_tokens - trail_RTS.size(1))
    return torch.nn.functional.pad(trail_RTS, padding)
