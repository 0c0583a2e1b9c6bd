"""The training doorway: what every architecture takes in and gives out.

In: batches of ids, `source_BS` with `source_lengths_B` and `target_BT` (which starts with `<s>`), int64.
Out: hidden states `hidden_BTD` that the output weight turns into scores of the vocabulary; for search, a memory of the
sources and a state with one row per hypothesis. Ids past a sentence's length are padding and never matter.

Letters: B sentences of a batch, S source places, T target places, D width, N heads, V target vocabulary without `<s>`,
R live rows of a state.
"""

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor, nn

from malmoi.config.model import Tying
from malmoi.errors import ConfigError
from malmoi.models.dropout import RandomBits


class Trace:
    """Attention weights of one pass, by name, in the order in which they were computed.

    The Transformer adds `encoder.0.self` (B, N, S, S), `decoder.0.self` (B, N, T, T) and `decoder.0.cross`
    (B, N, T, S) for each layer, an RNN with attention `decoder.cross` (B, 1, T, S); in `step`, R stands for B and T is
    1. Rows sum to 1 over the real places, masked places hold exactly 0, and a sentence without a real token has 0
    everywhere. A traced pass is made without dropout.
    """

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def add(self, name: str, weights: Tensor) -> None:
        assert name not in self.weights, f"{name} was recorded before: a trace holds one pass"
        self.weights[name] = weights.detach()


class Memory(ABC):
    """What a model keeps of encoded sources; opaque to search."""

    @property
    @abstractmethod
    def num_sentences(self) -> int: ...


class DecoderState(ABC):
    """Hypotheses while they grow: one row each, and each row knows which sentence it belongs to.

    A state is never changed by the methods of a model: `step`, `select` and `append` give a new one.
    """

    attention_RS: Tensor | None
    """Where the last step looked in the source, mean over heads, if `start` was asked to keep it."""

    @property
    @abstractmethod
    def num_rows(self) -> int: ...

    @abstractmethod
    def select(self, rows_R: Tensor) -> Self:
        """The rows with these numbers in this order; they may be repeated or left out."""

    @abstractmethod
    def append(self, other: "DecoderState") -> Self:
        """The rows of this state, then those of another one, of the same model, with other sentences and lengths."""


def unset_embedding(num_rows: int, width: int) -> nn.Embedding:
    """An embedding whose values are still to be set: torch's own start values cost time, on the meta device most."""
    return nn.Embedding.from_pretrained(torch.empty(num_rows, width), freeze=False)


class Output(nn.Module):
    """The output layer's own parameters, as far as it has any."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, vocabulary_size: int, width: int, tied: bool, bias: bool) -> None:
        super().__init__()
        weight_VD = None if tied else nn.Parameter(torch.empty(vocabulary_size, width))
        self.register_parameter("weight", weight_VD)
        self.register_parameter("bias", nn.Parameter(torch.zeros(vocabulary_size)) if bias else None)


class Seq2Seq(nn.Module, ABC):
    """An encoder-decoder over ids. `forward` is the only way in for training, so that wrappers can hook it.

    `target_vocabulary_size` is V, the number of classes of the softmax; id V (`start_id`) is `<s>`, the last row of the
    target embedding, which starts every target and is outside the softmax. The source embedding has an extra last row
    too, for padding.
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        width: int,
        tying: Tying,
        output_bias: bool,
        bits: RandomBits,
    ) -> None:
        super().__init__()
        if tying == "all" and source_vocabulary_size != target_vocabulary_size:
            raise ConfigError(
                f'model.tying = "all" shares one embedding, but the source has {source_vocabulary_size} ids and the '
                f"target {target_vocabulary_size}: build one shared vocabulary (text.shared_vocabulary = true) or set "
                'model.tying = "target"'
            )
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.start_id = target_vocabulary_size
        self.width = width
        self.bits = bits
        self.target_embedding = unset_embedding(target_vocabulary_size + 1, width)
        self.source_embedding = (
            self.target_embedding if tying == "all" else unset_embedding(source_vocabulary_size + 1, width)
        )
        self.output = Output(target_vocabulary_size, width, tied=tying != "none", bias=output_bias)

    @property
    def output_weight_VD(self) -> Tensor:
        """Scores of the next token are `hidden @ output_weight_VD.T + output_bias_V`."""
        own_VD = self.output.weight
        return self.target_embedding.weight[: self.target_vocabulary_size] if own_VD is None else own_VD

    @property
    def output_bias_V(self) -> Tensor | None:
        return self.output.bias

    @property
    def max_positions(self) -> int | None:
        """Most source tokens (`</s>` counted) and most target inputs (`<s>` counted); None where there is no limit."""
        return None

    def recompute_layers(self) -> None:
        """From now on keep one state per layer for the backward pass, which makes the rest again (Chen et al., 2016).

        What comes out stays the same to the last bit, gradients too. `ConfigError` where there are no such layers.
        """
        raise ConfigError(f"training.recompute: {type(self).__name__} has no layers that can be computed again")

    @abstractmethod
    def forward(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, trace: Trace | None = None
    ) -> Tensor:
        """Hidden states `hidden_BTD` at every target place (teacher forcing); dropout in training mode only.

        Raises `ValueError` for arguments of the wrong shape or type, `DataError` for a sentence above `max_positions`.
        """

    @abstractmethod
    def encode(self, source_BS: Tensor, source_lengths_B: Tensor, trace: Trace | None = None) -> Memory:
        """Read the sources, without dropout and without a gradient as all of search; same errors as `forward`."""

    @abstractmethod
    def start(self, memory: Memory, keep_attention: bool = False) -> DecoderState:
        """One row per sentence, before the first step."""

    @abstractmethod
    def step(self, token_R: Tensor, state: DecoderState, trace: Trace | None = None) -> tuple[Tensor, DecoderState]:
        """Feed one token per row (first `start_id`): `hidden_RD` for the next token, and the state after it."""


def check_source(source_BS: Tensor, source_lengths_B: Tensor) -> None:
    """Refuse what is not a batch of ids with its lengths, a float or bool mask in the place of lengths above all."""
    if source_BS.dim() != 2 or source_BS.dtype != torch.int64:
        raise ValueError(f"source ids must be int64 (B, S), not {source_BS.dtype} {tuple(source_BS.shape)}")
    if source_lengths_B.shape != source_BS.shape[:1] or source_lengths_B.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"source lengths must be whole numbers of shape ({source_BS.size(0)},), "
            f"not {source_lengths_B.dtype} {tuple(source_lengths_B.shape)}"
        )
    # Elsewhere than on the CPU a look at values would wait for the device.
    if source_lengths_B.device.type == "cpu" and source_lengths_B.numel():
        shortest, longest = (int(bound) for bound in source_lengths_B.aminmax())
        if shortest < 0 or longest > source_BS.size(1):
            raise ValueError(
                f"source lengths must lie between 0 and {source_BS.size(1)}, but are {shortest} to {longest}"
            )


def check_target(target_BT: Tensor, num_sentences: int) -> None:
    """Refuse what is not a batch of target ids for so many sentences."""
    if target_BT.dim() != 2 or target_BT.dtype != torch.int64 or target_BT.size(0) != num_sentences:
        raise ValueError(
            f"target ids must be int64 ({num_sentences}, T), not {target_BT.dtype} {tuple(target_BT.shape)}"
        )


def check_tokens(token_R: Tensor, num_rows: int) -> None:
    """Refuse what is not one token per row."""
    if token_R.shape != (num_rows,) or token_R.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 ({num_rows},), not {token_R.dtype} {tuple(token_R.shape)}")
