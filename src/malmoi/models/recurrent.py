"""Recurrent layers: GRU and LSTM run over whole sequences, the encoder, and the cell of Bahdanau's decoder.

In: embedded tokens and states. Out: states at every place, and last states.

A layer's state is one tensor with C slots: the hidden state h, and for an LSTM the memory cell c after it.

Letters: B batch, S source places, T target places, X input size, H state size, C slots, L layers, A annotation size,
G gates times H, R live rows, K rows per sentence, P packed rows of all places.
"""

from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from malmoi.config.model import Cell, RnnConfig
from malmoi.models.attention import Mask, StackedLinear
from malmoi.models.blocks import RecurrentLinear
from malmoi.models.dropout import Dropout, RandomBits
from malmoi.models.loops import may_run, run_rows


def build_layer(cell: Cell, size_in: int, size: int, bidirectional: bool = False) -> nn.GRU | nn.LSTM:
    """One layer, batch first. The GRU is torch's, which resets after the product: n = tanh(W x + r * (U h))."""
    match cell:
        case "gru":
            return nn.GRU(size_in, size, batch_first=True, bidirectional=bidirectional)
        case "lstm":
            return nn.LSTM(size_in, size, batch_first=True, bidirectional=bidirectional)
        case _:
            assert_never(cell)


def run_layer(layer: nn.GRU | nn.LSTM, inputs_BTX: Tensor, state_BCH: Tensor) -> tuple[Tensor, Tensor]:
    """States h at every place, `(B, T, H)`, and the state after the last one, `(B, C, H)`."""
    if may_run(inputs_BTX):
        batch, length, _ = inputs_BTX.shape
        rows_PX, first_CBH = inputs_BTX.transpose(0, 1).flatten(0, 1), state_BCH.transpose(0, 1)
        states_PH, last_CBH = run_direction(layer, rows_PX, first_CBH, [batch] * length, back=False)
        return states_PH.view(length, batch, -1).transpose(0, 1), last_CBH.transpose(0, 1)
    slots = [slot_BH[None].contiguous() for slot_BH in state_BCH.unbind(1)]
    if isinstance(layer, nn.LSTM):
        states_BTH, after = layer(inputs_BTX, (slots[0], slots[1]))
        return states_BTH, torch.cat(after).transpose(0, 1)
    states_BTH, after_1BH = layer(inputs_BTX, slots[0])
    return states_BTH, after_1BH.transpose(0, 1)


def run_direction(
    layer: nn.GRU | nn.LSTM, rows_PX: Tensor, first_CBH: Tensor, sizes: list[int], *, back: bool
) -> tuple[Tensor, Tensor]:
    """One direction of a layer by `loops.run_rows`: the input's product at all places first."""
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
    weight_ih, bias_ih, weight_hh, bias_hh = (getattr(layer, name + "_reverse" * back) for name in names)
    cell: Cell = "lstm" if isinstance(layer, nn.LSTM) else "gru"
    from_input_PG = nn.functional.linear(rows_PX, weight_ih, bias_ih)
    return run_rows(cell, from_input_PG, weight_hh, bias_hh, first_CBH, sizes, back=back)


def read_layer(layer: nn.GRU | nn.LSTM, states: Tensor | PackedSequence) -> tuple[Tensor | PackedSequence, Tensor]:
    """A layer from zeros over sequences, in both directions where it has them: what it says, in the form of what came
    in, and its last states `(B, C, A)`, directions side by side."""
    data = states.data if isinstance(states, PackedSequence) else states
    if not may_run(data):
        said, after = layer(states)
        slots = after if isinstance(after, tuple) else (after,)
        return said, torch.stack([slot.transpose(0, 1).flatten(1) for slot in slots], dim=1)
    if isinstance(states, PackedSequence):
        sizes: list[int] = states.batch_sizes.tolist()
    else:
        data, sizes = states.transpose(0, 1).flatten(0, 1), [states.size(0)] * states.size(1)
    first_CBH = data.new_zeros(2 if isinstance(layer, nn.LSTM) else 1, sizes[0], layer.hidden_size)
    ways = (False, True) if layer.bidirectional else (False,)
    runs = [run_direction(layer, data, first_CBH, sizes, back=back) for back in ways]
    rows_PA = torch.cat([states_PH for states_PH, _ in runs], dim=1)
    last_BCA = torch.cat([last_CBH for _, last_CBH in runs], dim=2).transpose(0, 1)
    if isinstance(states, PackedSequence):
        packed = PackedSequence(rows_PA, states.batch_sizes, states.sorted_indices, states.unsorted_indices)
        return packed, last_BCA if states.unsorted_indices is None else last_BCA[states.unsorted_indices]
    return rows_PA.view(states.size(1), states.size(0), -1).transpose(0, 1), last_BCA


