"""A model and what it is trained for, as one module.

In: a batch. Out: sums over its real target positions. Which loss it is, the settings say: cross-entropy with label
smoothing (`loss`), or that of two passes that are held together (`consistency`).
"""

import torch
from torch import nn

from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch
from malmoi.models.interface import Seq2Seq
from malmoi.models.transformer import use_native_code
from malmoi.native.training import OutputLayer, find_training_code
from malmoi.training.consistency import consistent_loss
from malmoi.training.loss import LossSum, fused_loss


class ModelWithLoss(nn.Module):
    """A model and its loss as one module, so that whatever wraps modules sees the output layer used inside."""

    def __init__(
        self,
        network: Seq2Seq,
        smoothing: float,
        *,
        bf16: bool = False,
        consistency: float = 0.0,
        maybe_native: OutputLayer | None = None,
    ) -> None:
        """`maybe_native`: what makes the scores on a CPU faster."""
        super().__init__()
        self.maybe_native = maybe_native
        self.network = network
        self.smoothing = smoothing
        self.bf16 = bf16
        self.consistency = consistency

    def forward(self, batch: Batch) -> LossSum:
        """Sums over the batch; teacher forcing: position t sees the target up to t and is asked for what follows.

        With `consistency`, a batch in training is computed twice, side by side, so that dropout differs.
        """
        is_twice = self.training and self.consistency > 0
        sources, lengths, inputs = batch.source_BS, batch.source_lengths_B, batch.target_input_BT
        if is_twice:
            sources, lengths, inputs = sources.repeat(2, 1), lengths.repeat(2), inputs.repeat(2, 1)
        with torch.autocast(sources.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            hidden_BTD = self.network(sources, lengths, inputs)
        common = (
            batch.target_output_BT,
            batch.target_lengths_B,
            self.network.output_weight_VD,
            self.network.output_bias_V,
            self.smoothing,
        )
        product_type = torch.bfloat16 if self.bf16 else None
        if is_twice:
            first_BTD, second_BTD = hidden_BTD.chunk(2)
            return consistent_loss(
                first_BTD,
                second_BTD,
                *common,
                self.consistency,
                product_type=product_type,
                num_tokens=batch.num_target_tokens,
                maybe_native=self.maybe_native,
            )
        return fused_loss(
            hidden_BTD,
            *common,
            product_type=product_type,
            num_tokens=batch.num_target_tokens,
            maybe_native=self.maybe_native,
        )


def model_with_loss(network: Seq2Seq, config: TrainingConfig, device: torch.device | None = None) -> ModelWithLoss:
    """A model and the loss that the settings ask for, with native code where it was built.

    `device`: where the model will be, if it is not there yet.
    """
    weight = network.output_weight_VD
    is_native = (device or weight.device).type == "cpu" and weight.dtype == torch.float32
    maybe_code = find_training_code(torch.get_num_threads()) if is_native else None
    if maybe_code is not None:
        use_native_code(network, maybe_code)
    return ModelWithLoss(
        network,
        config.label_smoothing,
        bf16=config.precision == "bf16",
        consistency=config.consistency,
        maybe_native=None if maybe_code is None else OutputLayer(maybe_code),
    )
