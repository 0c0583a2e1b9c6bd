"""Seq2Seq and Seq2Seq with attention: the recurrent systems that came before the Transformer.

In: ids of sources and targets. Out: hidden states of the decoder in the width of the embeddings; for search, a memory
and a state.

The encoder's last states are handed over once as the decoder's first ones (Sutskever et al., 2014), through
s_0 = tanh(W h) (Cho et al., 2014, appendix A.2). Without attention this is all that the decoder knows of the source.
Stacks of one depth are joined layer by layer, as Sutskever et al. have it. They do not say what a deeper encoder hands
over: here it is its top layers, for only what reaches the top has been through all of it. Decoder layers above the
height of the encoder begin from its top layer, as all do in Sockeye (Hieber et al., 2017).
Embeddings are scaled by the square root of their width, as in the Transformer.

Letters: B sentences, S source places, T target places, X embedding size, D = X width of hidden states, H state size,
C slots of a state, L layers, A annotation size, R live rows, K rows per sentence.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import assert_never

import torch
from torch import Tensor, nn

from malmoi.config.model import RnnConfig
from malmoi.models.attention import StackedLinear, length_mask
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
from malmoi.models.loops import may_run, run_attentive
from malmoi.models.recurrent import (
    AttentiveCell,
    RecurrentEncoder,
    build_layer,
    masked_softmax,
    run_stack,
)
from malmoi.models.rows import RowLayout, RowState, SourceMemory


class RnnMemory(SourceMemory):
    """The decoder's first states, and with attention what it looks at."""

    @property
    def first_BLCH(self) -> Tensor:
        return self.per_sentence[0]

    @property
    def values_BSA(self) -> Tensor:
        return self.per_place[0]

    @property
    def keys_BSA(self) -> Tensor:
        """The values themselves, where no others are made of them."""
        return self.per_place[-1]


@dataclass(frozen=True)
class LastStates:
    """States of all layers after the last token, all that a recurrent row keeps of its past."""

    states_RLCH: Tensor

    def select(self, rows_R: Tensor) -> "LastStates":
        return LastStates(self.states_RLCH[rows_R])

    def append(self, other: "LastStates") -> "LastStates":
        return LastStates(torch.cat([self.states_RLCH, other.states_RLCH]))


class RnnState(RowState[RnnMemory, LastStates]):
    """Rows of a search."""


@dataclass(frozen=True)
class StepResult:
    """What one step of a decoder gives; weights are those of the cross-attention, `(B, K, S)`, if it has one."""

    hidden_RD: Tensor
    states_RLCH: Tensor
    weights_BKS: Tensor | None


class RecurrentDecoder(nn.Module, ABC):
    """The first states of a decoder, and the layers that run over all places at once."""

    def __init__(self, config: RnnConfig, sizes_in: list[int], bits: RandomBits) -> None:
        super().__init__()
        num_slots = 2 if config.cell == "lstm" else 1
        self.bridge = nn.ModuleList(
            StackedLinear(config.hidden, config.hidden, num_slots) for _ in range(config.decoder_layers)
        )
        self.layers = nn.ModuleList(build_layer(config.cell, size_in, config.hidden) for size_in in sizes_in)
        self.dropout = Dropout(config.dropout, bits)

    @property
    def stack(self) -> list[nn.GRU | nn.LSTM]:
        """The layers with their type, which a `ModuleList` does not tell."""
        return [layer for layer in self.layers if isinstance(layer, nn.GRU | nn.LSTM)]

    def first_states(self, last_BLCA: Tensor) -> Tensor:
        """s_0 = tanh(W h) for each slot, from the encoder's top layers, as many as the decoder has.

        A decoder layer above the encoder's height begins from the top one too.
        """
        first: list[Tensor] = []
        top_BLCA = last_BLCA[:, -len(self.bridge) :]
        for index, bridge in enumerate(self.bridge):
            last_BCA = top_BLCA[:, min(index, top_BLCA.size(1) - 1)]
            assert isinstance(bridge, StackedLinear)
            slots = zip(
                last_BCA.unbind(1),
                bridge.weight.chunk(bridge.num_parts),
                bridge.bias.chunk(bridge.num_parts),
                strict=True,
            )
            states = [torch.tanh(nn.functional.linear(last_BA, weight, bias)) for last_BA, weight, bias in slots]
            first.append(torch.stack(states, dim=1))
        return torch.stack(first, dim=1)

    def look_up(self, values_BSA: Tensor) -> tuple[Tensor, ...]:
        """What the attention looks at, last what queries are compared with: here the values themselves."""
        return (values_BSA,)

    @abstractmethod
    def forward(self, embedded_BTX: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor | None]:
        """Hidden states at every place, `(B, T, D)`, and the weights of the attention, `(B, T, S)`."""

    @abstractmethod
    def step(self, embedded_RX: Tensor, states_RLCH: Tensor, memory: RnnMemory, layout: RowLayout) -> StepResult:
        """The same for one more place of each row."""


