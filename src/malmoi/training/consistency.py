"""R-Drop (Liang et al., 2021): two passes with different dropout that must agree, the plain way and in chunks.

In: what the decoder's last layer says at every target position in either pass, and all that `loss` is told. Out: sums
over the real target positions and their count, as there.

With p and q the distributions of the two passes at a position and L its smoothed cross-entropy, a position's loss is

    (L(p) + L(q)) / 2 + c (KL(p || q) + KL(q || p)) / 4

which is half of the paper's equation 3 with its weight c (5 for translation there), so that c = 0 is the mean of two
losses. Both directions carry a gradient to both passes.

Letters: B sentences, T target positions, D width, V classes, P real target positions, R rows of one chunk.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from malmoi.native.training import OutputLayer, PairCall
from malmoi.training.loss import ChunkPass, LossSum, default_chunk_rows, is_native, real_positions, smoothed_loss


def plain_consistent_loss(
    first_BTD: Tensor,
    second_BTD: Tensor,
    target_BT: Tensor,
    target_lengths_B: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    smoothing: float,
    consistency: float,
) -> LossSum:
    """The loss as the formula reads: all logits at once, for tests."""
    common = (target_BT, target_lengths_B, weight_VD, bias_V)
    first, second = (smoothed_loss(hidden_BTD, *common, smoothing) for hidden_BTD in (first_BTD, second_BTD))
    real_P = real_positions(target_lengths_B, target_BT.shape[1])
    first_PV, second_PV = (
        torch.log_softmax(torch.nn.functional.linear(hidden_BTD.flatten(0, 1)[real_P], weight_VD, bias_V), dim=-1)
        for hidden_BTD in (first_BTD, second_BTD)
    )
    both_ways = ((first_PV.exp() - second_PV.exp()) * (first_PV - second_PV)).sum()
    loss = (first.loss + second.loss) / 2 + consistency * both_ways / 4
    return LossSum(loss, (first.nll + second.nll) / 2, first.num_tokens)


def consistent_loss(
    first_BTD: Tensor,
    second_BTD: Tensor,
    target_BT: Tensor,
    target_lengths_B: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    smoothing: float,
    consistency: float,
    *,
    chunk_rows: int = 0,
    product_type: torch.dtype | None = None,
    num_tokens: int | None = None,
    maybe_native: OutputLayer | None = None,
) -> LossSum:
    """`plain_consistent_loss` in chunks of rows, with the gradient made in the same pass, as `fused_loss` does it.

    `nll` is the mean of both passes. `chunk_rows`: positions whose logits exist at a time, in both passes.
    `maybe_native` makes the scores of fp32 on a CPU, and their gradients.
    """
    real_P = real_positions(target_lengths_B, target_BT.shape[1], num_tokens)
    first_PD, second_PD = (hidden.flatten(0, 1).index_select(0, real_P) for hidden in (first_BTD, second_BTD))
    target_P = target_BT.flatten().index_select(0, real_P)
    rows = chunk_rows or max(1, default_chunk_rows(weight_VD.shape[0], weight_VD.device) // 2)
    kind = product_type or weight_VD.dtype
    # torch types `apply` of an autograd function as untyped.
    outputs: tuple[Tensor, Tensor] = ChunkedPair.apply(  # pyright: ignore[reportAssignmentType]
        first_PD, second_PD, target_P, weight_VD, bias_V, smoothing, consistency, rows, kind, maybe_native
    )
    return LossSum(outputs[0], outputs[1], target_P.numel())


class ChunkedPair(torch.autograd.Function):
    """Loss and gradient of both passes, chunk by chunk; `backward` only scales what `forward` made."""

    @staticmethod
    def forward(
        ctx: Any,
        first_PD: Tensor,
        second_PD: Tensor,
        target_P: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        smoothing: float,
        consistency: float,
        chunk_rows: int,
        product_type: torch.dtype,
        maybe_native: OutputLayer | None,
    ) -> tuple[Tensor, Tensor]:
        # Autocast would round the sums too; the products' type is chosen by hand.
        with torch.autocast(first_PD.device.type, enabled=False):
            passes = [ChunkPass(one, weight_VD, bias_V, smoothing, product_type, True) for one in (first_PD, second_PD)]
            add, apart = add_pair, weight_VD.new_zeros(())
            if (
                maybe_native is not None
                and product_type == torch.float32
                and all(is_native(one, target_P, weight_VD, bias_V, product_type) for one in (first_PD, second_PD))
            ):
                passes[0].prepare(maybe_native, target_P)
                add = partial(add_pair_natively, maybe_native)
            for start in range(0, target_P.shape[0], chunk_rows):
                apart += add(passes[0], passes[1], start, target_P[start : start + chunk_rows], consistency)
            made = [one.finish() for one in passes]
        weight, maybe_bias = made[0][1].add_(made[1][1]), None
        if made[0][2] is not None and made[1][2] is not None:
            maybe_bias = made[0][2].add_(made[1][2])
        ctx.save_for_backward(made[0][0], made[1][0], weight, maybe_bias)
        nll = (passes[0].nll + passes[1].nll) / 2
        ctx.mark_non_differentiable(nll)
        ctx.set_materialize_grads(False)
        return (passes[0].loss + passes[1].loss) / 2 + consistency * apart / 4, nll

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, loss_gradient: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor | None, ...] = ctx.saved_tensors
        wanted = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[3:5])
        # What the passes made is the gradient of the sum of both, the loss is their mean.
        first, second, weight, bias = (
            None if made is None or loss_gradient is None or not needed else made * (loss_gradient.to(made.dtype) / 2)
            for made, needed in zip(saved, wanted, strict=True)
        )
        return first, second, None, weight, bias, None, None, None, None, None


def add_pair(first: ChunkPass, second: ChunkPass, start: int, target_R: Tensor, consistency: float) -> Tensor:
    """Rows `start`, `start` + 1, ... of both passes; the sum of their divergences, both ways.

    With p and q as above and d = log p - log q, the gradient of both divergences with respect to the logits of p is
    p (d - KL(p || q)) + p - q, and that of q the same with p and q changed about. It is added here to the gradient of
    two whole losses, so that it weighs `consistency` / 2.
    """
    rows = slice(start, start + target_R.shape[0])
    logs = [log_probabilities(one, rows, target_R) for one in (first, second)]
    difference_RV = logs[0] - logs[1]
    first_RV, second_RV = logs[0].exp_(), logs[1].exp_()
    divergence_R1 = (first_RV * difference_RV).sum(1, keepdim=True)
    reverse_R1 = (second_RV * difference_RV).sum(1, keepdim=True).neg_()
    weight = consistency / 2
    ones_R = first_RV.new_ones(first_RV.shape[0])
    right_R1 = target_R.unsqueeze(1)
    # The factors of p and of q within their own gradients.
    factor_RV = (difference_RV - divergence_R1).add_(1.0).mul_(weight).add_(1.0)
    reverse_factor_RV = (difference_RV.neg_() - reverse_R1).add_(1.0).mul_(weight).add_(1.0)
    for one, own_RV, other_RV, by_RV in (
        (first, first_RV, second_RV, factor_RV),
        (second, second_RV, first_RV, reverse_factor_RV),
    ):
        gradient_RV = by_RV.mul_(own_RV).sub_(other_RV, alpha=weight)
        gradient_RV.scatter_add_(1, right_R1, gradient_RV.new_full(right_R1.shape, one.smoothing - 1))
        one.add_gradient(rows, gradient_RV.to(one.product_type), ones_R)
    return divergence_R1.sum() + reverse_R1.sum()


def add_pair_natively(
    native: OutputLayer, first: ChunkPass, second: ChunkPass, start: int, target_R: Tensor, consistency: float
) -> float:
    """`add_pair` with all but the products of the gradient in native code."""
    count = target_R.shape[0]
    rows = slice(start, start + count)
    call = PairCall(count, native.stride, smoothing=first.smoothing, weight=consistency / 2)
    call.targets = target_R.data_ptr()
    gradients = []
    for place, one in enumerate((first, second)):
        gradients.append(one.room(count, native.stride))
        call.states[place], call.gradients[place] = one.hidden_PD[rows].data_ptr(), gradients[place].data_ptr()
    *sums, apart = native.pair_loss(call)
    for place, one in enumerate((first, second)):
        gradient_RV = gradients[place][:, : one.num_classes]
        one.add_sums(one.hidden_PD[rows], *sums[2 * place : 2 * place + 2])
        one.add_gradient(rows, gradient_RV, gradient_RV.new_ones(count))
    return apart


def log_probabilities(one: ChunkPass, rows: slice, target_R: Tensor) -> Tensor:
    """A pass's own, (R, V); its sums of both losses grow by these rows."""
    logits_RV = one.logits(one.hidden_PD[rows].to(one.product_type))
    log_total_R1 = logits_RV.logsumexp(1, keepdim=True)
    mean_R = (one.hidden_PD[rows].to(one.sum_type) @ one.weight_sum_D + one.bias_sum) / one.num_classes
    logs_RV = logits_RV.sub_(log_total_R1)
    nll = -logs_RV.gather(1, target_R.unsqueeze(1)).sum()
    one.nll += nll
    one.loss += (1 - one.smoothing) * nll + one.smoothing * (log_total_R1.squeeze(1) - mean_R).sum()
    return logs_RV
