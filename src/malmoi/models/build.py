"""From settings to a model with start values.

In: a `ModelConfig` and the sizes of the vocabularies. Out: a `Seq2Seq` whose start values depend on the seed alone.
"""

from typing import assert_never

import torch
from torch import nn

from malmoi.config.model import ModelConfig, RnnConfig, TransformerConfig
from malmoi.models.attention import CrossAttention, SelfAttention
from malmoi.models.blocks import FeedForward, initialize
from malmoi.models.dropout import RandomBits
from malmoi.models.interface import Seq2Seq
from malmoi.models.positions import (
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from malmoi.models.rnn import Rnn
from malmoi.models.transformer import PositionPlan, Transformer


def build_model(
    config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int, seed: int = 1
) -> Seq2Seq:
    """A model with start values drawn from `seed` (torch's own generator is left as it was).

    Sizes count the ids of the tokenisers, without the extra last row (`<s>`, padding) that each embedding gets.
    `ConfigError` where one embedding is to serve vocabularies of different sizes.
    """
    # Layers fill themselves from torch's global generator when they are made; `initialize` then overwrites that.
    with torch.random.fork_rng(devices=[]):
        model = construct(config, source_vocabulary_size, target_vocabulary_size, RandomBits(seed))
    with torch.no_grad():
        initialize(model, torch.Generator().manual_seed(seed))
        if isinstance(model, Transformer):
            shrink_branches(model.encoder)
            shrink_branches(model.decoder)
    return model


def shrink_branches(stack: nn.Module) -> None:
    """Divide what each of a stack's M sublayers adds to the sum by sqrt(M) (Radford et al., 2019, section 2.3).

    At full size the mean over the sentence that attention adds, the same at every place, grows from layer to layer
    until all places look alike and cross-attention has nothing to choose from: see decision 0007.
    """
    branches: list[nn.Linear] = []
    for module in stack.modules():
        match module:
            case SelfAttention() | CrossAttention():
                branches.append(module.output)
            case FeedForward():
                branches.append(module.outer)
            case _:
                pass
    for branch in branches:
        branch.weight.mul_(len(branches) ** -0.5)


def construct(
    config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int, bits: RandomBits
) -> Seq2Seq:
    """The modules of a model, with whatever start values their layers take by themselves."""
    match config:
        case TransformerConfig():
            return Transformer(config, plan_positions(config), source_vocabulary_size, target_vocabulary_size, bits)
        case RnnConfig():
            return Rnn(config, source_vocabulary_size, target_vocabulary_size, bits)
        case _:
            assert_never(config)


def outline_model(config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> Seq2Seq:
    """A model without values, which takes no memory for them (torch's `meta` device): names, shapes and ties alone.

    Errors as those of `build_model`.
    """
    with torch.device("meta"):
        return construct(config, source_vocabulary_size, target_vocabulary_size, RandomBits())


def count_parameters(config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> int:
    """How many parameters such a model has."""
    model = outline_model(config, source_vocabulary_size, target_vocabulary_size)
    return sum(parameter.numel() for parameter in model.parameters())


def plan_positions(config: TransformerConfig) -> PositionPlan:
    """Where the model's order of tokens comes from."""
    head_size = config.width // config.heads
    match config.positions:
        case "sinusoidal":
            return PositionPlan(lambda: SinusoidalPositions(config.width), lambda: None)
        case "learned":
            return PositionPlan(lambda: LearnedPositions(config.max_positions, config.width), lambda: None)
        case "rotary":
            return PositionPlan(lambda: None, lambda: RotaryPositions(head_size))
        case "relative":
            return PositionPlan(lambda: None, lambda: RelativePositions(head_size, config.relative_distance))
        case "none":
            return PositionPlan(lambda: None, lambda: None)
        case _:
            assert_never(config.positions)