class PlainDecoder(RecurrentDecoder):
    """Without attention (Sutskever et al., 2014): the source is known from the first states alone."""

    def __init__(self, config: RnnConfig, bits: RandomBits) -> None:
        super().__init__(config, [config.width, *[config.hidden] * (config.decoder_layers - 1)], bits)
        self.readout = nn.Linear(config.hidden, config.width)

    def forward(self, embedded_BTX: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor | None]:
        states_BTH, _ = run_stack(self.stack, embedded_BTX, memory.first_BLCH, self.dropout)
        return self.readout(self.dropout(states_BTH)), None

    def step(self, embedded_RX: Tensor, states_RLCH: Tensor, memory: RnnMemory, layout: RowLayout) -> StepResult:
        states_R1H, after_RLCH = run_stack(self.stack, embedded_RX[:, None], states_RLCH, self.dropout)
        return StepResult(self.readout(self.dropout(states_R1H[:, 0])), after_RLCH, None)


class DotDecoder(RecurrentDecoder):
    """Global dot attention (Luong et al., 2015): score h . h_j (equation 8), h~ = tanh(W [c; h]) (equation 5).

    h~ is not fed back, so that all places of a known target are computed at once.
    """

    def __init__(self, config: RnnConfig, bits: RandomBits) -> None:
        super().__init__(config, [config.width, *[config.hidden] * (config.decoder_layers - 1)], bits)
        self.readout = nn.Linear(2 * config.hidden, config.width)

    def forward(self, embedded_BTX: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor | None]:
        states_BTH, _ = run_stack(self.stack, embedded_BTX, memory.first_BLCH, self.dropout)
        context_BTA, weights_BTS = self.look(states_BTH, memory)
        return self.read_out(states_BTH, context_BTA), weights_BTS

    def step(self, embedded_RX: Tensor, states_RLCH: Tensor, memory: RnnMemory, layout: RowLayout) -> StepResult:
        states_R1H, after_RLCH = run_stack(self.stack, embedded_RX[:, None], states_RLCH, self.dropout)
        context_BKA, weights_BKS = self.look(layout.group(states_R1H[:, 0]), memory)
        hidden_RD = self.read_out(states_R1H[:, 0], layout.ungroup(context_BKA))
        return StepResult(hidden_RD, after_RLCH, weights_BKS)

    def look(self, states_BTH: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor]:
        weights_BTS = masked_softmax(states_BTH @ memory.keys_BSA.transpose(1, 2), memory.mask)
        return weights_BTS @ memory.values_BSA, weights_BTS

    def read_out(self, states_BTH: Tensor, context_BTA: Tensor) -> Tensor:
        joined = self.dropout(torch.cat([context_BTA, states_BTH], dim=-1))
        return torch.tanh(self.readout(joined))


