"""Seq2Seq with and without attention in NumPy, float64, one sentence and one step at a time.

Written from Cho et al. (2014) for the GRU (with the reset after the product, as cuDNN has it), Hochreiter and
Schmidhuber (1997) with Gers et al. (2000) for the LSTM, Bahdanau et al. (2015) for additive attention and Luong et al.
(2015) for dot attention.

Weights come by the names under which models are stored; matrices are stored as (out, in).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
State = tuple[Floats, ...]


def sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: Floats) -> Floats:
    power = np.exp(x - x.max())
    return power / power.sum()


def gru(from_input: Floats, from_state: Floats, state: State) -> State:
    """r and z from both halves, n = tanh(input + r * state's half), h' = (1 - z) n + z h."""
    input_r, input_z, input_n = np.split(from_input, 3)
    state_r, state_z, state_n = np.split(from_state, 3)
    r, z = sigmoid(input_r + state_r), sigmoid(input_z + state_z)
    n = np.tanh(input_n + r * state_n)
    return ((1.0 - z) * n + z * state[0],)


def lstm(from_input: Floats, from_state: Floats, state: State) -> State:
    """c' = f c + i g, h' = o tanh(c'); gates in the order i, f, g, o."""
    i, f, g, o = np.split(from_input + from_state, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@dataclass
class ReferenceRnn:
    """Encoder and decoder of one model."""

    weights: Mapping[str, Floats]
    cell: str
    attention: str
    bidirectional: bool
    encoder_layers: int
    decoder_layers: int

    def hidden(self, source_ids: list[int], target_ids: list[int]) -> tuple[Floats, Floats | None]:
        """Hidden states at every target place, (T, D), and the attention, (T, S)."""
        annotations, last = self.encode(source_ids)
        states = [self.first_state(layer, last) for layer in range(self.decoder_layers)]
        rows: list[Floats] = []
        attention: list[Floats] = []
        for index in target_ids:
            token = self.embed("target", index)
            row, weights, states = self.decode(token, states, annotations)
            rows.append(row)
            if weights is not None:
                attention.append(weights)
        return np.stack(rows), np.stack(attention) if attention else None

    def embed(self, side: str, index: int) -> Floats:
        row = self.weights[f"{side}_embedding.weight"][index]
        return row * math.sqrt(len(row))

    def step(self, name: str, suffix: str, token: Floats, state: State) -> State:
        weights = self.weights
        from_input = weights[f"{name}.weight_ih_l0{suffix}"] @ token + weights[f"{name}.bias_ih_l0{suffix}"]
        from_state = weights[f"{name}.weight_hh_l0{suffix}"] @ state[0] + weights[f"{name}.bias_hh_l0{suffix}"]
        return (gru if self.cell == "gru" else lstm)(from_input, from_state, state)

    def run(self, name: str, suffix: str, inputs: list[Floats]) -> tuple[list[Floats], State]:
        size = self.weights[f"{name}.weight_hh_l0"].shape[1]
        state: State = tuple(np.zeros(size) for _ in range(1 if self.cell == "gru" else 2))
        outputs: list[Floats] = []
        for one in inputs:
            state = self.step(name, suffix, one, state)
            outputs.append(state[0])
        return outputs, state

    def encode(self, source_ids: list[int]) -> tuple[Floats, list[State]]:
        inputs = [self.embed("source", index) for index in source_ids]
        last: list[State] = []
        for layer in range(self.encoder_layers):
            name = f"encoder.layers.{layer}"
            outputs, state = self.run(name, "", inputs)
            if self.bidirectional:
                backward, backward_state = self.run(name, "_reverse", inputs[::-1])
                outputs = [np.concatenate(pair) for pair in zip(outputs, backward[::-1], strict=True)]
                state = tuple(np.concatenate(pair) for pair in zip(state, backward_state, strict=True))
            inputs = outputs
            last.append(state)
        return np.stack(inputs), last

    def first_state(self, layer: int, last: list[State]) -> State:
        """From the encoder layer as far above the lowest one that is handed over; a deeper encoder keeps its lowest."""
        lowest = max(self.encoder_layers - self.decoder_layers, 0)
        state = last[min(lowest + layer, self.encoder_layers - 1)]
        name = f"decoder.bridge.{layer}"
        parts = zip(
            np.split(self.weights[f"{name}.weight"], len(state)),
            np.split(self.weights[f"{name}.bias"], len(state)),
            state,
            strict=True,
        )
        return tuple(np.tanh(weight @ slot + bias) for weight, bias, slot in parts)

    def decode(
        self, token: Floats, states: list[State], annotations: Floats
    ) -> tuple[Floats, Floats | None, list[State]]:
        """Hidden state for the next token, attention weights, and the states of the layers."""
        if self.attention == "additive":
            return self.decode_additive(token, states, annotations)
        below = token
        after: list[State] = []
        for layer, state in enumerate(states):
            after.append(self.step(f"decoder.layers.{layer}", "", below, state))
            below = after[-1][0]
        if self.attention == "none":
            return self.linear("decoder.readout", below), None, after
        weights = softmax(np.array([below @ annotation for annotation in annotations]))
        context = weights @ annotations
        return np.tanh(self.linear("decoder.readout", np.concatenate([context, below]))), weights, after

    def decode_additive(
        self, token: Floats, states: list[State], annotations: Floats
    ) -> tuple[Floats, Floats | None, list[State]]:
        w = self.weights
        before = states[0]
        query = w["decoder.cell.query.weight"] @ before[0]
        energies = [
            w["decoder.cell.energy.weight"][0] @ np.tanh(query + self.linear("decoder.cell.key", annotation))
            for annotation in annotations
        ]
        weights = softmax(np.array(energies))
        context = weights @ annotations
        from_input = self.linear("decoder.cell.token", token) + w["decoder.cell.context.weight"] @ context
        from_state = self.linear("decoder.cell.state", before[0])
        after = [(gru if self.cell == "gru" else lstm)(from_input, from_state, before)]
        for layer, state in enumerate(states[1:]):
            after.append(self.step(f"decoder.layers.{layer}", "", after[-1][0], state))
        joined = self.linear("decoder.readout", np.concatenate([after[-1][0], token, context]))
        first, second = np.split(joined, 2)
        return np.maximum(first, second), weights, after

    def linear(self, name: str, x: Floats) -> Floats:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]
