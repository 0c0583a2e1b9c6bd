"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), and its variants.

In: ids of sources and targets. Out: hidden states of the decoder; for search, a memory and a state.

Letters: B sentences, S source places, T target places, D width, N heads, H head size, L layers, R live rows,
K rows per sentence.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from malmoi.config.model import TransformerConfig
from malmoi.models.attention import CrossAttention, Mask, SelfAttention, causal_mask, length_mask
from malmoi.models.blocks import FeedForward, Residual, build_norm
from malmoi.models.dropout import Dropout, RandomBits
from malmoi.models.interface import (
    DecoderState,
    Memory,
    Seq2Seq,
    Trace,
    check_source,
    check_target,
    check_tokens,
)
from malmoi.models.positions import AttentionPositions, EmbeddingPositions
from malmoi.models.rows import Cache, RowLayout, RowState, SourceMemory
from malmoi.native.training import TrainingCode


@dataclass(frozen=True)
class PositionPlan:
    """Where a model's order of tokens comes from: makers of one module per side and of one per self-attention."""

    embedding: Callable[[], EmbeddingPositions | None]
    attention: Callable[[], AttentionPositions | None]


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each in a residual sum with a norm (figure 1, left)."""

    def __init__(self, config: TransformerConfig, plan: PositionPlan, bits: RandomBits) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config, plan, bits)
        self.self_residual = build_residual(config, bits)
        self.feed_forward = build_feed_forward(config, bits)
        self.feed_forward_residual = build_residual(config, bits)

    def forward(self, states_BSD: Tensor, mask: Mask, trace: Trace | None, name: str) -> Tensor:
        looked_BSD = self.self_attention(self.self_residual.before(states_BSD), mask, trace, f"{name}.self")
        states_BSD = self.self_residual.after(states_BSD, looked_BSD)
        moved_BSD = self.feed_forward(self.feed_forward_residual.before(states_BSD))
        return self.feed_forward_residual.after(states_BSD, moved_BSD)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory, the feed-forward network (figure 1, right)."""

    def __init__(self, config: TransformerConfig, plan: PositionPlan, bits: RandomBits) -> None:
        super().__init__()
        self.self_attention = build_self_attention(config, plan, bits)
        self.self_residual = build_residual(config, bits)
        self.cross_attention = CrossAttention(config.width, config.heads, Dropout(config.attention_dropout, bits))
        self.cross_residual = build_residual(config, bits)
        self.feed_forward = build_feed_forward(config, bits)
        self.feed_forward_residual = build_residual(config, bits)

    def forward(
        self, states_BTD: Tensor, memory_BSD: Tensor, causal: Mask, mask: Mask, trace: Trace | None, name: str
    ) -> Tensor:
        looked_BTD = self.self_attention(self.self_residual.before(states_BTD), causal, trace, f"{name}.self")
        states_BTD = self.self_residual.after(states_BTD, looked_BTD)
        asked_BTD = self.cross_residual.before(states_BTD)
        looked_BTD = self.cross_attention(asked_BTD, memory_BSD, mask, trace, f"{name}.cross")
        states_BTD = self.cross_residual.after(states_BTD, looked_BTD)
        moved_BTD = self.feed_forward(self.feed_forward_residual.before(states_BTD))
        return self.feed_forward_residual.after(states_BTD, moved_BTD)

    def step(self, states_RD: Tensor, place: "StepPlace", trace: Trace | None, cross_trace: Trace | None) -> Tensor:
        """The same for one more place of each row; the cross-attention's weights go to a trace of their own."""
        asked_RD = self.self_residual.before(states_RD)
        looked_RD = self.self_attention.step(
            asked_RD, place.cache_S2RD, place.started, place.position, trace, f"{place.name}.self"
        )
        states_RD = self.self_residual.after(states_RD, looked_RD)
        asked_BKD = place.layout.group(self.cross_residual.before(states_RD))
        looked_BKD = self.cross_attention.step(
            asked_BKD, place.memory_B2NSH, place.mask, cross_trace, f"{place.name}.cross"
        )
        states_RD = self.cross_residual.after(states_RD, place.layout.ungroup(looked_BKD))
        moved_RD = self.feed_forward(self.feed_forward_residual.before(states_RD))
        return self.feed_forward_residual.after(states_RD, moved_RD)


@dataclass(frozen=True)
class StepPlace:
    """What one decoder layer needs in one step."""

    name: str
    cache_S2RD: Tensor
    started: Mask
    position: Tensor
    layout: RowLayout
    memory_B2NSH: Tensor
    mask: Mask


