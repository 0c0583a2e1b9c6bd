"""One update of the weights.

In: a batch, a learning rate, a key for dropout. Out: new weights, or the old ones and the name of what went wrong.

The batch is the whole update. It may be cut into micro-batches, whose gradients are summed; the sum is over all its
target tokens and is divided by their number once, so that four parts of one quarter equal one whole. Clipping and the
logged norm see that gradient, the one of the loss per token.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from malmoi.data.batch import Batch
from malmoi.training.loss import ModelWithLoss
from malmoi.training.optimizer import Parameters, set_rate


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """`loss` and `nll` are sums over `num_tokens`; `norm` is that of the gradient per token before clipping.

    `maybe_fault` names what was not finite; then nothing has moved.
    """

    loss: float
    nll: float
    num_tokens: int
    norm: float
    maybe_fault: str | None = None


class Updater:
    """Gradient of all parts, divided, checked, clipped, applied."""

    def __init__(
        self,
        model: ModelWithLoss,
        parameters: Parameters,
        optimizer: torch.optim.Optimizer,
        *,
        micro_batch_tokens: int = 0,
        clip_norm: float = 0.0,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.optimizer = optimizer
        self.micro_batch_tokens = micro_batch_tokens
        self.clip_norm = clip_norm
        self.device = next(iter(parameters.values())).device

    def update(self, batch: Batch, rate: float, key: tuple[int, ...]) -> UpdateResult:
        """Train on a batch; the model is in training mode. `key` and the part's number decide the dropout."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, nll = self.add_gradients(batch, key)
        norm = self.gradient_norm()
        # The one moment at which an accelerator is waited for. Whether the update counts must be known here: the
        # next one's rate depends on it.
        loss_sum, nll_sum, norm_value = torch.stack((loss, nll, norm.to(loss.dtype))).tolist()
        if not (math.isfinite(loss_sum) and math.isfinite(norm_value)):
            fault = self.name_fault(loss_sum, norm_value)
            self.optimizer.zero_grad(set_to_none=True)
            return UpdateResult(loss_sum, nll_sum, batch.num_target_tokens, norm_value, fault)
        if self.clip_norm and norm_value > self.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.clip_norm, norm)
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        return UpdateResult(loss_sum, nll_sum, batch.num_target_tokens, norm_value)

    def add_gradients(self, batch: Batch, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Sums of loss and nll over all parts; gradients of the loss per token of the whole update."""
        # Dividing where the gradient enters the graph spares a pass over all gradients at the end.
        share = 1 / batch.num_target_tokens
        sums: list[Tensor] = []
        for number, part in enumerate(batch.split(self.micro_batch_tokens)):
            self.model.network.bits.reseed(*key, number)
            result = self.model(part.to(self.device))
            result.loss.backward(torch.full_like(result.loss, share))
            sums.append(torch.stack((result.loss.detach(), result.nll)))
        loss, nll = torch.stack(sums).sum(0)
        return loss, nll

    def gradient_norm(self) -> Tensor:
        """2-norm over all parameters; 0-dimensional."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def name_fault(self, loss: float, norm: float) -> str:
        """What is not finite, down to the parameter where the loss itself was sound."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        for name, parameter in self.parameters.items():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return f"the gradient of {name} is not finite"
        return f"the norm of the gradient is {norm}"
