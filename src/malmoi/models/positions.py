"""Position encodings: how a model knows the order of its tokens.

In: how many places there are, or queries and keys. Out: what is added to embeddings, scores and values, or turned.

An encoding acts at the embeddings (`EmbeddingPositions`, one per side) or inside each self-attention
(`AttentionPositions`, one per layer). A new one is a class here, a `Literal` in `config/model.py`, an arm in `build.py`
and a row in the parity tests.

Letters: B batch, N heads, T queries, S keys, H head size, D width, P distances.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from malmoi.errors import DataError
from malmoi.models.interface import unset_embedding


class EmbeddingPositions(nn.Module, ABC):
    """Added to the embeddings of one side."""

    max_positions: int | None = None

    @abstractmethod
    def table(self, num_positions: int, like: Tensor) -> Tensor:
        """`(num_positions, D)`, in the type and on the device of `like`."""


class AttentionPositions(nn.Module):
    """Acts inside one self-attention; here each of the three ways does nothing."""

    needs_weights: bool = False
    """Whether attention must be computed in the open, since no fused operation knows this encoding."""

    def turn(self, states_BNTH: Tensor, position_T: Tensor | None) -> Tensor:
        """Queries or keys turned by their positions, `(T,)` or `(B, T)`; None stands for 0, 1, 2 and so on."""
        return states_BNTH

    def add_to_scores(self, scores_BNTS: Tensor, query_BNTH: Tensor) -> Tensor:
        """Scores with what the distance adds to them; the queries are the last T of the S places."""
        return scores_BNTS

    def add_to_values(self, attended_BNTH: Tensor, weights_BNTS: Tensor) -> Tensor:
        """Attended values with what the distance adds to them."""
        return attended_BNTH


class GrowingTable:
    """A table that depends on positions only, kept until a longer one or another type is asked for."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None

    def get(self, num_positions: int, like: Tensor, num_columns: int, interleaved: bool) -> Tensor:
        rows = self.rows
        if rows is None or rows.size(0) < num_positions or rows.dtype != like.dtype or rows.device != like.device:
            # A tensor made under inference mode could not be saved for a later backward pass.
            with torch.inference_mode(False), torch.no_grad():
                size = 64 if num_positions <= 64 else 1 << (num_positions - 1).bit_length()
                rows = sines_and_cosines(size, num_columns, interleaved).to(like.device, like.dtype)
            self.rows = rows
        return rows[:num_positions]


def sines_and_cosines(num_positions: int, width: int, interleaved: bool = True) -> Tensor:
    """Section 3.5: `sin(p / 10000^(2i / d))` at column 2i, the cosine at 2i + 1; float64, any width.

    Not interleaved, all sines come first and then all cosines. An odd width ends with a sine that has no cosine.
    """
    position_P = torch.arange(num_positions, dtype=torch.float64)
    even_column = torch.arange(0, width, 2, dtype=torch.float64)
    angle = position_P[:, None] * torch.exp(even_column * (-math.log(10000.0) / width))
    if not interleaved:
        return torch.cat([angle.sin(), angle.cos()], dim=1)
    table = torch.empty(num_positions, width, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : width // 2]
    return table


class SinusoidalPositions(EmbeddingPositions):
    """Sine and cosine of geometrically spaced wavelengths (Vaswani et al., 2017, section 3.5); grows with length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.rows = GrowingTable()

    def table(self, num_positions: int, like: Tensor) -> Tensor:
        return self.rows.get(num_positions, like, self.width, interleaved=True)


class LearnedPositions(EmbeddingPositions):
    """One learned vector per place (Gehring et al., 2017); places past the table do not exist."""

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.embedding = unset_embedding(max_positions, width)

    def table(self, num_positions: int, like: Tensor) -> Tensor:
        # Compared before the lookup: an index past the table would end every later call on a GPU.
        if num_positions > self.embedding.num_embeddings:
            raise too_many_positions(num_positions, self.embedding.num_embeddings)
        return self.embedding.weight[:num_positions]


def too_many_positions(num_positions: int, most: int) -> DataError:
    """What to say of a sentence above the learned table."""
    return DataError(
        f"a sentence of {num_positions} tokens is longer than the {most} positions that this model learned: cut the "
        "sentence, or train with a larger model.max_positions or other model.positions"
    )


class RotaryPositions(AttentionPositions):
    """Turns each pair of numbers of queries and keys by an angle that grows with the place (Su et al., 2021, eq. 34).

    The product of a query and a key then depends on their distance only.
    """

    def __init__(self, head_size: int) -> None:
        super().__init__()
        assert head_size % 2 == 0, "rotary positions turn pairs of numbers"
        self.head_size = head_size
        self.rows = GrowingTable()

    def turn(self, states_BNTH: Tensor, position_T: Tensor | None) -> Tensor:
        num_positions = states_BNTH.size(2) if position_T is None else int(position_T.max()) + 1
        table = self.rows.get(num_positions, states_BNTH, self.head_size, interleaved=False)
        if position_T is not None:
            table = table[position_T]
            table = table[:, None] if position_T.dim() == 2 else table
        sine, cosine = table.chunk(2, dim=-1)
        first, second = states_BNTH[..., 0::2], states_BNTH[..., 1::2]
        turned = [first * cosine - second * sine, first * sine + second * cosine]
        return torch.stack(turned, dim=-1).flatten(-2)


class RelativePositions(AttentionPositions):
    """Learned vectors for clipped distances, added to keys and to values (Shaw et al., 2018, eq. 3 and 4)."""

    needs_weights = True

    def __init__(self, head_size: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.key = nn.Parameter(torch.empty(2 * max_distance + 1, head_size))
        self.value = nn.Parameter(torch.empty(2 * max_distance + 1, head_size))

    def rows(self, table_PH: Tensor, num_queries: int, num_keys: int) -> Tensor:
        """The table's rows for each query and key, `(T, S, H)`; the queries are the last of the places."""
        key_place_S = torch.arange(num_keys, device=table_PH.device)
        distance_TS = key_place_S - key_place_S[num_keys - num_queries :, None]
        distance_TS = distance_TS.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return nn.functional.embedding(distance_TS, table_PH)

    def add_to_scores(self, scores_BNTS: Tensor, query_BNTH: Tensor) -> Tensor:
        batch, heads, num_queries, num_keys = scores_BNTS.shape
        query_TXH = query_BNTH.permute(2, 0, 1, 3).reshape(num_queries, batch * heads, -1)
        added_TXS = query_TXH @ self.rows(self.key, num_queries, num_keys).transpose(1, 2)
        return scores_BNTS + added_TXS.view(num_queries, batch, heads, num_keys).permute(1, 2, 0, 3)

    def add_to_values(self, attended_BNTH: Tensor, weights_BNTS: Tensor) -> Tensor:
        batch, heads, num_queries, num_keys = weights_BNTS.shape
        weights_TXS = weights_BNTS.permute(2, 0, 1, 3).reshape(num_queries, batch * heads, num_keys)
        added_TXH = weights_TXS @ self.rows(self.value, num_queries, num_keys)
        return attended_BNTH + added_TXH.view(num_queries, batch, heads, -1).permute(1, 2, 0, 3)
