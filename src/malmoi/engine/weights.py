"""The weights of a Transformer by their names in a model folder, in the order in which the native code reads them.

In: settings and sizes of vocabularies. Out: a `Shape`, the list of `Part`s that the native code packs, and the names
and shapes of all that a model folder holds. Torch is not needed for any of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from malmoi.config.model import Activation, Positions, TransformerConfig
from malmoi.engine.library import Shape

Weights = Mapping[str, NDArray[np.float32]]

LEARNED = ("source_positions.embedding.weight", "target_positions.embedding.weight")
"""Tables of `learned` positions, which are read from outside of the packed weights."""


@dataclass(frozen=True)
class Sizes:
    """Of the vocabularies of both sides, without the extra rows of their embeddings."""

    source: int
    target: int


@dataclass(frozen=True)
class Part:
    """What is read next: a weight by its name, or nothing for what a model has not (a bias, another kind's tables)."""

    maybe_name: str | None
    shape: tuple[int, ...] = ()
    is_read_in_place: bool = False
    """Whether the native code needs it later, too; the others are packed."""


NOTHING = Part(None)


def describe(config: TransformerConfig, sizes: Sizes, int8: bool) -> Shape:
    """Sizes and choices as numbers."""
    return Shape(
        width=config.width,
        heads=config.heads,
        feed_forward=config.feed_forward,
        vocabulary=sizes.target,
        source_vocabulary=sizes.source,
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


def parts(config: TransformerConfig, sizes: Sizes) -> list[Part]:
    """All that the native code reads, each weight with its bias or nothing behind it."""
    width = config.width
    found: list[Part] = []
    for number in range(config.encoder_layers):
        layer = f"encoder.layers.{number}"
        found += [*self_attention(layer, config), *norm(f"{layer}.self_residual.norm", config)]
        found += [*feed_forward(layer, config), *norm(f"{layer}.feed_forward_residual.norm", config)]
    found += last_norm("encoder.norm", config)
    for number in range(config.decoder_layers):
        layer = f"decoder.layers.{number}"
        found += [*self_attention(layer, config), *norm(f"{layer}.self_residual.norm", config)]
        found += [*cross_attention(layer, config), *norm(f"{layer}.cross_residual.norm", config)]
        found += [*feed_forward(layer, config), *norm(f"{layer}.feed_forward_residual.norm", config)]
    found += last_norm("decoder.norm", config)
    source = Part("source_embedding.weight", (sizes.source + 1, width), True)
    target = Part("target_embedding.weight", (sizes.target + 1, width), True)
    found += [target if config.tying == "all" else source, target]
    # A tied output layer reads the embedding but for its last row, `<s>`.
    found.append(Part("output.weight", (sizes.target, width)) if config.tying == "none" else target)
    found.append(Part("output.bias", (sizes.target,)) if config.output_bias else NOTHING)
    return found


def linear(name: str, num_outputs: int, num_inputs: int) -> list[Part]:
    return [Part(f"{name}.weight", (num_outputs, num_inputs)), Part(f"{name}.bias", (num_outputs,))]


def norm(name: str, config: TransformerConfig) -> list[Part]:
    shift = Part(f"{name}.bias", (config.width,), True) if config.norm == "layer" else NOTHING
    return [Part(f"{name}.weight", (config.width,), True), shift]


def last_norm(name: str, config: TransformerConfig) -> list[Part]:
    """Of a whole stack, which only pre-norm has."""
    return norm(name, config) if config.norm_place == "pre" else [NOTHING, NOTHING]


def self_attention(layer: str, config: TransformerConfig) -> Iterator[Part]:
    name, width = f"{layer}.self_attention", config.width
    yield from linear(f"{name}.input", 3 * width, width)
    yield from linear(f"{name}.output", width, width)
    tables = (2 * config.relative_distance + 1, width // config.heads)
    for table in ("key", "value"):
        yield Part(f"{name}.positions.{table}", tables, True) if config.positions == "relative" else NOTHING


def cross_attention(layer: str, config: TransformerConfig) -> Iterator[Part]:
    name, width = f"{layer}.cross_attention", config.width
    yield from linear(f"{name}.query", width, width)
    yield from linear(f"{name}.key_value", 2 * width, width)
    yield from linear(f"{name}.output", width, width)


def feed_forward(layer: str, config: TransformerConfig) -> Iterator[Part]:
    num_parts = 2 if config.activation == "swiglu" else 1
    yield from linear(f"{layer}.feed_forward.inner", num_parts * config.feed_forward, config.width)
    yield from linear(f"{layer}.feed_forward.outer", config.width, config.feed_forward)


def shapes(config: TransformerConfig, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of such a model's folder."""
    found = {part.maybe_name: part.shape for part in parts(config, sizes) if part.maybe_name is not None}
    if config.positions == "learned":
        found |= dict.fromkeys(LEARNED, (config.max_positions, config.width))
    return found


def read_weights(path: Path, config: TransformerConfig, sizes: Sizes) -> dict[str, NDArray[np.float32]] | None:
    """The weights of a model folder's file, in fp32.

    None where there is anything else than what such a model has, all of it finite and of at most 32 bits; who reads
    them as a network then finds out what it is.
    """
    try:
        with safe_open(path, "numpy") as file:
            names: list[str] = list(file.keys())
            views: dict[str, Any] = {name: file.get_slice(name) for name in names}
            kinds = {str(view.get_dtype()) for view in views.values()}
            found = {name: tuple(view.get_shape()) for name, view in views.items()}
            if found != shapes(config, sizes) or not kinds <= {"F32", "F16", "BF16"}:
                return None
            raw: dict[str, Any] = dict(deserialize(path.read_bytes())) if "BF16" in kinds else {}
            weights = {
                name: widen(raw[name]["data"], found[name])
                if view.get_dtype() == "BF16"
                else np.ascontiguousarray(file.get_tensor(name), dtype=np.float32)
                for name, view in views.items()
            }
    except (SafetensorError, OSError, ValueError):
        return None
    return weights if all(map(is_finite, weights.values())) else None


def widen(data: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """bf16, which numpy does not know: the upper halves of fp32."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def is_finite(weight: NDArray[np.floating[Any]]) -> bool:
    """Without a second array of its size: least and greatest are no numbers where any value is none."""
    return not weight.size or bool(np.isfinite(weight.min()) and np.isfinite(weight.max()))
