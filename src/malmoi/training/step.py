"""One update of the weights.

In: a batch, a learning rate, a key for dropout. Out: new weights, or the old ones and the name of what went wrong.

The batch is the whole update, or this rank's share of it. It may be cut into micro-batches, whose gradients are summed;
the sum is over all target tokens of all ranks and is divided by their number once, so that four parts of one quarter
equal one whole, and two ranks one. Clipping and the logged norm see that gradient, the one of the loss per token.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from malmoi.data.batch import Batch
from malmoi.training.loss import ModelWithLoss
from malmoi.training.optimizer import Adam, Parameters
from malmoi.training.parallel import gradients_stay
from malmoi.training.ranks import ALONE, Ranks
from malmoi.training.shards import whole


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """`loss` and `nll` are sums over the `num_tokens` of all ranks; `norm` is that of the gradient per token before
    clipping.

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
        optimizer: Adam,
        *,
        maybe_distributed: nn.Module | None = None,
        ranks: Ranks = ALONE,
        micro_batch_tokens: int = 0,
        clip_norm: float = 0.0,
    ) -> None:
        """`maybe_distributed`: what `parallel.distribute` made of the model."""
        self.model = model
        self.distributed = maybe_distributed or model
        self.ranks = ranks
        self.parameters = parameters
        self.optimizer = optimizer
        self.micro_batch_tokens = micro_batch_tokens
        self.clip_norm = clip_norm
        self.device = next(iter(parameters.values())).device

    def update(self, batch: Batch, rate: float, key: tuple[int, ...]) -> UpdateResult:
        """Train on a batch; the model is in training mode. `key`, the part's number and the rank decide the dropout.

        All ranks come to the same result.
        """
        self.optimizer.clear_gradients()
        parts = batch.split(self.micro_batch_tokens)
        counts = self.ranks.gather(batch.num_target_tokens, len(parts))
        num_tokens = int(sum(tokens for tokens, _ in counts))
        most_parts = int(max(num_parts for _, num_parts in counts))
        # All ranks make as many passes, or some would wait for the others for ever.
        parts += [batch.without_targets()] * (most_parts - len(parts))
        loss, nll = self.add_gradients(parts, num_tokens, key)
        norm = self.gradient_norm()
        # The one moment at which an accelerator is waited for. Whether the update counts must be known here: the
        # next one's rate depends on it.
        sums = self.ranks.gather(*torch.stack((loss, nll, norm.to(loss.dtype))).tolist())
        loss_sum, nll_sum = sum(row[0] for row in sums), sum(row[1] for row in sums)
        norm_value = sums[0][2]
        if not (math.isfinite(loss_sum) and math.isfinite(norm_value)):
            fault = self.name_fault(loss_sum, norm_value)
            self.optimizer.clear_gradients()
            return UpdateResult(loss_sum, nll_sum, num_tokens, norm_value, fault)
        if self.clip_norm and norm_value > self.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.clip_norm, norm)
        self.optimizer.step(rate)
        return UpdateResult(loss_sum, nll_sum, num_tokens, norm_value)

    def add_gradients(self, parts: list[Batch], num_tokens: int, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """This rank's sums of loss and nll; gradients of all ranks' loss per token of the whole update."""
        # Dividing where the gradient enters the graph spares a pass over all gradients at the end; what several ranks
        # have made is averaged, so that each gives as many times its part.
        share = self.ranks.count / num_tokens
        sums: list[Tensor] = []
        for number, part in enumerate(parts):
            self.model.network.bits.reseed(*key, number, *self.ranks.key)
            is_last = number == len(parts) - 1
            with nullcontext() if is_last else gradients_stay(self.distributed):
                result = self.distributed(part.to(self.device))
                result.loss.backward(torch.full_like(result.loss, share))
            sums.append(torch.stack((result.loss.detach(), result.nll)))
        loss, nll = torch.stack(sums).sum(0)
        return loss, nll

    def gradient_norm(self) -> Tensor:
        """2-norm over all parameters; 0-dimensional."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        return whole(torch.nn.utils.get_total_norm(gradients))

    def name_fault(self, loss: float, norm: float) -> str:
        """What is not finite, down to the parameter where the loss itself was sound."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        for name, parameter in self.parameters.items():
            if parameter.grad is not None and not bool(whole(parameter.grad.isfinite().all())):
                return f"the gradient of {name} is not finite"
        return f"the norm of the gradient is {norm}"
