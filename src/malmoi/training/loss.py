"""Cross-entropy with label smoothing: the plain way, and one that never holds all logits.

In: what the decoder's last layer says at every target position, the target ids, their lengths, and the output layer.
Out: sums over the real target positions and their count. Nothing is divided here: an update divides once, by the
tokens of all its parts, so that a sentence weighs the same whatever it was batched with.

The wanted distribution puts 1 - e on the right symbol and e / V on each of the V classes (Szegedy et al., 2016,
section 7; Vaswani et al., 2017, section 5.4). The start symbol is no class and takes no share.

Letters: B sentences, T target positions, D width, V classes, P real target positions, R rows of one chunk.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from malmoi.native.training import LossCall, OutputLayer

# A chunk of logits stays in the last level of a CPU's cache; an accelerator wants fewer and larger products.
CPU_CHUNK_ELEMENTS = 2**22
ACCELERATOR_CHUNK_ELEMENTS = 2**27
SMALLEST_CHUNK_ROWS = 32


class LossSum(NamedTuple):
    """Sums over the real target positions of a batch.

    `loss` (smoothed) carries the gradient; `nll`, the negative log-likelihood in nats, is what perplexity is made of.
    A tuple, as what wraps a module looks into no other container for the tensors that come out of it.
    """

    loss: Tensor
    nll: Tensor
    num_tokens: int


def real_positions(target_lengths_B: Tensor, num_positions: int, maybe_num_tokens: int | None = None) -> Tensor:
    """Places of the real positions in a flattened (B, T) array, from lengths alone.

    Ids are never looked at, so the end symbol counts whatever its id. With a known number of tokens a CUDA device
    need not be waited for.
    """
    position_T = torch.arange(num_positions, device=target_lengths_B.device)
    real_BT = position_T[None, :] < target_lengths_B[:, None]
    if maybe_num_tokens is None or real_BT.device.type != "cuda":
        return real_BT.flatten().nonzero().squeeze(1)
    return torch.nonzero_static(real_BT.flatten(), size=maybe_num_tokens).squeeze(1)


def smoothed_loss(
    hidden_BTD: Tensor,
    target_BT: Tensor,
    target_lengths_B: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    smoothing: float,
) -> LossSum:
    """The loss as the formula reads: all logits at once, for tests and small models."""
    real_P = real_positions(target_lengths_B, target_BT.shape[1])
    log_probs_PV = torch.log_softmax(nn.functional.linear(hidden_BTD.flatten(0, 1)[real_P], weight_VD, bias_V), dim=-1)
    nll_P = -log_probs_PV.gather(1, target_BT.flatten()[real_P].unsqueeze(1)).squeeze(1)
    uniform_P = -log_probs_PV.mean(dim=1)
    loss = ((1 - smoothing) * nll_P + smoothing * uniform_P).sum()
    return LossSum(loss, nll_P.detach().sum(), real_P.numel())


def fused_loss(
    hidden_BTD: Tensor,
    target_BT: Tensor,
    target_lengths_B: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    smoothing: float,
    *,
    chunk_rows: int = 0,
    product_type: torch.dtype | None = None,
    num_tokens: int | None = None,
    maybe_native: OutputLayer | None = None,
) -> LossSum:
    """`smoothed_loss` in chunks of rows, with the gradient made in the same pass.

    Logits exist for `chunk_rows` positions at a time (0: as many as suit the device), and padding is never multiplied.
    `product_type` rounds both sides of the matrix products (bf16); sums and the softmax stay in the weight's type.
    `num_tokens` is the sum of the lengths where the caller knows it. `maybe_native` makes the scores on a CPU, and what
    softmax makes of them.
    """
    real_P = real_positions(target_lengths_B, target_BT.shape[1], num_tokens)
    hidden_PD = hidden_BTD.flatten(0, 1).index_select(0, real_P)
    target_P = target_BT.flatten().index_select(0, real_P)
    rows = chunk_rows or default_chunk_rows(weight_VD.shape[0], weight_VD.device)
    kind = product_type or weight_VD.dtype
    wants_gradient = torch.is_grad_enabled()
    # torch types `apply` of an autograd function as untyped.
    outputs: tuple[Tensor, Tensor] = ChunkedLoss.apply(  # pyright: ignore[reportAssignmentType]
        hidden_PD, target_P, weight_VD, bias_V, smoothing, rows, kind, wants_gradient, maybe_native
    )
    return LossSum(outputs[0], outputs[1], target_P.numel())


def default_chunk_rows(num_classes: int, device: torch.device) -> int:
    """Rows whose logits fit the cache (about 400 at 10,000 classes), on an accelerator a larger budget."""
    elements = CPU_CHUNK_ELEMENTS if device.type == "cpu" else ACCELERATOR_CHUNK_ELEMENTS
    return max(SMALLEST_CHUNK_ROWS, elements // num_classes)


class ChunkedLoss(torch.autograd.Function):
    """Loss and gradient of the output layer, chunk by chunk; `backward` only scales what `forward` made."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PD: Tensor,
        target_P: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        smoothing: float,
        chunk_rows: int,
        product_type: torch.dtype,
        wants_gradient: bool,
        maybe_native: OutputLayer | None,
    ) -> tuple[Tensor, Tensor]:
        # Autocast would round the sums too; the products' type is chosen by hand.
        with torch.autocast(hidden_PD.device.type, enabled=False):
            pass_over = ChunkPass(hidden_PD, weight_VD, bias_V, smoothing, product_type, wants_gradient)
            if maybe_native is not None and is_native(hidden_PD, target_P, weight_VD, bias_V, product_type):
                pass_over.prepare(maybe_native, target_P)
            for start in range(0, target_P.shape[0], chunk_rows):
                pass_over.add(start, target_P[start : start + chunk_rows])
            gradients = pass_over.finish() if wants_gradient else (None, None, None)
        ctx.save_for_backward(*gradients)
        total_nll = pass_over.nll
        ctx.mark_non_differentiable(total_nll)
        ctx.set_materialize_grads(False)
        return pass_over.loss, total_nll

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, loss_gradient: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor | None, ...] = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], *ctx.needs_input_grad[2:4])
        hidden, weight, bias = (
            None if made is None or loss_gradient is None or not needed else made * loss_gradient.to(made.dtype)
            for made, needed in zip(saved, wanted, strict=True)
        )
        return hidden, None, weight, bias, None, None, None, None, None


