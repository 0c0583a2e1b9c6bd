"""From a Transformer to the shape and the weights that the native code packs, in the order in which it reads them.

In: a network in evaluation mode, fp32 on the CPU. Out: a `Shape` and a list of tensors; None stands for what a model
has not (a bias, the tables of another kind of position).
"""

from typing import assert_never

import torch
from torch import Tensor, nn

from malmoi.config import Activation, Positions
from malmoi.engine.library import Shape
from malmoi.models.attention import CrossAttention, SelfAttention
from malmoi.models.blocks import FeedForward, Residual
from malmoi.models.interface import Seq2Seq
from malmoi.models.positions import RelativePositions
from malmoi.models.transformer import DecoderLayer, EncoderLayer, Transformer

Weights = list[Tensor | None]


def why_not(network: Seq2Seq) -> str | None:
    """Why the engine cannot take a network, None where it can."""
    if not isinstance(network, Transformer):
        return f"the engine knows Transformers, and this is {type(network).__name__}"
    kinds = {(parameter.dtype, parameter.device.type) for parameter in network.parameters()}
    if kinds != {(torch.float32, "cpu")}:
        return "the engine computes on the processor, with weights that are fp32"
    if not all(is_finite(parameter.detach()) for parameter in network.parameters()):
        return "some of its weights are not finite numbers"
    return None


def is_finite(weight: Tensor) -> bool:
    """Without a second tensor of its size."""
    lowest, highest = weight.aminmax()
    return bool(lowest.isfinite()) and bool(highest.isfinite())


def describe(network: Transformer, int8: bool) -> Shape:
    """The sizes and choices of a network."""
    config = network.config
    return Shape(
        width=config.width,
        heads=config.heads,
        feed_forward=config.feed_forward,
        vocabulary=network.target_vocabulary_size,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        norm_first=config.norm_place == "pre",
        root_mean_square=config.norm == "rms",
        activation=number_of_activation(config.activation),
        positions=number_of_positions(config.positions),
        distance=config.relative_distance,
        int8=int8,
    )


def number_of_activation(activation: Activation) -> int:
    match activation:
        case "relu":
            return 0
        case "gelu":
            return 1
        case "swiglu":
            return 2
        case _:
            assert_never(activation)


def number_of_positions(positions: Positions) -> int:
    match positions:
        case "sinusoidal" | "learned":
            return 0
        case "rotary":
            return 1
        case "relative":
            return 2
        case "none":
            return 3
        case _:
            assert_never(positions)


def collect_weights(network: Transformer) -> Weights:
    """All weights, each with its bias or None after it."""
    weights: Weights = []
    for layer in network.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        weights += [*of_self_attention(layer.self_attention), *of_norm(layer.self_residual)]
        weights += [*of_feed_forward(layer.feed_forward), *of_norm(layer.feed_forward_residual)]
    weights += of_module(network.encoder.norm)
    for layer in network.decoder.stack:
        weights += of_decoder_layer(layer)
    weights += of_module(network.decoder.norm)
    weights += [network.source_embedding.weight, network.target_embedding.weight]
    weights += [network.output_weight_VD, network.output_bias_V]
    return [None if one is None else one.detach().contiguous() for one in weights]


def of_decoder_layer(layer: DecoderLayer) -> Weights:
    return [
        *of_self_attention(layer.self_attention),
        *of_norm(layer.self_residual),
        *of_cross_attention(layer.cross_attention),
        *of_norm(layer.cross_residual),
        *of_feed_forward(layer.feed_forward),
        *of_norm(layer.feed_forward_residual),
    ]


def of_self_attention(attention: SelfAttention) -> Weights:
    positions = attention.positions
    tables: Weights = [positions.key, positions.value] if isinstance(positions, RelativePositions) else [None, None]
    return [*of_module(attention.input), *of_module(attention.output), *tables]


def of_cross_attention(attention: CrossAttention) -> Weights:
    return [*of_module(attention.query), *of_module(attention.key_value), *of_module(attention.output)]


def of_feed_forward(feed_forward: FeedForward) -> Weights:
    return [*of_module(feed_forward.inner), *of_module(feed_forward.outer)]


def of_norm(residual: Residual) -> Weights:
    return of_module(residual.norm)


def of_module(module: nn.Module) -> Weights:
    """Weight and bias, as far as a module has them."""
    named = dict(module.named_parameters(recurse=False))
    return [named.get("weight"), named.get("bias")]
