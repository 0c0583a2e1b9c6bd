"""Tables of positions for the native code, which grow with the sentences.

In: settings, and learned tables where a model has them. Out: rows that are added to embeddings, or sines and cosines
that turn queries and keys; the same numbers as in `models/positions.py`, which says what they are.

Letters: P positions, D width.
"""

import math

import numpy as np
from numpy.typing import NDArray

from malmoi.config.model import TransformerConfig
from malmoi.engine.weights import LEARNED, Weights

FIRST_POSITIONS = 256

Placed = tuple[NDArray[np.float32], int]
"""A table and its address, which means something as long as the table is held."""


class PositionTable:
    """Of one side of a model."""

    def __init__(self, config: TransformerConfig, weights: Weights, of_source: bool) -> None:
        self.config = config
        self.maybe_learned: Placed | None = None
        self.maybe_grown: Placed | None = None
        if config.positions == "learned":
            self.maybe_learned = place(weights[LEARNED[0 if of_source else 1]])

    def rows(self, num_positions: int) -> Placed | None:
        """So many rows at least, and where they lie; None for positions without a table.

        `DataError` above what a model has learned.
        """
        learned, grown, config = self.maybe_learned, self.maybe_grown, self.config
        if learned is not None:
            if num_positions > len(learned[0]):
                from malmoi.models.positions import too_many_positions

                raise too_many_positions(num_positions, len(learned[0]))
            return learned
        if config.positions not in ("sinusoidal", "rotary"):
            return None
        if grown is None or len(grown[0]) < num_positions:
            size = max(FIRST_POSITIONS, 1 << (num_positions - 1).bit_length())
            interleaved = config.positions == "sinusoidal"
            width = config.width if interleaved else config.width // config.heads
            grown = self.maybe_grown = place(sines_and_cosines(size, width, interleaved))
        return grown


def place(table_PD: NDArray[np.float32]) -> Placed:
    return table_PD, table_PD.ctypes.data


def sines_and_cosines(num_positions: int, width: int, interleaved: bool) -> NDArray[np.float32]:
    """`sin(p / 10000^(2i / d))` and the cosine, side by side or all sines first; made in float64."""
    angles = np.arange(num_positions)[:, None] * np.exp(np.arange(0, width, 2) * (-math.log(10000.0) / width))
    if not interleaved:
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1, dtype=np.float32)
    table_PD = np.empty((num_positions, width), dtype=np.float32)
    table_PD[:, 0::2] = np.sin(angles)
    table_PD[:, 1::2] = np.cos(angles)[:, : width // 2]
    return table_PD
