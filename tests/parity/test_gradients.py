"""Every parameter of every system learns: none is left without a gradient."""

import itertools

import pytest
import torch
from torch import Tensor

from malmoi.config.model import ModelConfig
from malmoi.models.attention import StackedLinear
from malmoi.models.interface import Seq2Seq
from reference.models import MODELS, build, draw_batch, small_rnn, small_transformer

DEPTHS = list(itertools.product((1, 2, 3), repeat=2))
DEEP: dict[str, ModelConfig] = {
    f"{kind}-{encoder}-{decoder}": config
    for encoder, decoder in DEPTHS
    for kind, config in {
        "transformer": small_transformer(encoder_layers=encoder, decoder_layers=decoder),
        **{
            f"rnn-{attention}-{cell}": small_rnn(
                attention=attention, cell=cell, encoder_layers=encoder, decoder_layers=decoder
            )
            for attention in ("none", "additive", "dot")
            for cell in ("gru", "lstm")
        },
    }.items()
}
SYSTEMS: dict[str, ModelConfig] = {**MODELS, **DEEP}


def parts(model: Seq2Seq) -> dict[str, Tensor]:
    """Gradients by name, those of stacked projections and of gates each on its own."""
    found: dict[str, Tensor] = {}
    for place, module in model.named_modules():
        num_parts = module.num_parts if isinstance(module, StackedLinear) else 1
        if isinstance(module, torch.nn.RNNBase):
            num_parts = 4 if module.mode == "LSTM" else 3
        for name, parameter in module.named_parameters(recurse=False):
            assert parameter.grad is not None, f"{place}.{name}"
            for number, part in enumerate(parameter.grad.chunk(num_parts)):
                found[f"{place}.{name}/{number}"] = part
    return found


def is_key_bias(name: str, config: ModelConfig) -> bool:
    """A key's bias adds the same to all scores of a query, which a softmax does not see; where keys are turned by
    their places it is not the same."""
    if config.architecture != "transformer":
        return False
    turned = config.positions == "rotary"
    return name.endswith("cross_attention.key_value.bias/0") or (
        name.endswith("self_attention.input.bias/1") and not turned
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    """Whatever the depths of encoder and decoder are, and without attention too."""
    config = SYSTEMS[name]
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([6, 4, 7], 6)
    hidden_BTD = model(source_BS, lengths_B, target_BT)
    scores_BTV = torch.nn.functional.linear(hidden_BTD, model.output_weight_VD, model.output_bias_V)
    scores_BTV.sin().sum().backward()
    gradients = {part: float(gradient.abs().max()) for part, gradient in parts(model).items()}
    assert {part for part, largest in gradients.items() if largest < 1e-12} == {
        part for part in gradients if is_key_bias(part, config)
    }
