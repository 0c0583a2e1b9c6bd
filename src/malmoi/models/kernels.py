"""Parts of a layer on the CPU, with gradients by hand: attention over short sentences, feed-forward, residual sums.

In: for attention packed projections as the linear layers give them, and the mask's two parts. Out: attended states
`(B, T, N * H)`. What is called native goes through `native/training.py`, where that was built (decision 0017).

At the sizes of one batch (16 to 32 places, heads of 32) torch's fused operation and autograd's own trail of the open
formula spend most of their time on copies and small operators. Here the packed input is laid out once, every product
writes where it is needed, and the gradient comes back in the packed layout. The formula is `attention.attend`'s, and
the parity tests compare both.

Letters: B batch, T queries, S keys, N heads, H head size, X = B * N.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from malmoi.models.dropout import LEVELS, Dropout
from malmoi.native.training import AttentionCall, ResidualCall, TrainingCode

SMALL_SCORES = 32 * 32
"""Up to so many scores per head the open formula is the faster one on a CPU."""
NATIVE_TYPES = (torch.float32, torch.bfloat16)
"""What native code reads and writes between its own sums of fp32."""


def attend_self(
    packed_BT3NH: Tensor, added: Tensor | None, kept: Tensor | None, maybe_code: TrainingCode | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(H) + M) V with Q, K, V side by side in one tensor; in native code where that is given."""
    places = packed_BT3NH.size(1)
    if maybe_code is not None and is_native(packed_BT3NH) and fits(added, packed_BT3NH.size(0), places, places):
        attended_BTD = NativeSelf.apply(packed_BT3NH, added, maybe_code)
    else:
        attended_BTD = PackedSelf.apply(packed_BT3NH, added)
    return attended_BTD if kept is None else attended_BTD * kept.view(-1, 1, 1)


def attend_cross(
    query_BTNH: Tensor,
    packed_BS2NH: Tensor,
    added: Tensor | None,
    kept: Tensor | None,
    maybe_code: TrainingCode | None = None,
) -> Tensor:
    """The same with the keys and values of another sequence."""
    batch, queries = query_BTNH.size(0), query_BTNH.size(1)
    are_alike = query_BTNH.dtype == packed_BS2NH.dtype and batch == packed_BS2NH.size(0)
    is_possible = is_native(query_BTNH) and is_native(packed_BS2NH) and are_alike
    if maybe_code is not None and is_possible and fits(added, batch, queries, packed_BS2NH.size(1)):
        attended_BTD = NativeCross.apply(query_BTNH, packed_BS2NH, added, maybe_code)
    else:
        attended_BTD = PackedCross.apply(query_BTNH, packed_BS2NH, added)
    return attended_BTD if kept is None else attended_BTD * kept.view(-1, 1, 1)