class AdditiveDecoder(RecurrentDecoder):
    """Additive attention (Bahdanau et al., 2015) in the lowest layer; the layers above run over all places at once.

    The readout is the appendix's maxout of [s, E y, c], with the new state s_i as in equation 4.
    """

    def __init__(self, config: RnnConfig, bits: RandomBits) -> None:
        super().__init__(config, [config.hidden] * (config.decoder_layers - 1), bits)
        self.cell = AttentiveCell(config.cell, config.width, config.hidden)
        self.readout = StackedLinear(2 * config.hidden + config.width, config.width, 2)

    def look_up(self, values_BSA: Tensor) -> tuple[Tensor, ...]:
        return values_BSA, self.cell.key(values_BSA)

    def forward(self, embedded_BTX: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor | None]:
        # Only what depends on the state before is inside the loop.
        from_token_TBG = self.cell.token(embedded_BTX.transpose(0, 1))
        run = self.run_by_hand if may_run(from_token_TBG) else self.run_plainly
        states_TBH, contexts_TBA, weights_TBS = run(from_token_TBG, memory)
        states_BTH = states_TBH.transpose(0, 1)
        if self.stack:
            above_BLCH = memory.first_BLCH[:, 1:]
            states_BTH, _ = run_stack(self.stack, self.dropout(states_BTH), above_BLCH, self.dropout)
        hidden_BTD = self.read_out(states_BTH, embedded_BTX, contexts_TBA.transpose(0, 1))
        return hidden_BTD, weights_TBS.transpose(0, 1)

    def run_by_hand(self, from_token_TBG: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor, Tensor]:
        """States `(T, B, H)`, contexts `(T, B, A)` and weights `(T, B, S)`, with a gradient that is written by hand."""
        added, kept = memory.mask.added, memory.mask.kept
        return run_attentive(
            self.cell.cell,
            from_token_TBG,
            memory.first_BLCH[:, 0].transpose(0, 1),
            memory.keys_BSA,
            memory.values_BSA,
            *self.cell.joined_state(),
            self.cell.context.weight,
            self.cell.energy.weight[0],
            None if added is None else added[:, 0, 0],
            None if kept is None else kept[:, 0, 0],
        )

    def run_plainly(self, from_token_TBG: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor, Tensor]:
        """The same as the formulas read."""
        joined = self.cell.joined_state()
        state_BCH = memory.first_BLCH[:, 0]
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        for from_token_BG in from_token_TBG.unbind(0):
            query_BA, from_state_BG = self.split(nn.functional.linear(state_BCH[:, 0], *joined))
            context_B1A, weights_B1S = self.cell.look(
                query_BA[:, None], memory.keys_BSA, memory.values_BSA, memory.mask
            )
            context_BA = context_B1A[:, 0]
            from_input_BG = torch.addmm(from_token_BG, context_BA, self.cell.context.weight.t())
            state_BCH = self.cell.move(from_input_BG, from_state_BG, state_BCH)
            states.append(state_BCH[:, 0])
            contexts.append(context_BA)
            weights.append(weights_B1S[:, 0])
        return torch.stack(states), torch.stack(contexts), torch.stack(weights)

    def step(self, embedded_RX: Tensor, states_RLCH: Tensor, memory: RnnMemory, layout: RowLayout) -> StepResult:
        query_RA, from_state_RG = self.split(nn.functional.linear(states_RLCH[:, 0, 0], *self.cell.joined_state()))
        query_BKA = layout.group(query_RA)
        context_BKA, weights_BKS = self.cell.look(query_BKA, memory.keys_BSA, memory.values_BSA, memory.mask)
        context_RA = layout.ungroup(context_BKA)
        from_input_RG = torch.addmm(self.cell.token(embedded_RX), context_RA, self.cell.context.weight.t())
        after_RLCH = self.cell.move(from_input_RG, from_state_RG, states_RLCH[:, 0])[:, None]
        states_RH = after_RLCH[:, 0, 0]
        if self.stack:
            below_R1H = self.dropout(states_RH[:, None])
            states_R1H, above_RLCH = run_stack(self.stack, below_R1H, states_RLCH[:, 1:], self.dropout)
            states_RH = states_R1H[:, 0]
            after_RLCH = torch.cat([after_RLCH, above_RLCH], dim=1)
        return StepResult(self.read_out(states_RH, embedded_RX, context_RA), after_RLCH, weights_BKS)

    def split(self, from_state: Tensor) -> tuple[Tensor, Tensor]:
        """The query, and the state's half of the gates."""
        num_gates = from_state.size(-1) - self.cell.size
        return from_state[:, num_gates:], from_state[:, :num_gates]

    def read_out(self, states: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        joined = self.dropout(torch.cat([states, embedded, context], dim=-1))
        first, second = self.readout(joined).chunk(2, dim=-1)
        return torch.maximum(first, second)


def build_decoder(config: RnnConfig, bits: RandomBits) -> RecurrentDecoder:
    match config.attention:
        case "none":
            return PlainDecoder(config, bits)
        case "additive":
            return AdditiveDecoder(config, bits)
        case "dot":
            return DotDecoder(config, bits)
        case _:
            assert_never(config.attention)


class Rnn(Seq2Seq):
    """A recurrent encoder and decoder, with or without attention."""

    def __init__(
        self, config: RnnConfig, source_vocabulary_size: int, target_vocabulary_size: int, bits: RandomBits
    ) -> None:
        super().__init__(
            source_vocabulary_size, target_vocabulary_size, config.width, config.tying, config.output_bias, bits
        )
        self.config = config
        self.embedding_dropout = Dropout(config.dropout, bits)
        self.encoder = RecurrentEncoder(config, bits)
        self.decoder = build_decoder(config, bits)

    def forward(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, trace: Trace | None = None
    ) -> Tensor:
        if trace is not None and not self.bits.is_paused:
            with self.bits.paused():
                return self(source_BS, source_lengths_B, target_BT, trace)
        check_target(target_BT, source_BS.size(0))
        memory = self.read(source_BS, source_lengths_B)
        hidden_BTD, weights_BTS = self.decoder(self.embed(self.target_embedding, target_BT), memory)
        if trace is not None and weights_BTS is not None:
            trace.add("decoder.cross", weights_BTS[:, None])
        return hidden_BTD

    def embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return self.embedding_dropout(embedding(ids) * math.sqrt(self.width))

    def read(self, source_BS: Tensor, source_lengths_B: Tensor) -> RnnMemory:
        check_source(source_BS, source_lengths_B)
        embedded_BSX = self.embed(self.source_embedding, source_BS)
        mask = length_mask(source_lengths_B, source_BS.size(1), embedded_BSX.dtype)
        values_BSA, last_BLCA = self.encoder(embedded_BSX, source_lengths_B, mask)
        first_BLCH = self.decoder.first_states(last_BLCA)
        return RnnMemory(self.decoder.look_up(values_BSA), (first_BLCH,), source_lengths_B, mask)

    @torch.no_grad()
    def encode(self, source_BS: Tensor, source_lengths_B: Tensor, trace: Trace | None = None) -> RnnMemory:
        with self.bits.paused():
            return self.read(source_BS, source_lengths_B)

    def start(self, memory: Memory, keep_attention: bool = False) -> RnnState:
        assert isinstance(memory, RnnMemory)
        return RnnState.start(memory, LastStates(memory.first_BLCH), keep_attention)

    @torch.no_grad()
    def step(self, token_R: Tensor, state: DecoderState, trace: Trace | None = None) -> tuple[Tensor, RnnState]:
        assert isinstance(state, RnnState)
        check_tokens(token_R, state.num_rows)
        with self.bits.paused():
            embedded_RX = self.embed(self.target_embedding, token_R)
            result = self.decoder.step(embedded_RX, state.past.states_RLCH, state.memory, state.layout)
        weights_RS = None if result.weights_BKS is None else state.layout.ungroup(result.weights_BKS)
        if trace is not None and weights_RS is not None:
            trace.add("decoder.cross", weights_RS[:, None, None])
        attention_RS = weights_RS if state.keep_attention else None
        return result.hidden_RD, replace(state, past=LastStates(result.states_RLCH), attention_RS=attention_RS)
