"""To CTranslate2: a Transformer through its specification classes, by which it computes the same function.

In: a model. Out: a folder that CTranslate2 loads, and `Ct2Copy`, which asks it.

What differs from a plain Transformer of theirs: the table of positions is ours, interleaved; the start symbol is the
last row of the target embedding and stays outside the softmax; the encoder's input ends with `</s>`, which CTranslate2
appends itself. Weights are copied before they are handed over, since quantisation there works in place.

Letters: V target vocabulary without `<s>`, D width, P positions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from malmoi.checkpoint import Model
from malmoi.config.model import Activation, ModelConfig, Positions, RnnConfig
from malmoi.decoding.interface import Ids
from malmoi.errors import ConfigError
from malmoi.export.names import Names, ids_of
from malmoi.models.attention import CrossAttention, SelfAttention
from malmoi.models.blocks import NORM_EPSILON, FeedForward
from malmoi.models.interface import Seq2Seq
from malmoi.models.positions import RelativePositions
from malmoi.models.transformer import EncoderLayer, Transformer
from malmoi.text.ids import END_ID

NumberType = Literal["float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"]
"""How weights are stored. int8 alone leaves the type of all other numbers to the machine that loads the copy."""
NUMBER_TYPES: tuple[NumberType, ...] = get_args(NumberType)
NUM_POSITIONS = 2048
"""Rows of the table of positions where the model itself has no longest sentence."""

Floats = NDArray[np.float32]


def require_library() -> Any:
    """The library, which only this format needs; `ConfigError` where it is not installed."""
    try:
        import ctranslate2
    except ImportError as error:
        raise ConfigError(
            f"the format ctranslate2 needs a library that is missing here ({error}): pip install 'malmoi[ct2]'"
        ) from error
    return ctranslate2


def check_can_hold(config: ModelConfig) -> None:
    """`ConfigError` with the name of what CTranslate2 cannot hold."""
    if isinstance(config, RnnConfig):
        raise ConfigError(
            f"CTranslate2 has no recurrent decoders, so a model with architecture = rnn (cell {config.cell}, attention "
            f"{config.attention}) cannot be exported to it: use it with malmoi, or train architecture = transformer"
        )


def check_number_type(maybe_wanted: str | None) -> NumberType | None:
    """The type that was asked for, if one was; `ConfigError` where there is no such type."""
    for one in NUMBER_TYPES:
        if one == maybe_wanted:
            return one
    if maybe_wanted is not None:
        raise ConfigError(f"--quantization {maybe_wanted}: must be one of {', '.join(NUMBER_TYPES)}")
    return None


def number_type(model: Model, maybe_wanted: NumberType | None) -> NumberType:
    """The type in which numbers are stored: what is asked for, else that of the model's weights."""
    match model.network.output_weight_VD.dtype:
        case _ if maybe_wanted is not None:
            return maybe_wanted
        case torch.float16:
            return "float16"
        case torch.bfloat16:
            return "bfloat16"
        case _:
            return "float32"


def write_copy(network: Seq2Seq, names: Names, kind: NumberType, folder: Path) -> None:
    """Write `model.bin`, `config.json` and the vocabularies into a folder that is there."""
    library = require_library()
    assert isinstance(network, Transformer), "settings were checked before"
    spec = build_spec(library.specs, network)
    config = network.config
    source = names.target if config.tying == "all" else names.source
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(names.target))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = names.unknown, names.start, names.end
    spec.config.decoder_start_token = names.start
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=kind)
    spec.save(str(folder))


def build_spec(specs: Any, network: Transformer) -> Any:
    """The whole model as a specification with weights."""
    config = network.config
    options = {
        "num_heads": config.heads,
        "pre_norm": config.norm_place == "pre",
        "activation": activation_of(specs.common_spec.Activation, config.activation),
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
        "relative_position": config.positions == "relative",
        # 0 stands for all numbers of a head. They are turned in neighbouring pairs.
        "rotary_dim": 0 if config.positions == "rotary" else None,
        "rotary_interleave": True,
    }
    encoder = specs.TransformerEncoderSpec(config.encoder_layers, **options)
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, **options)
    for spec, layer in zip(encoder.layer, network.encoder.layers, strict=True):
        assert isinstance(layer, EncoderLayer)
        fill_self_attention(spec.self_attention, layer.self_attention, layer.self_residual.norm)
        fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    for spec, layer in zip(decoder.layer, network.decoder.stack, strict=True):
        fill_self_attention(spec.self_attention, layer.self_attention, layer.self_residual.norm)
        fill_cross_attention(spec.attention, layer.cross_attention, layer.cross_residual.norm)
        fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    if config.norm_place == "pre":
        fill_norm(encoder.layer_norm, network.encoder.norm)
        fill_norm(decoder.layer_norm, network.decoder.norm)
    fill_ends(encoder, decoder, network)
    return specs.TransformerSpec(encoder, decoder)


def activation_of(kinds: Any, activation: Activation) -> Any:
    """Their name of an activation; theirs of GELU is the exact one, as ours."""
    match activation:
        case "relu":
            return kinds.RELU
        case "gelu":
            return kinds.GELU
        case "swiglu":
            return kinds.SWISH
        case _:
            assert_never(activation)


