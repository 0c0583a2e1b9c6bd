"""Attention over short sentences on the CPU, with a gradient written by hand.

In: packed projections as the linear layers give them, and the mask's two parts. Out: attended states `(B, T, N * H)`.

At the sizes of one batch (16 to 32 places, heads of 32) torch's fused operation and autograd's own trail of the open
formula spend most of their time on copies and small operators. Here the packed input is laid out once, every product
writes where it is needed, and the gradient comes back in the packed layout. The formula is `attention.attend`'s, and
the parity tests compare both.

Letters: B batch, T queries, S keys, N heads, H head size, X = B * N.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALL_SCORES = 32 * 32
"""Up to so many scores per head the open formula is the faster one on a CPU."""


def attend_self(packed_BT3NH: Tensor, added: Tensor | None, kept: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(H) + M) V with Q, K, V side by side in one tensor."""
    attended_BTD = PackedSelf.apply(packed_BT3NH, added)
    return attended_BTD if kept is None else attended_BTD * kept.view(-1, 1, 1)


def attend_cross(query_BTNH: Tensor, packed_BS2NH: Tensor, added: Tensor | None, kept: Tensor | None) -> Tensor:
    """The same with the keys and values of another sequence."""
    attended_BTD = PackedCross.apply(query_BTNH, packed_BS2NH, added)
    return attended_BTD if kept is None else attended_BTD * kept.view(-1, 1, 1)


class PackedSelf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed_BT3NH: Tensor, added: Tensor | None) -> Tensor:
        batch, length, _, heads, head_size = packed_BT3NH.shape
        packed_3XTH = packed_BT3NH.permute(2, 0, 3, 1, 4).reshape(3, batch * heads, length, head_size)
        query_XTH, key_XTH, value_XTH = packed_3XTH.unbind(0)
        weights_XTT = weigh(query_XTH, key_XTH, added, batch)
        ctx.save_for_backward(packed_3XTH, weights_XTT)
        return join_heads(torch.bmm(weights_XTT, value_XTH), batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient_BTD,) = grad_outputs
        packed_3XTH, weights_XTT = ctx.saved_tensors
        query_XTH, key_XTH, value_XTH = packed_3XTH.unbind(0)
        gradient_3XTH = torch.empty_like(packed_3XTH)
        d_query, d_key, d_value = gradient_3XTH.unbind(0)
        gradient_XTH = split_heads(gradient_BTD, query_XTH)
        backpropagate(gradient_XTH, query_XTH, key_XTH, value_XTH, weights_XTT, d_query, d_key, d_value)
        batch, length = gradient_BTD.shape[:2]
        return gradient_3XTH.view(3, batch, -1, length, query_XTH.size(-1)).permute(1, 3, 0, 2, 4).contiguous(), None


class PackedCross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_BTNH: Tensor, packed_BS2NH: Tensor, added: Tensor | None) -> Tensor:
        batch, length, _, heads, head_size = packed_BS2NH.shape
        query_XTH = query_BTNH.transpose(1, 2).reshape(batch * heads, -1, head_size)
        packed_2XSH = packed_BS2NH.permute(2, 0, 3, 1, 4).reshape(2, batch * heads, length, head_size)
        key_XSH, value_XSH = packed_2XSH.unbind(0)
        weights_XTS = weigh(query_XTH, key_XSH, added, batch)
        ctx.save_for_backward(query_XTH, packed_2XSH, weights_XTS)
        return join_heads(torch.bmm(weights_XTS, value_XSH), batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient_BTD,) = grad_outputs
        query_XTH, packed_2XSH, weights_XTS = ctx.saved_tensors
        key_XSH, value_XSH = packed_2XSH.unbind(0)
        d_query = torch.empty_like(query_XTH)
        gradient_2XSH = torch.empty_like(packed_2XSH)
        d_key, d_value = gradient_2XSH.unbind(0)
        gradient_XTH = split_heads(gradient_BTD, query_XTH)
        backpropagate(gradient_XTH, query_XTH, key_XSH, value_XSH, weights_XTS, d_query, d_key, d_value)
        batch, length = gradient_BTD.shape[:2]
        head_size = query_XTH.size(-1)
        d_query_BTNH = d_query.view(batch, -1, length, head_size).transpose(1, 2).contiguous()
        packed = gradient_2XSH.view(2, batch, -1, key_XSH.size(1), head_size).permute(1, 3, 0, 2, 4).contiguous()
        return d_query_BTNH, packed, None


def weigh(query_XTH: Tensor, key_XSH: Tensor, added: Tensor | None, batch: int) -> Tensor:
    """softmax(Q K^T / sqrt(H) + M)."""
    scores_XTS = torch.bmm(query_XTH, key_XSH.transpose(1, 2)).mul_(query_XTH.size(-1) ** -0.5)
    if added is not None:
        scores_XTS.view(batch, -1, *scores_XTS.shape[1:]).add_(added)
    return torch.softmax(scores_XTS, dim=-1)


def backpropagate(
    gradient_XTH: Tensor,
    query_XTH: Tensor,
    key_XSH: Tensor,
    value_XSH: Tensor,
    weights_XTS: Tensor,
    d_query_XTH: Tensor,
    d_key_XSH: Tensor,
    d_value_XSH: Tensor,
) -> None:
    """From the gradient of the attended states to those of queries, keys and values, written to the last three."""
    torch.bmm(weights_XTS.transpose(1, 2), gradient_XTH, out=d_value_XSH)
    d_weights_XTS = torch.bmm(gradient_XTH, value_XSH.transpose(1, 2))
    # The softmax's Jacobian: w * (dw - sum(w * dw)).
    d_scores_XTS = torch.ops.aten._softmax_backward_data(d_weights_XTS, weights_XTS, -1, weights_XTS.dtype)
    d_scores_XTS.mul_(query_XTH.size(-1) ** -0.5)
    torch.bmm(d_scores_XTS, key_XSH, out=d_query_XTH)
    torch.bmm(d_scores_XTS.transpose(1, 2), query_XTH, out=d_key_XSH)


def join_heads(attended_XTH: Tensor, batch: int) -> Tensor:
    """Heads side by side, `(B, T, N * H)`."""
    return attended_XTH.view(batch, -1, *attended_XTH.shape[1:]).transpose(1, 2).flatten(2)


def split_heads(states_BTD: Tensor, like_XTH: Tensor) -> Tensor:
    """The reverse of `join_heads`."""
    return states_BTD.unflatten(-1, (-1, like_XTH.size(-1))).transpose(1, 2).reshape(like_XTH.shape)
