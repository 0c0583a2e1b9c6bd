"""The whole Transformer in NumPy, float64, one sentence at a time and one head at a time.

Written from "Attention Is All You Need" (section 3), and for the variants from Xiong et al. (2020, norms before the
sublayers), Zhang and Sennrich (2019, RMSNorm), Hendrycks and Gimpel (2016, GELU), Shazeer (2020, SwiGLU), Shaw et al.
(2018, relative positions) and Su et al. (2021, rotary positions). Sentences have no padding here at all.

Weights come by the names under which models are stored; matrices are stored as (out, in).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
EPSILON = 1e-5


@dataclass
class ReferenceTransformer:
    """Encoder and decoder of one model, with the weights that it recorded."""

    weights: Mapping[str, Floats]
    num_heads: int
    encoder_layers: int
    decoder_layers: int
    positions: str = "sinusoidal"
    norm_place: str = "post"
    norm: str = "layer"
    activation: str = "relu"
    relative_distance: int = 16

    def hidden(self, source_ids: list[int], target_ids: list[int]) -> Floats:
        """Hidden states of the decoder at every target place, (T, D)."""
        memory = self.embed("source", source_ids)
        for layer in range(self.encoder_layers):
            memory = self.encoder_layer(f"encoder.layers.{layer}", memory)
        if self.norm_place == "pre":
            memory = self.normalize("encoder.norm", memory)
        states = self.embed("target", target_ids)
        for layer in range(self.decoder_layers):
            states = self.decoder_layer(f"decoder.layers.{layer}", states, memory)
        return self.normalize("decoder.norm", states) if self.norm_place == "pre" else states

    def embed(self, side: str, ids: list[int]) -> Floats:
        table = self.weights[f"{side}_embedding.weight"]
        width = table.shape[1]
        rows: list[Floats] = []
        for place, index in enumerate(ids):
            row = table[index] * math.sqrt(width)
            if self.positions == "sinusoidal":
                row = row + sinusoid(place, width)
            elif self.positions == "learned":
                row = row + self.weights[f"{side}_positions.embedding.weight"][place]
            rows.append(row)
        return np.stack(rows)

    def encoder_layer(self, name: str, states: Floats) -> Floats:
        everything = np.ones((len(states), len(states)), dtype=bool)
        states = self.residual(
            f"{name}.self_residual", states, lambda x: self.self_attention(f"{name}.self_attention", x, everything)
        )
        return self.residual(
            f"{name}.feed_forward_residual", states, lambda x: self.feed_forward(f"{name}.feed_forward", x)
        )

    def decoder_layer(self, name: str, states: Floats, memory: Floats) -> Floats:
        past = np.tril(np.ones((len(states), len(states)), dtype=bool))
        states = self.residual(
            f"{name}.self_residual", states, lambda x: self.self_attention(f"{name}.self_attention", x, past)
        )
        states = self.residual(
            f"{name}.cross_residual", states, lambda x: self.cross_attention(f"{name}.cross_attention", x, memory)
        )
        return self.residual(
            f"{name}.feed_forward_residual", states, lambda x: self.feed_forward(f"{name}.feed_forward", x)
        )

    def residual(self, name: str, states: Floats, sublayer: Callable[[Floats], Floats]) -> Floats:
        if self.norm_place == "pre":
            return states + sublayer(self.normalize(f"{name}.norm", states))
        return self.normalize(f"{name}.norm", states + sublayer(states))

    def normalize(self, name: str, states: Floats) -> Floats:
        gain = self.weights[f"{name}.weight"]
        if self.norm == "rms":
            return states / np.sqrt((states**2).mean(axis=-1, keepdims=True) + EPSILON) * gain
        centred = states - states.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + EPSILON) * gain + self.weights[f"{name}.bias"]

    def feed_forward(self, name: str, states: Floats) -> Floats:
        inner = self.linear(f"{name}.inner", states)
        if self.activation == "relu":
            inner = np.maximum(inner, 0.0)
        elif self.activation == "gelu":
            inner = np.vectorize(lambda x: 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))))(inner)
        else:
            gate, value = np.split(inner, 2, axis=-1)
            inner = gate / (1.0 + np.exp(-gate)) * value
        return self.linear(f"{name}.outer", inner)

    def linear(self, name: str, states: Floats) -> Floats:
        return states @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def self_attention(self, name: str, states: Floats, allowed: NDArray[np.bool_]) -> Floats:
        weight, bias = self.weights[f"{name}.input.weight"], self.weights[f"{name}.input.bias"]
        projected = [
            states @ part.T + part_bias for part, part_bias in zip(np.split(weight, 3), np.split(bias, 3), strict=True)
        ]
        return self.multi_head(name, *projected, allowed, inside=True)

    def cross_attention(self, name: str, states: Floats, memory: Floats) -> Floats:
        weight, bias = self.weights[f"{name}.key_value.weight"], self.weights[f"{name}.key_value.bias"]
        key_weight, value_weight = np.split(weight, 2)
        key_bias, value_bias = np.split(bias, 2)
        query = self.linear(f"{name}.query", states)
        everything = np.ones((len(states), len(memory)), dtype=bool)
        key, value = memory @ key_weight.T + key_bias, memory @ value_weight.T + value_bias
        return self.multi_head(name, query, key, value, everything, inside=False)

    def multi_head(
        self, name: str, query: Floats, key: Floats, value: Floats, allowed: NDArray[np.bool_], inside: bool
    ) -> Floats:
        size = query.shape[1] // self.num_heads
        heads: list[Floats] = []
        for head in range(self.num_heads):
            part = slice(head * size, (head + 1) * size)
            q, k, v = query[:, part], key[:, part], value[:, part]
            if inside and self.positions == "rotary":
                q, k = rotate(q), rotate(k)
            relative = inside and self.positions == "relative"
            attended = np.zeros_like(q)
            for i in range(len(q)):
                scores = np.full(len(k), -math.inf)
                for j in np.flatnonzero(allowed[i]):
                    key_j = k[j] + self.relative_row(f"{name}.positions.key", i, j) if relative else k[j]
                    scores[j] = q[i] @ key_j / math.sqrt(size)
                alpha = np.exp(scores - scores.max())
                alpha /= alpha.sum()
                for j in np.flatnonzero(allowed[i]):
                    value_j = v[j] + self.relative_row(f"{name}.positions.value", i, j) if relative else v[j]
                    attended[i] += alpha[j] * value_j
            heads.append(attended)
        return self.linear(f"{name}.output", np.concatenate(heads, axis=1))

    def relative_row(self, name: str, i: int, j: int) -> Floats:
        distance = max(-self.relative_distance, min(self.relative_distance, j - i))
        return self.weights[name][distance + self.relative_distance]


def sinusoid(place: int, width: int) -> Floats:
    """Section 3.5: column 2i holds sin(p / 10000^(2i / d)), column 2i + 1 the cosine of the same."""
    row = np.zeros(width)
    for column in range(width):
        angle = place / 10000.0 ** (2 * (column // 2) / width)
        row[column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return row


def rotate(states: Floats) -> Floats:
    """Su et al. (2021), equation 15: each pair (2i, 2i + 1) is turned by place * 10000^(-2i / d)."""
    turned = np.zeros_like(states)
    size = states.shape[1]
    for place in range(len(states)):
        for pair in range(size // 2):
            angle = place * 10000.0 ** (-2 * pair / size)
            first, second = states[place, 2 * pair], states[place, 2 * pair + 1]
            turned[place, 2 * pair] = first * math.cos(angle) - second * math.sin(angle)
            turned[place, 2 * pair + 1] = first * math.sin(angle) + second * math.cos(angle)
    return turned