def fill_ends(encoder: Any, decoder: Any, network: Transformer) -> None:
    """Embeddings, positions and the output layer. What is equal here is stored once there."""
    config, size = network.config, network.target_vocabulary_size
    source_VD = to_array(network.source_embedding.weight)
    # The source's own extra row is padding, which CTranslate2 does not need.
    encoder.embeddings[0].weight = source_VD if config.tying == "all" else source_VD[:-1].copy()
    decoder.embeddings.weight = to_array(network.target_embedding.weight)
    maybe_table = position_table(network, config.positions)
    if maybe_table is not None:
        encoder.position_encodings.encodings, decoder.position_encodings.encodings = maybe_table
    bias_V = None if network.output_bias_V is None else to_array(network.output_bias_V)
    if config.tying == "none":
        decoder.projection.weight = to_array(network.output_weight_VD)
    else:
        # The whole embedding, so that it is stored once; a bias keeps `<s>`, its last row, out of the softmax.
        decoder.projection.weight = decoder.embeddings.weight.copy()
        bias_V = np.append(np.zeros(size, np.float32) if bias_V is None else bias_V, np.float32(-np.inf))
    if bias_V is not None:
        decoder.projection.bias = bias_V


def max_positions(network: Transformer) -> int | None:
    """The size of the copy's table of positions, None where it has none."""
    if network.config.positions in ("rotary", "relative"):
        return None
    return network.max_positions or NUM_POSITIONS


def position_table(network: Transformer, positions: Positions) -> tuple[Floats, Floats] | None:
    """What is added to the embeddings of both sides, `(P, D)`; None where positions act inside attention."""
    match positions:
        case "sinusoidal" | "learned":
            source, target = network.source_positions, network.target_positions
            assert source is not None and target is not None
            like = network.target_embedding.weight
            size = network.max_positions or NUM_POSITIONS
            return to_array(source.table(size, like)), to_array(target.table(size, like))
        case "none":
            # Without a table CTranslate2 would add sinusoids of its own.
            nothing = np.zeros((NUM_POSITIONS, network.width), np.float32)
            return nothing, nothing.copy()
        case "rotary" | "relative":
            return None
        case _:
            assert_never(positions)


def fill_self_attention(spec: Any, attention: SelfAttention, norm: nn.Module) -> None:
    """Queries, keys and values are one product there as here."""
    fill_norm(spec.layer_norm, norm)
    fill_linear(spec.linear[0], attention.input)
    fill_linear(spec.linear[1], attention.output)
    if isinstance(attention.positions, RelativePositions):
        spec.relative_position_keys = to_array(attention.positions.key)
        spec.relative_position_values = to_array(attention.positions.value)


def fill_cross_attention(spec: Any, attention: CrossAttention, norm: nn.Module) -> None:
    fill_norm(spec.layer_norm, norm)
    fill_linear(spec.linear[0], attention.query)
    fill_linear(spec.linear[1], attention.key_value)
    fill_linear(spec.linear[2], attention.output)


def fill_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.Module) -> None:
    """A gated network's one product is cut in two there: the gate, which is activated, and the value."""
    fill_norm(spec.layer_norm, norm)
    fill_linear(spec.linear_1, feed_forward.outer)
    if feed_forward.activation != "swiglu":
        fill_linear(spec.linear_0, feed_forward.inner)
        return
    weights, biases = feed_forward.inner.weight.chunk(2), feed_forward.inner.bias.chunk(2)
    for part, weight, bias in zip((spec.linear_0, spec.linear_0_noact), weights, biases, strict=True):
        part.weight, part.bias = to_array(weight), to_array(bias)


def fill_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = to_array(linear.weight), to_array(linear.bias)


def fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.weight is not None
    spec.gamma = to_array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = to_array(norm.bias)


def to_array(tensor: Tensor) -> Floats:
    """A copy in float32."""
    return tensor.detach().to("cpu", torch.float32).numpy().copy()


class Ct2Copy:
    """A written copy, asked with ids."""

    def __init__(self, folder: Path, names: Names, kind: NumberType) -> None:
        require_library()
        from malmoi.export.standalone import Exported

        # What this machine cannot compute in would be changed with a warning; the values that are stored stay the same.
        compute_type = "int8_float32" if kind.startswith("int8") else "float32"
        threads = torch.get_num_threads()
        self._exported = Exported(folder, compute_type=compute_type, intra_threads=threads)
        self._source, self._target, self._ids = names.source, names.target, ids_of(names.target)
        self._source_ids = ids_of(names.source)

    def score(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[tuple[float, ...]]:
        """Log-probabilities of the targets' tokens; sources and targets end with `</s>`, which is added there."""
        results = self._exported.translator.score_batch(
            [self.spell(source, self._source) for source in sources],
            [self.spell(target, self._target) for target in targets],
            max_batch_size=16,
            max_input_length=0,
        )
        return [tuple(one.log_probs) for one in results]

    def search(self, sources: Sequence[Ids], most: int) -> list[Ids]:
        """Greedy outputs of at most so many tokens, without an end symbol."""
        results = self._exported.translator.translate_batch(
            [self.spell(source, self._source) for source in sources],
            beam_size=1,
            max_batch_size=16,
            max_input_length=0,
            max_decoding_length=most,
            min_decoding_length=0,
            suppress_sequences=[[name] for name in self._exported.settings["suppress"]],
        )
        return [tuple(self._ids[name] for name in one.hypotheses[0]) for one in results]

    def encode(self, text: str) -> Ids:
        # A name that is none of the model's can come of a tokeniser that is not the model's.
        return tuple(self._source_ids.get(name, -1) for name in self._exported.encode(text))

    def decode(self, ids: Ids) -> str:
        return self._exported.decode([self._target[index] for index in ids])

    def spell(self, ids: Ids, names: Sequence[str]) -> list[str]:
        assert ids[-1] == END_ID
        return [names[index] for index in ids[:-1]]