def run_stack(
    layers: list[nn.GRU | nn.LSTM], inputs_BTX: Tensor, states_BLCH: Tensor, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """Layers on top of each other, with dropout between them."""
    after: list[Tensor] = []
    for index, layer in enumerate(layers):
        inputs_BTX = dropout(inputs_BTX) if index else inputs_BTX
        inputs_BTX, after_BCH = run_layer(layer, inputs_BTX, states_BLCH[:, index])
        after.append(after_BCH)
    return inputs_BTX, torch.stack(after, dim=1)


class RecurrentEncoder(nn.Module):
    """Reads the source in one direction or in both. Padding is left out by packing, so that it never matters."""

    def __init__(self, config: RnnConfig, bits: RandomBits) -> None:
        super().__init__()
        size = config.hidden // 2 if config.bidirectional else config.hidden
        sizes_in = [config.width, *[config.hidden] * (config.encoder_layers - 1)]
        self.layers = nn.ModuleList(
            build_layer(config.cell, size_in, size, config.bidirectional) for size_in in sizes_in
        )
        self.dropout = Dropout(config.dropout, bits)

    def forward(self, embedded_BSX: Tensor, lengths_B: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Annotations `(B, S, A)`, and the last states of each layer `(B, L, C, A)`, both directions side by side.

        The last state of the backward direction is that at the first place. A sentence without a token gives zeros.
        """
        is_padded = mask.added is not None
        states: Tensor | PackedSequence = embedded_BSX
        if is_padded:
            # Packing refuses length 0; what it reads there is multiplied by 0 below.
            lengths = lengths_B.clamp(min=1).cpu()
            states = pack_padded_sequence(embedded_BSX, lengths, batch_first=True, enforce_sorted=False)
        last: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, nn.GRU | nn.LSTM)
            states, last_BCA = read_layer(layer, self.drop(states) if index else states)
            last.append(last_BCA)
        last_BLCA = torch.stack(last, dim=1)
        if isinstance(states, PackedSequence):
            states, _ = pad_packed_sequence(states, batch_first=True, total_length=embedded_BSX.size(1))
        if mask.kept is not None:
            states, last_BLCA = states * mask.kept.view(-1, 1, 1), last_BLCA * mask.kept
        return states, last_BLCA

    def drop(self, states: Tensor | PackedSequence) -> Tensor | PackedSequence:
        if isinstance(states, Tensor):
            return self.dropout(states)
        return PackedSequence(
            self.dropout(states.data), states.batch_sizes, states.sorted_indices, states.unsorted_indices
        )


class AttentiveCell(nn.Module):
    """One recurrent cell that looks at the source before it moves (Bahdanau et al., 2015, appendix A.1.2 and A.2.2).

    e_j = v tanh(W s + U h_j), c = sum of softmax(e)_j h_j, s' = cell([E y, c], s).
    """

    def __init__(self, cell: Cell, size_in: int, size: int) -> None:
        super().__init__()
        num_gates = 4 if cell == "lstm" else 3
        self.size = size
        self.cell: Cell = cell
        self.token = StackedLinear(size_in, size, num_gates)
        self.context = StackedLinear(size, size, num_gates, bias=False)
        self.state = RecurrentLinear(size, size, num_gates)
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size)
        self.energy = nn.Linear(size, 1, bias=False)

    def joined_state(self) -> tuple[Tensor, Tensor]:
        """Weights of both products that the state enters, so that each step makes one of them."""
        weight = torch.cat([self.state.weight, self.query.weight])
        return weight, torch.cat([self.state.bias, self.state.bias.new_zeros(self.size)])

    def look(self, query_BKA: Tensor, keys_BSA: Tensor, values_BSA: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Contexts `(B, K, A)` and weights `(B, K, S)`."""
        energy_BKS = self.energy(torch.tanh(query_BKA[:, :, None] + keys_BSA[:, None])).squeeze(-1)
        weights_BKS = masked_softmax(energy_BKS, mask)
        return weights_BKS @ values_BSA, weights_BKS

    def move(self, from_input_RG: Tensor, from_state_RG: Tensor, state_RCH: Tensor) -> Tensor:
        """The next state, `(R, C, H)`, from the two halves of the gates."""
        match self.cell:
            case "gru":
                size = 2 * self.size
                reset, update = torch.sigmoid(from_input_RG[:, :size] + from_state_RG[:, :size]).chunk(2, dim=-1)
                new_RH = torch.tanh(torch.addcmul(from_input_RG[:, size:], reset, from_state_RG[:, size:]))
                return torch.lerp(new_RH, state_RCH[:, 0], update)[:, None]
            case "lstm":
                enter, forget, new, leave = (from_input_RG + from_state_RG).chunk(4, dim=-1)
                cell_RH = torch.sigmoid(forget) * state_RCH[:, 1] + torch.sigmoid(enter) * torch.tanh(new)
                return torch.stack([torch.sigmoid(leave) * torch.tanh(cell_RH), cell_RH], dim=1)
            case _:
                assert_never(self.cell)


def masked_softmax(scores_BTS: Tensor, mask: Mask) -> Tensor:
    """softmax(e + M) with 0 everywhere for a sentence without a real token."""
    if mask.added is not None:
        scores_BTS = scores_BTS + mask.added.squeeze(1)
    weights_BTS = scores_BTS.softmax(dim=-1)
    return weights_BTS if mask.kept is None else weights_BTS * mask.kept.squeeze(1)