def is_native(
    hidden_PD: Tensor, target_P: Tensor, weight_VD: Tensor, bias_V: Tensor | None, product_type: torch.dtype
) -> bool:
    """Whether native code can take these on a CPU: weights of fp32, products of that or of bf16; targets of 64 bits."""
    tensors = [hidden_PD, weight_VD, *([] if bias_V is None else [bias_V])]
    return (
        product_type in (torch.float32, torch.bfloat16)
        and hidden_PD.dtype in (torch.float32, product_type)
        and target_P.dtype == torch.int64
        and all(one.dtype == torch.float32 for one in tensors[1:])
        and all(
            type(one) in (Tensor, nn.Parameter) and one.device.type == "cpu" and one.is_contiguous() for one in tensors
        )
    )


class ChunkPass:
    """Running sums of one pass over the chunks.

    With logits z, their row maximum m, s = sum exp(z - m) and k the right symbol, the loss of a row is
    (1 - e) (log s + m - z_k) + e (log s + m - mean z), and its gradient with respect to the logits is
    exp(z - m) / s - (1 - e) [k] - e / V. The uniform last term never touches the (R, V) array: its share of every
    product is a product with a sum. Nor does the division by s: rows of the small factor are divided instead.
    """

    def __init__(
        self,
        hidden_PD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        smoothing: float,
        product_type: torch.dtype,
        wants_gradient: bool,
    ) -> None:
        self.num_classes = weight_VD.shape[0]
        self.smoothing = smoothing
        self.hidden_PD, self.bias_V = hidden_PD, bias_V
        self.sum_type, self.product_type = weight_VD.dtype, product_type
        self.weight_VD = weight_VD.to(product_type)
        self.weight_sum_D = weight_VD.sum(0)
        self.bias_sum = bias_V.sum() if bias_V is not None else weight_VD.new_zeros(())
        self.loss, self.nll = weight_VD.new_zeros(()), weight_VD.new_zeros(())
        self.buffer = weight_VD.new_empty(0)
        self.maybe_native: OutputLayer | None = None
        self.wants_gradient = wants_gradient
        if wants_gradient:
            self.grad_hidden_PD = torch.empty_like(hidden_PD)
            self.grad_weight_VD = torch.zeros_like(weight_VD)
            self.grad_bias_V = torch.zeros_like(bias_V) if bias_V is not None else None

    def prepare(self, native: OutputLayer, target_P: Tensor) -> None:
        """Let native code make the scores; `IndexError` for targets that are no class."""
        if target_P.numel() and not (int(target_P.min()) >= 0 and int(target_P.max()) < self.num_classes):
            raise IndexError(f"a target is not among the {self.num_classes} classes")
        bias = None if self.bias_V is None else self.bias_V.data_ptr()
        is_bf16 = self.product_type == torch.bfloat16
        native.pack(self.weight_VD.data_ptr(), bias, *self.weight_VD.shape, is_bf16=is_bf16)
        self.maybe_native = native

    def add(self, start: int, target_R: Tensor) -> None:
        """Rows `start`, `start` + 1, ... whose right symbols are `target_R`."""
        rows = slice(start, start + target_R.shape[0])
        if self.maybe_native is not None:
            self.add_natively(self.maybe_native, rows, target_R)
        else:
            self.add_by_torch(rows, target_R)

    def add_by_torch(self, rows: slice, target_R: Tensor) -> None:
        """Scores, softmax and loss of some rows, and their part of the gradient."""
        hidden_RD = self.hidden_PD[rows].to(self.product_type)
        logits_RV = self.logits(hidden_RD)
        largest_R1 = logits_RV.amax(1, keepdim=True)
        logits_RV.sub_(largest_R1)
        right_R = logits_RV.gather(1, target_R.unsqueeze(1)).squeeze(1)
        unnormalised_RV = logits_RV.exp_()
        total_R = unnormalised_RV.sum(1)
        log_total_R = total_R.log()
        nll = (log_total_R - right_R).sum()
        self.nll += nll
        mean_R = (self.hidden_PD[rows].to(self.sum_type) @ self.weight_sum_D + self.bias_sum) / self.num_classes
        uniform = (log_total_R + largest_R1.squeeze(1) - mean_R).sum()
        self.loss += (1 - self.smoothing) * nll + self.smoothing * uniform
        if self.wants_gradient:
            unnormalised_RV.scatter_add_(1, target_R.unsqueeze(1), ((self.smoothing - 1) * total_R).unsqueeze(1))
            self.add_gradient(rows, unnormalised_RV.to(self.product_type), 1 / total_R)

    def add_natively(self, native: OutputLayer, rows: slice, target_R: Tensor) -> None:
        """The same with all but the products of the gradient in native code."""
        hidden_RD, count = self.hidden_PD[rows].to(self.product_type), target_R.shape[0]
        scores_RV = self.room(count, native.stride)
        inverse_R = hidden_RD.new_empty(count, dtype=self.sum_type)
        call = LossCall(count, native.stride, hidden_RD.data_ptr(), target_R.data_ptr(), self.smoothing)
        call.unscaled, call.inverse = scores_RV.data_ptr(), inverse_R.data_ptr()
        self.add_sums(self.hidden_PD[rows].to(self.sum_type), *native.loss(call))
        if self.wants_gradient:
            self.add_gradient(rows, scores_RV[:, : self.num_classes], inverse_R)

    def room(self, count: int, size: int) -> Tensor:
        """(count, size) of memory that every chunk uses again, of the products' type."""
        if self.buffer.shape[0] < count:
            self.buffer = self.hidden_PD.new_empty(count, size, dtype=self.product_type)
        return self.buffer[:count]

    def add_sums(self, hidden_RD: Tensor, nll: float, level: float) -> None:
        """What native code found for some rows: the sums of their losses, and of log s + m."""
        mean = (hidden_RD @ self.weight_sum_D + self.bias_sum).sum() / self.num_classes
        self.nll += nll
        self.loss += (1 - self.smoothing) * nll + self.smoothing * (level - mean)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The chunk's logits in the type of the sums, in memory that every chunk uses again."""
        if self.product_type != self.sum_type:
            logits_RV = torch.mm(hidden_RD, self.weight_VD.T).to(self.sum_type)
        else:
            logits_RV = torch.mm(hidden_RD, self.weight_VD.T, out=self.room(hidden_RD.shape[0], self.num_classes))
        return logits_RV if self.bias_V is None else logits_RV.add_(self.bias_V)

    def add_gradient(self, rows: slice, unscaled_RV: Tensor, inverse_R: Tensor) -> None:
        """Products of the chunk's gradient, all but its uniform part."""
        grad_RD = torch.mm(unscaled_RV, self.weight_VD).to(self.sum_type).mul_(inverse_R.unsqueeze(1))
        self.grad_hidden_PD[rows] = grad_RD.sub_(self.weight_sum_D, alpha=self.smoothing / self.num_classes)
        scaled_RD = (self.hidden_PD[rows].to(self.sum_type) * inverse_R.unsqueeze(1)).to(self.product_type)
        if self.product_type == self.sum_type:
            self.grad_weight_VD.addmm_(unscaled_RV.T, scaled_RD)
        else:
            self.grad_weight_VD += torch.mm(unscaled_RV.T, scaled_RD)
        if self.grad_bias_V is not None:
            self.grad_bias_V += torch.mv(unscaled_RV.T, inverse_R.to(self.product_type))

    def finish(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of hidden, weight and bias, once every chunk was added."""
        share = self.smoothing / self.num_classes
        if share:
            self.grad_weight_VD.sub_(self.hidden_PD.to(self.sum_type).sum(0), alpha=share)
            if self.grad_bias_V is not None:
                self.grad_bias_V -= share * self.hidden_PD.shape[0]
        return self.grad_hidden_PD, self.grad_weight_VD, self.grad_bias_V