class FeedForwardRelu(torch.autograd.Function):
    """max(0, x W1 + b1) W2 + b2 with one array for what lies between, where autograd's own trail copies it thrice."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, inner_FD: Tensor, bias_F: Tensor, outer_DF: Tensor, bias_D: Tensor) -> Tensor:
        states_PD = states.flatten(0, -2)
        between_PF = torch.addmm(bias_F, states_PD, inner_FD.t()).clamp_min_(0)
        ctx.save_for_backward(states_PD, between_PF, inner_FD, outer_DF)
        ctx.shape = states.shape
        return torch.addmm(bias_D, between_PF, outer_DF.t()).view(states.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        states_PD, between_PF, inner_FD, outer_DF = ctx.saved_tensors
        gradient_PD = grad_outputs[0].flatten(0, -2)
        d_between_PF = gradient_PD @ outer_DF
        torch.ops.aten.threshold_backward.grad_input(d_between_PF, between_PF, 0, grad_input=d_between_PF)
        return (
            (d_between_PF @ inner_FD).view(ctx.shape),
            d_between_PF.t() @ states_PD,
            d_between_PF.sum(0),
            gradient_PD.t() @ between_PF,
            gradient_PD.sum(0),
        )


def is_native(packed: Tensor) -> bool:
    """Whether native code can take these: fp32 or bf16 on a CPU, at least one place, whole vectors in a head."""
    is_known = packed.device.type == "cpu" and packed.dtype in NATIVE_TYPES
    return is_known and packed.is_contiguous() and packed.numel() > 0 and packed.size(-1) % 8 == 0


def fits(added: Tensor | None, batch: int, queries: int, keys: int) -> bool:
    """Whether native code can take this mask: fp32 on a CPU, the same for all heads, each key with its own number."""
    if added is None:
        return True
    is_fp32 = added.device.type == "cpu" and added.dtype == torch.float32
    fits_sizes = added.size(0) in (1, batch) and added.size(1) == 1 and added.size(2) in (1, queries)
    return is_fp32 and fits_sizes and added.size(3) == keys and added.stride(3) == 1


def call_of(
    query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, added: Tensor | None, weights: Tensor, attended: Tensor
) -> AttentionCall:
    """What native code is told; tensors must live until it has answered."""
    batch, queries, heads, size = query_BTNH.shape
    call = AttentionCall(query_BTNH.dtype == torch.bfloat16, 0, batch, heads, size, queries, key_BSNH.size(1))
    call.query_sentence, call.query_place = query_BTNH.stride(0), query_BTNH.stride(1)
    call.key_sentence, call.key_place = key_BSNH.stride(0), key_BSNH.stride(1)
    call.padded, call.scale = weights.size(-1), size**-0.5
    call.query, call.key, call.value = query_BTNH.data_ptr(), key_BSNH.data_ptr(), value_BSNH.data_ptr()
    call.weights, call.attended = weights.data_ptr(), attended.data_ptr()
    if added is not None:
        call.added = added.data_ptr()
        call.added_sentence = added.stride(0) if added.size(0) > 1 else 0
        call.added_query = added.stride(2) if added.size(2) > 1 else 0
    return call


def attend_natively(
    query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, added: Tensor | None, code: TrainingCode
) -> tuple[Tensor, Tensor]:
    """Attended states `(B, T, N * H)`, and weights of fp32 with whole vectors of keys."""
    batch, queries, heads, _ = query_BTNH.shape
    weights = query_BTNH.new_empty(batch, heads, queries, -(-key_BSNH.size(1) // 8) * 8, dtype=torch.float32)
    attended_BTNH = query_BTNH.new_empty(query_BTNH.shape)
    code.attend(call_of(query_BTNH, key_BSNH, value_BSNH, added, weights, attended_BTNH))
    return attended_BTNH.flatten(2), weights


def attend_natively_back(
    gradient_BTD: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    weights: Tensor,
    made: tuple[Tensor, Tensor, Tensor],
    code: TrainingCode,
) -> None:
    """The gradients of query, key and value, written to `made`, which lie as these themselves do."""
    gradient_BTD = gradient_BTD.contiguous()
    call = call_of(*states, None, weights, gradient_BTD)
    call.d_query, call.d_key, call.d_value = (one.data_ptr() for one in made)
    code.attend(call, backwards=True)


class NativeSelf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed_BT3NH: Tensor, added: Tensor | None, code: TrainingCode) -> Tensor:
        query, key, value = packed_BT3NH.unbind(2)
        attended_BTD, weights = attend_natively(query, key, value, added, code)
        ctx.save_for_backward(packed_BT3NH, weights)
        ctx.code = code
        return attended_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        packed_BT3NH, weights = ctx.saved_tensors
        query, key, value = packed_BT3NH.unbind(2)
        made = torch.empty_like(packed_BT3NH)
        d_query, d_key, d_value = made.unbind(2)
        attend_natively_back(grad_outputs[0], (query, key, value), weights, (d_query, d_key, d_value), ctx.code)
        return made, None, None


class NativeCross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_BTNH: Tensor, packed_BS2NH: Tensor, added: Tensor | None, code: TrainingCode) -> Tensor:
        key, value = packed_BS2NH.unbind(2)
        attended_BTD, weights = attend_natively(query_BTNH, key, value, added, code)
        ctx.save_for_backward(query_BTNH, packed_BS2NH, weights)
        ctx.code = code
        return attended_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query_BTNH, packed_BS2NH, weights = ctx.saved_tensors
        key, value = packed_BS2NH.unbind(2)
        d_query, made = torch.empty_like(query_BTNH), torch.empty_like(packed_BS2NH)
        d_key, d_value = made.unbind(2)
        attend_natively_back(grad_outputs[0], (query_BTNH, key, value), weights, (d_query, d_key, d_value), ctx.code)
        return d_query, made, None, None


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


class NativeResidual(torch.autograd.Function):
    """LayerNorm(states + dropout(sublayer)), with dropout's bits given or none."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        sublayer: Tensor,
        gain_D: Tensor,
        bias_D: Tensor,
        epsilon: float,
        maybe_levels: Tensor | None,
        kept: tuple[int, float],
        code: TrainingCode,
    ) -> Tensor:
        """`kept`: below which level an element is kept, and the scale of those that are."""
        out, normed = torch.empty_like(states), torch.empty_like(states)
        inverse = states.new_empty(states.shape[:-1])
        call = ResidualCall(sublayer.dtype == torch.bfloat16, 0, inverse.numel(), states.size(-1), *kept, epsilon)
        call.states, call.sublayer, call.out = states.data_ptr(), sublayer.data_ptr(), out.data_ptr()
        call.gain, call.bias = gain_D.data_ptr(), bias_D.data_ptr()
        call.normed, call.inverse = normed.data_ptr(), inverse.data_ptr()
        call.levels = None if maybe_levels is None else maybe_levels.data_ptr()
        code.add_and_norm(call)
        ctx.save_for_backward(normed, inverse, gain_D, maybe_levels)
        ctx.kept, ctx.code, ctx.sublayer_type = kept, code, sublayer.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        normed, inverse, gain_D, maybe_levels = ctx.saved_tensors
        gradient = grad_outputs[0].contiguous()
        d_states, d_sublayer = torch.empty_like(normed), torch.empty_like(normed, dtype=ctx.sublayer_type)
        is_bf16 = ctx.sublayer_type == torch.bfloat16
        call = ResidualCall(is_bf16, 0, inverse.numel(), normed.size(-1), *ctx.kept, 0.0)
        call.out, call.normed, call.inverse = gradient.data_ptr(), normed.data_ptr(), inverse.data_ptr()
        call.gain, call.d_states, call.d_sublayer = gain_D.data_ptr(), d_states.data_ptr(), d_sublayer.data_ptr()
        call.levels = None if maybe_levels is None else maybe_levels.data_ptr()
        parts_X2D = gain_D.new_zeros(ctx.code.num_threads, 2, gain_D.numel())
        call.d_gain = parts_X2D.data_ptr()
        ctx.code.add_and_norm(call, backwards=True)
        d_gain, d_bias = parts_X2D.sum(0).unbind(0)
        return d_states, d_sublayer, d_gain, d_bias, None, None, None, None


def add_and_norm(
    states: Tensor, sublayer: Tensor, norm: nn.Module, dropout: Dropout, code: TrainingCode
) -> Tensor | None:
    """norm(states + dropout(sublayer)); None where native code cannot take these."""
    if not isinstance(norm, nn.LayerNorm) or norm.normalized_shape != states.shape[-1:] or states.size(-1) % 8:
        return None
    parameters = list(norm.parameters())
    if not states.numel() or states.shape != sublayer.shape or len(parameters) != 2:
        return None
    for one, kinds in ((sublayer, NATIVE_TYPES), *((one, (torch.float32,)) for one in (states, *parameters))):
        if one.device.type != "cpu" or one.dtype not in kinds or not one.is_contiguous():
            return None
    maybe_levels, kept = None, (0, 1.0)
    if dropout.is_active:
        # As signed numbers, since torch has few operations on others; here they are only kept.
        maybe_levels = torch.from_numpy(dropout.bits.levels(states.numel()).view(np.int16))
        kept = (dropout.num_kept_levels, LEVELS / dropout.num_kept_levels)
    return NativeResidual.apply(states, sublayer, norm.weight, norm.bias, norm.eps, maybe_levels, kept, code)