def build_self_attention(config: TransformerConfig, plan: PositionPlan, bits: RandomBits) -> SelfAttention:
    return SelfAttention(config.width, config.heads, plan.attention(), Dropout(config.attention_dropout, bits))


def build_residual(config: TransformerConfig, bits: RandomBits) -> Residual:
    return Residual(build_norm(config.norm, config.width), config.norm_place, Dropout(config.dropout, bits))


def build_feed_forward(config: TransformerConfig, bits: RandomBits) -> FeedForward:
    dropout = Dropout(config.activation_dropout, bits)
    return FeedForward(config.width, config.feed_forward, config.activation, dropout)


class Stack(nn.Module):
    """Layers one after another, with a last norm where the norms stand before the sublayers."""

    def __init__(self, layers: Iterable[nn.Module], config: TransformerConfig, bits: RandomBits) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = build_norm(config.norm, config.width) if config.norm_place == "pre" else nn.Identity()
        self.bits = bits
        self.recomputes = False

    def run(self, layer: nn.Module, states: Tensor, *others: object) -> Tensor:
        """One layer. Where it is to be computed again in the backward pass, only `states` and `others` are kept, and
        dropout draws the same bits once more."""
        if not self.recomputes or not torch.is_grad_enabled():
            return layer(states, *others)
        return checkpoint(
            layer,
            states,
            *others,
            use_reentrant=False,
            # torch draws the bits elsewhere than on the CPU, and restores its own generator.
            preserve_rng_state=states.device.type != "cpu",
            context_fn=lambda: (nullcontext(), self.bits.again()),
        )


class Encoder(Stack):
    """Layers that see the whole source."""

    def __init__(self, config: TransformerConfig, plan: PositionPlan, bits: RandomBits) -> None:
        super().__init__((EncoderLayer(config, plan, bits) for _ in range(config.encoder_layers)), config, bits)

    def forward(self, states_BSD: Tensor, mask: Mask, trace: Trace | None) -> Tensor:
        for index, layer in enumerate(self.layers):
            states_BSD = self.run(layer, states_BSD, mask, trace, f"encoder.{index}")
        return self.norm(states_BSD)


class Decoder(Stack):
    """Layers that see the memory and the past of the target."""

    def __init__(self, config: TransformerConfig, plan: PositionPlan, bits: RandomBits) -> None:
        super().__init__((DecoderLayer(config, plan, bits) for _ in range(config.decoder_layers)), config, bits)

    @property
    def stack(self) -> list[DecoderLayer]:
        """The layers with their type, which a `ModuleList` does not tell."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def forward(self, states_BTD: Tensor, memory_BSD: Tensor, causal: Mask, mask: Mask, trace: Trace | None) -> Tensor:
        for index, layer in enumerate(self.layers):
            states_BTD = self.run(layer, states_BTD, memory_BSD, causal, mask, trace, f"decoder.{index}")
        return self.norm(states_BTD)


class TransformerState(RowState[SourceMemory, Cache]):
    """Rows of a search; their memory holds each layer's keys and values of the cross-attention, `(B, 2, N, S, H)`."""


