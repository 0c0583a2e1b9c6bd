"""What an explanation holds: plain values and arrays, from which pages and others' pictures are made.

Letters: N heads, S source tokens, T target tokens, U source words that were left out one at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malmoi.explain.positions import Encoding, Order
from malmoi.explain.shapes import Box
from malmoi.explain.words import Side, Span

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Output:
    """One output of the search, replayed.

    `log_probs` (T,): natural logarithms, of the replay. `runners_up`: for each token the most likely others with their
    probabilities. `attention`: `decoder.0.self` (N, T, T), whose row t is the place that says token t and whose columns
    are the decoder's inputs (`<s>` and the tokens before the last), `decoder.0.cross` (N, T, S); `decoder.cross`
    (1, T, S) of a recurrent system; none of plain Seq2Seq. `rollout`: `decoder.self` (T, T), `decoder.cross` (T, S).
    `drops` (U, T): by how much each token's log-probability falls when a source word is left out, in nats.
    `score_difference`: replay minus search.
    """

    text: str
    score: float
    score_difference: float
    finished: bool
    target: Side
    log_probs: NDArray[np.float64]
    runners_up: tuple[tuple[tuple[str, float], ...], ...]
    attention: dict[str, Floats]
    rollout: dict[str, Floats]
    drops: Floats


@dataclass(frozen=True)
class Explanation:
    """One text, its outputs (best first), and how the model came to them.

    `attention`: `encoder.0.self` (N, S, S) for each layer; `rollout`: `encoder.self` (S, S). `units` are spans of the
    source's tokens, the words that were left out; `left_out_texts` what the search says without each, empty where the
    sentence has too many words for that. `description`: the model in one line. `precision`: what the search
    computed in, `fp32` or `int8`; the replay is made in fp32. `notes`: what the reader should know.
    """

    text: str
    description: str
    precision: str
    num_parameters: int
    source: Side
    outputs: tuple[Output, ...]
    attention: dict[str, Floats]
    rollout: dict[str, Floats]
    units: tuple[Span, ...]
    left_out_texts: tuple[str, ...]
    encoding: Encoding | None
    order: Order
    boxes: tuple[Box, ...]
    notes: tuple[str, ...]
    page: Callable[["Explanation"], str] | None = field(default=None, compare=False, repr=False)

    @property
    def has_attention(self) -> bool:
        return bool(self.attention or self.outputs[0].attention)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name; what belongs to an output begins with `outputs.0`, best first."""
        found: dict[str, NDArray[Any]] = dict(self.attention)
        found |= {f"rollout.{name}": values for name, values in self.rollout.items()}
        for number, output in enumerate(self.outputs):
            mine: dict[str, NDArray[Any]] = {**output.attention, "log_probs": output.log_probs, "drops": output.drops}
            mine |= {f"rollout.{name}": values for name, values in output.rollout.items()}
            found |= {f"outputs.{number}.{name}": values for name, values in mine.items()}
        if self.encoding is not None:
            found |= {"positions.table": self.encoding.table, "positions.similarity": self.encoding.similarity}
        found["order.with_positions"] = self.order.with_positions
        if self.order.without_positions is not None:
            found["order.without_positions"] = self.order.without_positions
        return found

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None, and so the plain form, where nobody said what a page looks like."""
        return None if self.page is None else self.page(self)
