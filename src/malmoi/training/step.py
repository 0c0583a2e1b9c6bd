"""One update of the weights.

In: a batch, a learning rate, a key for dropout. Out: new weights, or the old ones and the name of what went wrong.

The batch is the whole update, or this rank's share of it. It may be cut into micro-batches, whose gradients are summed;
the sum is over all target tokens of all ranks and is divided by their number once, so that four parts of one quarter
equal one whole, and two ranks one. Clipping and the logged norm see that gradient, the one of the loss per token.

What does not fit into the memory of an accelerator is cut into smaller micro-batches by all ranks together, and the
whole update is tried again. A rank whose memory ran out can tell the others only where none of them waits for its
gradients. So a batch that is larger than all before it passes on its gradients when all have made theirs; with the
others that happens in the last pass, while it is computed.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from malmoi.data.batch import Batch
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.training.memory import is_out_of_memory
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, Parameters
from malmoi.training.parallel import can_hold_back, gradients_stay
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest micro-batch of an update among all ranks."""

    tokens: int
    """Its pairs times their longest side."""
    scores: int
    """Its pairs times the square of that."""
    pairs: int

    @classmethod
    def of(cls, parts: Sequence[Batch]) -> "Sizes":
        longest = [max(part.source_BS.shape[1], part.target_output_BT.shape[1]) for part in parts]
        pairs = [part.num_pairs for part in parts]
        return cls(
            max(rows * length for rows, length in zip(pairs, longest, strict=True)),
            max(rows * length**2 for rows, length in zip(pairs, longest, strict=True)),
            max(pairs),
        )

    def joined(self, other: "Sizes") -> "Sizes":
        """The larger of each."""
        return Sizes(max(self.tokens, other.tokens), max(self.scores, other.scores), max(self.pairs, other.pairs))


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
        self.may_run_out = self.device.type != "cpu"
        """Whether memory that runs out is told by an error; on a CPU the system ends a process."""
        self.largest = Sizes(0, 0, 0)
        """What has fitted so far."""

    def update(self, batch: Batch, rate: float, key: tuple[int, ...]) -> UpdateResult:
        """Train on a batch; the model is in training mode. `key`, the part's number and the rank decide the dropout.

        All ranks come to the same result. `micro_batch_tokens` is smaller afterwards where the batch did not fit;
        `ConfigError` where a single pair does not.
        """
        self.optimizer.clear_gradients()
        while True:
            parts = batch.split(self.micro_batch_tokens)
            mine = Sizes.of(parts)
            counts = self.ranks.gather(batch.num_target_tokens, len(parts), mine.tokens, mine.scores, mine.pairs)
            num_tokens = int(sum(row[0] for row in counts))
            # All ranks make as many passes, or some would wait for the others for ever.
            parts += [batch.without_targets()] * (int(max(row[1] for row in counts)) - len(parts))
            sizes = Sizes(*(int(max(row[place] for row in counts)) for place in (2, 3, 4)))
            maybe_sums = self.gradients(parts, num_tokens, key, sizes)
            if maybe_sums is not None:
                return self.apply(*maybe_sums, num_tokens, rate)
            self.split_more(sizes)

    def gradients(
        self, parts: list[Batch], num_tokens: int, key: tuple[int, ...], sizes: Sizes
    ) -> tuple[Tensor, Tensor] | None:
        """Gradients of all ranks, and this one's sums of loss and nll; None in all where one had too little memory."""
        is_new = self.largest.joined(sizes) != self.largest
        holds_back = self.may_run_out and is_new and can_hold_back(self.distributed)
        maybe_sums = self.try_passes(parts, num_tokens, key, holds_back)
        if holds_back or self.ranks.count == 1:
            if not all(is_done for (is_done,) in self.ranks.gather(maybe_sums is not None)):
                return None
            self.largest = self.largest.joined(sizes)
        if holds_back:
            # A pass over nothing, which hands on what lies there.
            self.distributed(parts[0].without_targets().to(self.device)).loss.backward()
        return maybe_sums

    def try_passes(
        self, parts: list[Batch], num_tokens: int, key: tuple[int, ...], holds_back: bool
    ) -> tuple[Tensor, Tensor] | None:
        """This rank's passes; None where memory ran out and it can still tell the others."""
        try:
            return self.add_gradients(parts, num_tokens, key, holds_back)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if not holds_back and self.ranks.count > 1:
                raise ConfigError(
                    f"the memory of this device ran out ({str(error).splitlines()[0]}) where the others could not be "
                    "told: set a smaller training.micro_batch_tokens; the same command goes on from the last saved "
                    "state"
                ) from error
        # Out here, where the error no longer holds what the pass had made.
        return None

    def split_more(self, sizes: Sizes) -> None:
        """Micro-batches of half the size; `ConfigError` where they hold single pairs already."""
        self.optimizer.clear_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if sizes.pairs == 1:
            raise ConfigError(
                f"the memory of a device is too small for a single pair of {sizes.tokens} tokens: lower "
                "cleaning.max_tokens or the size of the model"
            )
        tried = min(sizes.tokens, self.micro_batch_tokens or sizes.tokens)
        self.micro_batch_tokens = max(1, tried // 2)
        if self.ranks.is_first:
            get_logger().warning(
                "micro-batches of %d tokens did not fit into memory: from now on they are of %d at most; updates stay "
                "as large as they were",
                sizes.tokens,
                self.micro_batch_tokens,
            )

    def apply(self, loss: Tensor, nll: Tensor, num_tokens: int, rate: float) -> UpdateResult:
        """Check, clip and move, by the gradients that lie there."""
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

    def add_gradients(
        self, parts: list[Batch], num_tokens: int, key: tuple[int, ...], holds_back: bool = False
    ) -> tuple[Tensor, Tensor]:
        """This rank's sums of loss and nll; gradients of all ranks' loss per token of the whole update.

        `holds_back`: of this rank's alone, to be handed on by another pass.
        """
        # Dividing where the gradient enters the graph spares a pass over all gradients at the end; what several ranks
        # have made is averaged, so that each gives as many times its part.
        share = self.ranks.count / num_tokens
        sums: list[Tensor] = []
        for number, part in enumerate(parts):
            self.model.network.bits.reseed(*key, number, *self.ranks.key)
            is_last = number == len(parts) - 1 and not holds_back
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
