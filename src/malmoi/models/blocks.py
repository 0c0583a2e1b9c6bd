"""The parts between the attentions: norms, residual sums, the feed-forward network, and how all weights begin.

In and out: hidden states `(..., D)`. Letters: D width, F feed-forward.
"""

from typing import assert_never

import torch
from torch import Tensor, nn

from malmoi.config.model import Activation, NormKind, NormPlace
from malmoi.models.attention import StackedLinear
from malmoi.models.dropout import Dropout
from malmoi.models.interface import Output, Seq2Seq
from malmoi.models.kernels import FeedForwardRelu, add_and_norm
from malmoi.models.positions import RelativePositions
from malmoi.native.training import TrainingCode

NORM_EPSILON = 1e-5
NUM_LSTM_GATES = 4
# Gates stand in torch's order: input, forget, cell, output.
FORGET_GATE = 1


def build_norm(kind: NormKind, width: int) -> nn.Module:
    """Layer normalisation (Ba et al., 2016) or that by the root mean square alone (Zhang and Sennrich, 2019)."""
    match kind:
        case "layer":
            return nn.LayerNorm(width, eps=NORM_EPSILON)
        case "rms":
            return nn.RMSNorm(width, eps=NORM_EPSILON)
        case _:
            assert_never(kind)


class Residual(nn.Module):
    """What surrounds each sublayer: dropout on its output, the sum with its input, and the norm.

    post, the paper's (section 3.1): norm(x + dropout(sublayer(x))); pre: x + dropout(sublayer(norm(x))).
    """

    def __init__(self, norm: nn.Module, place: NormPlace, dropout: Dropout) -> None:
        super().__init__()
        self.norm = norm
        self.is_pre = place == "pre"
        self.dropout = dropout
        self.maybe_code: TrainingCode | None = None

    def before(self, states: Tensor) -> Tensor:
        """What the sublayer gets."""
        return self.norm(states) if self.is_pre else states

    def after(self, states: Tensor, sublayer_output: Tensor) -> Tensor:
        """What goes on to the next sublayer."""
        if self.maybe_code is not None and not self.is_pre:
            maybe_normed = add_and_norm(states, sublayer_output, self.norm, self.dropout, self.maybe_code)
            if maybe_normed is not None:
                return maybe_normed
        summed = self.dropout.add_to(states, sublayer_output)
        return summed if self.is_pre else self.norm(summed)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2), or with GELU, or gated: (silu(x W1) * (x V)) W2 (Shazeer, 2020)."""

    def __init__(self, width: int, feed_forward: int, activation: Activation, dropout: Dropout) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.inner = StackedLinear(width, feed_forward, 2 if activation == "swiglu" else 1)
        self.outer = nn.Linear(feed_forward, width)
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        is_plain = self.activation == "relu" and not self.dropout.is_active
        if is_plain and states.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            inner, outer = self.inner, self.outer
            return FeedForwardRelu.apply(states, inner.weight, inner.bias, outer.weight, outer.bias)
        return self.outer(self.dropout(self.activate(self.inner(states))))

    def activate(self, inner: Tensor) -> Tensor:
        match self.activation:
            case "relu":
                return torch.relu(inner)
            case "gelu":
                return nn.functional.gelu(inner)
            case "swiglu":
                gate, value = inner.chunk(2, dim=-1)
                return nn.functional.silu(gate) * value
            case _:
                assert_never(self.activation)


class RecurrentLinear(StackedLinear):
    """What a state enters a recurrent cell through; a part is a gate."""


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Give every parameter its start value, in the order of the modules.

    As in the paper's code: embeddings (and a separate output layer) normal with deviation d^-1/2, projections uniform
    after Glorot and Bengio (2010) with each projection's own fan in and fan out, biases 0, norms 1. Recurrent cells:
    see `initialize_recurrent`.
    """
    for module in model.modules():
        match module:
            case nn.Embedding():
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
            case Output():
                if module.weight is not None:
                    nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case RecurrentLinear():
                for part in module.weight.detach().chunk(module.num_parts):
                    nn.init.orthogonal_(part, generator=generator)
                for gate, part in enumerate(module.bias.detach().chunk(module.num_parts)):
                    part.fill_(1.0 if module.num_parts == NUM_LSTM_GATES and gate == FORGET_GATE else 0.0)
            case nn.Linear():
                num_parts = module.num_parts if isinstance(module, StackedLinear) else 1
                for part in module.weight.detach().chunk(num_parts):
                    nn.init.xavier_uniform_(part, generator=generator)
                for name, parameter in module.named_parameters(recurse=False):
                    if name == "bias":
                        nn.init.zeros_(parameter)
            case RelativePositions(key=key, value=value):
                nn.init.xavier_uniform_(key, generator=generator)
                nn.init.xavier_uniform_(value, generator=generator)
            case nn.RNNBase():
                initialize_recurrent(module, generator)
            case _:
                # Norms begin with 1 and 0 when they are made; the rest holds no parameters of its own.
                assert isinstance(module, nn.LayerNorm | nn.RMSNorm | Seq2Seq) or not any(
                    True for _ in module.parameters(recurse=False)
                ), f"{type(module).__name__} has parameters without a start value"


def initialize_recurrent(cell: nn.RNNBase, generator: torch.Generator) -> None:
    """Each gate's input weights as projections, its recurrent weights orthogonal, biases 0.

    The forget gate of an LSTM begins with a bias of 1 (Jozefowicz et al., 2015), half from each of torch's two biases.
    """
    num_gates = NUM_LSTM_GATES if cell.mode == "LSTM" else 3
    for name, parameter in cell.named_parameters():
        for gate, part in enumerate(parameter.detach().chunk(num_gates)):
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(part, generator=generator)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(part, generator=generator)
            else:
                part.fill_(0.5 if num_gates == NUM_LSTM_GATES and gate == FORGET_GATE else 0.0)
