"""Multi-head attention (Vaswani et al., 2017, section 3.2): masks, three ways to compute one formula, and the layers.

In: hidden states and a mask. Out: attended states; the weights go to a `Trace` when one is given.

The mask is a matrix M of 0 and minus infinity that is added to the scores, e' = e + M, so that softmax gives exactly 0
where M is minus infinity. It is made from lengths. A sentence without a real token would have minus infinity
everywhere and softmax would give NaN: its M is 0 and its result is multiplied by 0 instead, in the gradient too.

Letters: B batch, T queries, S keys, D width, N heads, H head size, R live rows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from malmoi.models.dropout import Dropout
from malmoi.models.interface import Trace
from malmoi.models.kernels import SMALL_SCORES, attend_cross, attend_self
from malmoi.models.positions import AttentionPositions
from malmoi.native.training import TrainingCode


@dataclass(frozen=True)
class Mask:
    """What a query may look at."""

    added: Tensor | None = None
    """0 or minus infinity, added to scores (B, N, T, S); each of its four sizes fits or is 1."""
    kept: Tensor | None = None
    """(B, 1, 1, 1): 0 for sentences without a real token, else 1; None where every sentence has one."""
    is_causal: bool = False
    """Whether `added` is the causal matrix and no more: a fused operation then leaves out what lies in the future."""


def length_mask(lengths_B: Tensor, num_places: int, dtype: torch.dtype) -> Mask:
    """Real places are the first `lengths_B` of `num_places`; nothing is masked where all are real."""
    if lengths_B.device.type == "cpu":
        shortest = int(lengths_B.min()) if lengths_B.numel() else num_places
        if shortest == num_places:
            return Mask()
        some_are_empty = shortest == 0
    else:
        # A look at the lengths would make the CPU wait for the device.
        some_are_empty = True
    place_S = torch.arange(num_places, device=lengths_B.device)
    is_padding_BS = (place_S >= lengths_B[:, None]) & (lengths_B[:, None] > 0)
    added_BS = torch.zeros(is_padding_BS.shape, dtype=dtype, device=lengths_B.device)
    added_BS.masked_fill_(is_padding_BS, -math.inf)
    kept_B = (lengths_B > 0).to(dtype) if some_are_empty else None
    return Mask(added_BS[:, None, None], None if kept_B is None else kept_B[:, None, None, None])


def causal_mask(num_places: int, dtype: torch.dtype, device: torch.device) -> Mask:
    """M[i][j] is minus infinity where key j lies in the future of query i, else 0."""
    if num_places == 1:
        return Mask()
    added_TT = torch.full((num_places, num_places), -math.inf, dtype=dtype, device=device).triu(1)
    return Mask(added_TT[None, None], is_causal=True)


def attend(
    query_BNTH: Tensor,
    key_BNSH: Tensor,
    value_BNSH: Tensor,
    mask: Mask,
    positions: AttentionPositions | None = None,
    dropout: Dropout | None = None,
    trace: Trace | None = None,
    name: str = "",
) -> Tensor:
    """softmax(Q K^T / sqrt(H) + M) V (equation 1), `(B, N, T, H)`.

    Computed in the open where the weights are needed (a trace, dropout on them, positions that act on them) and where
    that is faster; else by torch's fused operation. `ValueError` for a mask of the wrong shape or type.
    """
    check_mask(mask, query_BNTH, key_BNSH)
    has_dropout = dropout is not None and dropout.is_active
    needs_weights = trace is not None or has_dropout or (positions is not None and positions.needs_weights)
    num_scores = query_BNTH.size(2) * key_BNSH.size(2)
    if not needs_weights and (query_BNTH.device.type != "cpu" or num_scores > SMALL_SCORES):
        added = None if mask.is_causal else mask.added
        attended_BNTH = nn.functional.scaled_dot_product_attention(
            query_BNTH, key_BNSH, value_BNSH, attn_mask=added, is_causal=mask.is_causal
        )
        return attended_BNTH if mask.kept is None else attended_BNTH * mask.kept
    query_BNTH = query_BNTH * query_BNTH.size(-1) ** -0.5
    scores_BNTS = query_BNTH @ key_BNSH.transpose(2, 3)
    if positions is not None:
        scores_BNTS = positions.add_to_scores(scores_BNTS, query_BNTH)
    if mask.added is not None:
        scores_BNTS = scores_BNTS + mask.added
    weights_BNTS = scores_BNTS.softmax(dim=-1)
    if mask.kept is not None:
        weights_BNTS = weights_BNTS * mask.kept
    if trace is not None:
        trace.add(name, weights_BNTS)
    if dropout is not None:
        weights_BNTS = dropout(weights_BNTS)
    attended_BNTH = weights_BNTS @ value_BNSH
    return attended_BNTH if positions is None else positions.add_to_values(attended_BNTH, weights_BNTS)


def check_mask(mask: Mask, query_BNTH: Tensor, key_BNSH: Tensor) -> None:
    """A bool or 0/1 mask would be added to the scores and only nudge them, so it is refused."""
    scores_shape = (*query_BNTH.shape[:3], key_BNSH.size(2))
    for part, shape in ((mask.added, scores_shape), (mask.kept, (query_BNTH.size(0), 1, 1, 1))):
        if part is None:
            continue
        fits = part.dim() == 4 and all(size in (1, wanted) for size, wanted in zip(part.shape, shape, strict=True))
        if not fits or not part.dtype.is_floating_point:
            raise ValueError(
                f"a mask is added to scores {scores_shape} as 0 and minus infinity in floating point, "
                f"so {part.dtype} {tuple(part.shape)} does not fit"
            )


class StackedLinear(nn.Linear):
    """Several projections of one input as one product; start values are drawn for each on its own."""

    def __init__(self, width_in: int, width_out: int, num_parts: int, bias: bool = True) -> None:
        super().__init__(width_in, width_out * num_parts, bias=bias)
        self.num_parts = num_parts


class SelfAttention(nn.Module):
    """Queries, keys and values of all heads come from one product of the same states and are then cut."""

    def __init__(self, width: int, num_heads: int, positions: AttentionPositions | None, dropout: Dropout) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.input = StackedLinear(width, width, 3)
        self.output = nn.Linear(width, width)
        self.positions = positions
        self.dropout = dropout
        self.maybe_code: TrainingCode | None = None

    def forward(self, states_BTD: Tensor, mask: Mask, trace: Trace | None = None, name: str = "") -> Tensor:
        batch, length, width = states_BTD.shape
        packed_BT3NH = self.input(states_BTD).view(batch, length, 3, self.num_heads, -1)
        is_plain = trace is None and self.positions is None and not self.dropout.is_active
        if is_plain and states_BTD.device.type == "cpu" and length * length <= SMALL_SCORES:
            return self.output(attend_self(packed_BT3NH, mask.added, mask.kept, self.maybe_code))
        query_BNTH, key_BNTH, value_BNTH = packed_BT3NH.permute(2, 0, 3, 1, 4).unbind(0)
        if self.positions is not None:
            query_BNTH, key_BNTH = self.positions.turn(query_BNTH, None), self.positions.turn(key_BNTH, None)
        attended_BNTH = attend(query_BNTH, key_BNTH, value_BNTH, mask, self.positions, self.dropout, trace, name)
        return self.output(attended_BNTH.transpose(1, 2).reshape(batch, length, width))

    def step(
        self,
        states_RD: Tensor,
        cache_S2RD: Tensor,
        mask: Mask,
        position: Tensor,
        trace: Trace | None = None,
        name: str = "",
    ) -> Tensor:
        """One more place: writes its key and value to the last row of the cache, then looks at the whole cache."""
        rows, width = states_RD.shape
        packed_R3NH = self.input(states_RD).view(rows, 3, self.num_heads, -1)
        cache_S2RD[-1] = packed_R3NH[:, 1:].flatten(2).transpose(0, 1)
        query_RN1H = packed_R3NH[:, 0, :, None]
        if self.positions is not None:
            query_RN1H = self.positions.turn(query_RN1H, position)
            cache_S2RD[-1, 0] = self.positions.turn(packed_R3NH[:, 1, :, None], position).reshape(rows, width)
        key_RNSH, value_RNSH = cache_S2RD.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 3, 0, 4).unbind(0)
        attended_RN1H = attend(query_RN1H, key_RNSH, value_RNSH, mask, self.positions, None, trace, name)
        return self.output(attended_RN1H.reshape(rows, width))


class CrossAttention(nn.Module):
    """Queries come from the decoder, keys and values of all heads from the encoder's output by one product."""

    def __init__(self, width: int, num_heads: int, dropout: Dropout) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = StackedLinear(width, width, 2)
        self.output = nn.Linear(width, width)
        self.dropout = dropout
        self.maybe_code: TrainingCode | None = None

    def forward(
        self, states_BTD: Tensor, memory_BSD: Tensor, mask: Mask, trace: Trace | None = None, name: str = ""
    ) -> Tensor:
        batch, length, width = states_BTD.shape
        query_BTNH = self.query(states_BTD).view(batch, length, self.num_heads, -1)
        packed_BS2NH = self.key_value(memory_BSD).view(batch, memory_BSD.size(1), 2, self.num_heads, -1)
        is_plain = trace is None and not self.dropout.is_active
        if is_plain and states_BTD.device.type == "cpu" and length * memory_BSD.size(1) <= SMALL_SCORES:
            return self.output(attend_cross(query_BTNH, packed_BS2NH, mask.added, mask.kept, self.maybe_code))
        key_BNSH, value_BNSH = packed_BS2NH.permute(2, 0, 3, 1, 4).unbind(0)
        attended_BNTH = attend(query_BTNH.transpose(1, 2), key_BNSH, value_BNSH, mask, None, self.dropout, trace, name)
        return self.output(attended_BNTH.transpose(1, 2).reshape(batch, length, width))

    def project(self, memory_BSD: Tensor) -> Tensor:
        """Keys and values of a memory, `(B, 2, N, S, H)`, made once per sentence."""
        packed_BS2NH = self.key_value(memory_BSD).unflatten(-1, (2, self.num_heads, -1))
        return packed_BS2NH.permute(0, 2, 3, 1, 4).contiguous()

    def step(
        self, states_BKD: Tensor, memory_B2NSH: Tensor, mask: Mask, trace: Trace | None = None, name: str = ""
    ) -> Tensor:
        """K rows of each sentence ask the keys and values that their sentence holds once."""
        query_BNKH = self.query(states_BKD).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key_BNSH, value_BNSH = memory_B2NSH.unbind(1)
        attended_BNKH = attend(query_BNKH, key_BNSH, value_BNSH, mask, None, None, trace, name)
        return self.output(attended_BNKH.transpose(1, 2).flatten(2))