class Transformer(Seq2Seq):
    """Encoder and decoder around attention alone."""

    def __init__(
        self,
        config: TransformerConfig,
        plan: PositionPlan,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        bits: RandomBits,
    ) -> None:
        super().__init__(
            source_vocabulary_size, target_vocabulary_size, config.width, config.tying, config.output_bias, bits
        )
        self.config = config
        self.source_positions = plan.embedding()
        self.target_positions = plan.embedding()
        self.embedding_dropout = Dropout(config.dropout, bits)
        self.encoder = Encoder(config, plan, bits)
        self.decoder = Decoder(config, plan, bits)

    @property
    def max_positions(self) -> int | None:
        return None if self.source_positions is None else self.source_positions.max_positions

    def recompute_layers(self) -> None:
        self.encoder.recomputes = self.decoder.recomputes = True

    def forward(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, trace: Trace | None = None
    ) -> Tensor:
        if trace is not None and not self.bits.is_paused:
            with self.bits.paused():
                return self(source_BS, source_lengths_B, target_BT, trace)
        check_target(target_BT, source_BS.size(0))
        memory_BSD, mask = self.read(source_BS, source_lengths_B, trace)
        states_BTD = self.embed(self.target_embedding, self.target_positions, target_BT)
        causal = causal_mask(target_BT.size(1), states_BTD.dtype, states_BTD.device)
        return self.decoder(states_BTD, memory_BSD, causal, mask, trace)

    def read(self, source_BS: Tensor, source_lengths_B: Tensor, trace: Trace | None) -> tuple[Tensor, Mask]:
        """The encoder's output and which of its places are real."""
        check_source(source_BS, source_lengths_B)
        states_BSD = self.embed(self.source_embedding, self.source_positions, source_BS)
        mask = length_mask(source_lengths_B, source_BS.size(1), states_BSD.dtype)
        return self.encoder(states_BSD, mask, trace), mask

    def embed(self, embedding: nn.Embedding, positions: EmbeddingPositions | None, ids_BT: Tensor) -> Tensor:
        """Embeddings times sqrt(D) plus positions (sections 3.4 and 3.5), with dropout on the sum (5.4)."""
        # Before the lookup of ids, so that a sentence that is too long costs nothing.
        table_TD = None if positions is None else positions.table(ids_BT.size(1), embedding.weight)
        embedded_BTD = embedding(ids_BT)
        return self.embedding_dropout(scale_and_add(embedded_BTD, table_TD))

    @torch.no_grad()
    def encode(self, source_BS: Tensor, source_lengths_B: Tensor, trace: Trace | None = None) -> SourceMemory:
        with self.bits.paused():
            memory_BSD, mask = self.read(source_BS, source_lengths_B, trace)
        layers = tuple(layer.cross_attention.project(memory_BSD) for layer in self.decoder.stack)
        return SourceMemory(layers, (), source_lengths_B, mask)

    def start(self, memory: Memory, keep_attention: bool = False) -> TransformerState:
        assert isinstance(memory, SourceMemory)
        cache = Cache.empty(len(self.decoder.layers), memory.num_sentences, self.width, memory.per_place[0])
        return TransformerState.start(memory, cache, keep_attention)

    @torch.no_grad()
    def step(self, token_R: Tensor, state: DecoderState, trace: Trace | None = None) -> tuple[Tensor, TransformerState]:
        assert isinstance(state, TransformerState)
        check_tokens(token_R, state.num_rows)
        cache = state.past.extend()
        last_cross = Trace() if state.keep_attention else None
        cross_trace = Trace() if trace is not None else None
        with self.bits.paused():
            states_RD, position, started = self.embed_step(token_R, cache)
            for index, layer in enumerate(self.decoder.stack):
                is_last = index + 1 == len(self.decoder.layers)
                place = StepPlace(
                    f"decoder.{index}",
                    cache.layer(index),
                    started,
                    position,
                    state.layout,
                    state.memory.per_place[index],
                    state.memory.mask,
                )
                asked = last_cross if is_last and trace is None else cross_trace
                states_RD = layer.step(states_RD, place, trace, asked)
        attention_RS = None
        for recorded in (cross_trace, last_cross):
            for name, weights_BNKS in ({} if recorded is None else recorded.weights).items():
                weights_RNS = state.layout.ungroup(weights_BNKS.transpose(1, 2))
                attention_RS = weights_RNS.mean(dim=1)
                if trace is not None:
                    trace.add(name, weights_RNS[:, :, None])
        after = replace(state, past=cache, attention_RS=attention_RS if state.keep_attention else None)
        return self.decoder.norm(states_RD), after

    def embed_step(self, token_R: Tensor, cache: Cache) -> tuple[Tensor, Tensor, Mask]:
        """Embedded tokens at the last place of the cache; positions of the rows; what of the cache is theirs."""
        last = cache.length - 1
        embedded_RD = self.target_embedding(token_R)
        started = Mask()
        if cache.start_R is None:
            position = torch.full((1,), last, dtype=torch.int64, device=token_R.device)
        else:
            position = (last - cache.start_R)[:, None]
            place_S = torch.arange(cache.length, device=token_R.device)
            added_RS = torch.zeros(token_R.numel(), cache.length, dtype=embedded_RD.dtype, device=token_R.device)
            added_RS.masked_fill_(place_S < cache.start_R[:, None], -math.inf)
            started = Mask(added_RS[:, None, None])
        table_RD = None
        if self.target_positions is not None:
            num_positions = last + 1 if cache.start_R is None else int(position.max()) + 1
            table_RD = self.target_positions.table(num_positions, embedded_RD)[position.flatten()]
        return self.embedding_dropout(scale_and_add(embedded_RD, table_RD)), position, started


def scale_and_add(embedded: Tensor, table: Tensor | None) -> Tensor:
    """`embedded * sqrt(D) + table`."""
    scale = math.sqrt(embedded.size(-1))
    return embedded * scale if table is None else torch.add(table, embedded, alpha=scale)


def use_native_code(network: nn.Module, code: TrainingCode) -> None:
    """Let attention over short sentences, and residual sums with their norms, go through native code."""
    for module in network.modules():
        if isinstance(module, SelfAttention | CrossAttention | Residual):
            module.maybe_code = code
