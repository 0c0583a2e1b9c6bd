"""Shapes: every box of a model with the sizes of what goes in and out, its parameters and its multiplications.

In: settings, vocabulary sizes, and how many tokens a sentence has on each side. Out: boxes in the order of computation,
calculated from the settings alone.

A multiply-add is one multiplication and one addition inside a matrix product. Norms, softmax, sums and lookups have
none counted: beside the products they are small. An output counts as one pass over all its tokens (teacher forcing).

Letters: S source tokens, T target tokens, D width, N heads, H size of a head (d_k), F feed-forward, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Literal

from malmoi.config.model import ModelConfig, NormKind, RnnConfig, TransformerConfig

Kind = Literal[
    "embedding",
    "position",
    "self",
    "masked",
    "cross",
    "feed_forward",
    "norm",
    "recurrent",
    "bridge",
    "readout",
    "output",
]
Place = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Step:
    """One line inside a box: a formula and the shape of what it gives."""

    formula: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """One part of a model; `parameters` and `multiply_adds` are those of one of its `repeat` copies.

    `is_shared`: its weights are those of a box before it and are counted there.
    """

    kind: Kind
    place: Place
    repeat: int
    steps: tuple[Step, ...]
    parameters: int
    multiply_adds: int
    heads: int = 1
    is_shared: bool = False


def count_parameters(boxes: tuple[Box, ...]) -> int:
    """Parameters of all boxes."""
    return sum(box.parameters * box.repeat for box in boxes)


def count_multiply_adds(boxes: tuple[Box, ...]) -> int:
    """Multiply-adds of all boxes."""
    return sum(box.multiply_adds * box.repeat for box in boxes)


def model_boxes(
    config: ModelConfig, num_source_ids: int, num_target_ids: int, source_tokens: int, target_tokens: int
) -> tuple[Box, ...]:
    """The boxes of a model; sizes of vocabularies are those of the tokenisers."""
    sizes = (num_source_ids, num_target_ids, source_tokens, target_tokens)
    if isinstance(config, TransformerConfig):
        return transformer_boxes(config, *sizes)
    return rnn_boxes(config, *sizes)


def linear(size_in: int, size_out: int, bias: bool = True) -> int:
    """Parameters of a projection."""
    return size_in * size_out + (size_out if bias else 0)


def embedding_box(place: Place, num_ids: int, width: int, length: int, is_shared: bool) -> Box:
    """A lookup; the extra row is that of `<s>` and of padding."""
    steps = (Step("E", (num_ids + 1, width)), Step("X = √D · E[ids]", (length, width)))
    return Box("embedding", place, 1, steps, 0 if is_shared else (num_ids + 1) * width, 0, is_shared=is_shared)


def output_box(config: ModelConfig, num_ids: int, length: int) -> Box:
    """Scores of all words of the vocabulary at every place."""
    is_tied = config.tying != "none"
    parameters = (0 if is_tied else num_ids * config.width) + (num_ids if config.output_bias else 0)
    steps = (Step("softmax(X · Eᵀ)" if is_tied else "softmax(X · W)", (length, num_ids)),)
    return Box("output", "decoder", 1, steps, parameters, length * config.width * num_ids, is_shared=is_tied)


def transformer_boxes(
    config: TransformerConfig, num_source_ids: int, num_target_ids: int, source: int, target: int
) -> tuple[Box, ...]:
    """Figure 1 of the paper, box by box."""
    width = config.width
    boxes: list[Box] = []
    for place, num_ids, length, layers in (
        ("encoder", num_source_ids, source, config.encoder_layers),
        ("decoder", num_target_ids, target, config.decoder_layers),
    ):
        assert place == "encoder" or place == "decoder"
        is_decoder = place == "decoder"
        boxes += [
            embedding_box(place, num_ids, width, length, is_decoder and config.tying == "all"),
            position_box(config, place, length),
        ]
        norm = norm_box(config.norm, place, width, length, layers)
        looking = attention_box(config, "masked" if is_decoder else "self", length, length)
        boxes += [replace(looking, place=place, repeat=layers), norm]
        if is_decoder:
            boxes += [replace(attention_box(config, "cross", length, source), place=place, repeat=layers), norm]
        boxes += [feed_forward_box(config, place, length, layers), norm]
        if config.norm_place == "pre":
            # The sum of all layers has a last norm of its own.
            last = norm_box(config.norm, place, width, length, 1)
            boxes.append(replace(last, steps=(Step("norm(x)", (length, width)),)))
    return (*boxes, output_box(config, num_target_ids, target))


def position_box(config: TransformerConfig, place: Place, length: int) -> Box:
    """What is added to the embeddings, or inside each self-attention."""
    width, head = config.width, config.width // config.heads
    parameters = 0
    match config.positions:
        case "sinusoidal":
            steps = (Step("sin, cos(p / 10000^(2i/D))", (length, width)), Step("X + P", (length, width)))
        case "learned":
            steps = (Step("P", (config.max_positions, width)), Step("X + P", (length, width)))
            parameters = config.max_positions * width
        case "rotary":
            steps = (Step("Q, K × e^(i·p·θ)", (config.heads, length, head)),)
        case "relative":
            # Its vectors belong to the layers and are counted there.
            steps = (Step("a_K, a_V", (2 * config.relative_distance + 1, head)),)
        case "none":
            steps = (Step("–", (length, width)),)
    return Box("position", place, 1, steps, parameters, 0)


def norm_box(kind: NormKind, place: Place, width: int, length: int, repeat: int) -> Box:
    """Residual sum and norm, as often as a sublayer occurs."""
    steps = (Step("norm(x + sublayer(x))", (length, width)),)
    return Box("norm", place, repeat, steps, width * (2 if kind == "layer" else 1), 0)


def attention_box(config: TransformerConfig, kind: Literal["self", "masked", "cross"], looking: int, seen: int) -> Box:
    """Multi-head attention of so many queries to so many keys (section 3.2)."""
    width, heads = config.width, config.heads
    head = width // heads
    products = (2 * looking + 2 * seen) * width * width + 2 * looking * seen * width
    parameters = 4 * linear(width, width)
    steps = [
        Step("Q = X·W_Q", (looking, width)),
        Step("K = M·W_K, V = M·W_V" if kind == "cross" else "K = X·W_K, V = X·W_V", (seen, width)),
        Step("Q_i", (looking, head)),
        Step("K_i, V_i", (seen, head)),
        Step("e = Q_i·K_iᵀ / √d_k", (looking, seen)),
    ]
    if kind == "masked":
        steps.append(Step("e + M", (looking, seen)))
    if kind != "cross" and config.positions == "relative":
        parameters += 2 * (2 * config.relative_distance + 1) * head
        products += 2 * looking * seen * width
    steps += [
        Step("α = softmax(e)", (looking, seen)),
        Step("head_i = α·V_i", (looking, head)),
        Step("concat(head_1…h)·W_O", (looking, width)),
    ]
    return Box(kind, "encoder", 1, tuple(steps), parameters, products, heads=heads)


def feed_forward_box(config: TransformerConfig, place: Place, length: int, layers: int) -> Box:
    """Section 3.3, or gated."""
    width, inner = config.width, config.feed_forward
    parts = 2 if config.activation == "swiglu" else 1
    first = {"relu": "max(0, X·W_1 + b_1)", "gelu": "GELU(X·W_1 + b_1)", "swiglu": "silu(X·W_1) × (X·V)"}
    steps = (Step(first[config.activation], (length, inner)), Step("·W_2 + b_2", (length, width)))
    parameters = linear(width, inner * parts) + linear(inner, width)
    return Box("feed_forward", place, layers, steps, parameters, length * width * inner * (parts + 1))


def rnn_boxes(config: RnnConfig, num_source_ids: int, num_target_ids: int, source: int, target: int) -> tuple[Box, ...]:
    """The two systems before: an encoder that reads word by word, what it hands over, a decoder that says word by
    word and may look back."""
    width, hidden = config.width, config.hidden
    slots = 2 if config.cell == "lstm" else 1
    bridge = linear(hidden, hidden * slots)
    boxes = [
        embedding_box("encoder", num_source_ids, width, source, is_shared=False),
        *encoder_layers(config, source),
        Box("bridge", "decoder", config.decoder_layers, (Step("s_0 = tanh(W·h)", (slots, hidden)),), bridge, bridge),
        embedding_box("decoder", num_target_ids, width, target, is_shared=config.tying == "all"),
    ]
    sizes_in = [width, *[hidden] * (config.decoder_layers - 1)]
    if config.attention == "additive":
        boxes += additive_boxes(config, source, target)
        sizes_in = sizes_in[1:]
    boxes += [layer_box(config, "decoder", size_in, hidden, target) for size_in in sizes_in]
    if config.attention == "dot":
        steps = (Step("e = s·hᵀ", (target, source)), Step("α = softmax(e)", (target, source)))
        looking = (*steps, Step("c = α·h", (target, hidden)))
        boxes.append(Box("cross", "decoder", 1, looking, 0, 2 * target * source * hidden))
    readout_in = {"none": hidden, "dot": 2 * hidden, "additive": 2 * hidden + width}[config.attention]
    readout_out = width * (2 if config.attention == "additive" else 1)
    readout = Box(
        "readout",
        "decoder",
        1,
        (Step("X = readout(s)" if config.attention == "none" else "X = readout(s, c)", (target, width)),),
        linear(readout_in, readout_out),
        target * readout_in * readout_out,
    )
    return (*boxes, readout, output_box(config, num_target_ids, target))


def num_gates(config: RnnConfig) -> int:
    return 4 if config.cell == "lstm" else 3


def layer_box(config: RnnConfig, place: Place, size_in: int, size: int, length: int, directions: int = 1) -> Box:
    """One layer of torch's GRU or LSTM, whose gates have two biases each."""
    gates = num_gates(config)
    weights = gates * size * (size_in + size) * directions
    steps = (Step(f"h_t = {config.cell.upper()}(x_t, h_t-1)", (length, size * directions)),)
    return Box("recurrent", place, 1, steps, weights + 2 * gates * size * directions, length * weights)


def encoder_layers(config: RnnConfig, source: int) -> list[Box]:
    """The layers that read the source, in one direction or in both."""
    directions = 2 if config.bidirectional else 1
    sizes_in = [config.width, *[config.hidden] * (config.encoder_layers - 1)]
    return [
        layer_box(config, "encoder", size_in, config.hidden // directions, source, directions) for size_in in sizes_in
    ]


def additive_boxes(config: RnnConfig, source: int, target: int) -> list[Box]:
    """Bahdanau's cell: it looks at the source before it moves."""
    width, hidden, gates = config.width, config.hidden, num_gates(config)
    looking = linear(hidden, hidden, bias=False) + linear(hidden, hidden) + linear(hidden, 1, bias=False)
    looks = Box(
        "cross",
        "decoder",
        1,
        (
            Step("e = v·tanh(W·s + U·h)", (target, source)),
            Step("α = softmax(e)", (target, source)),
            Step("c = α·h", (target, hidden)),
        ),
        looking,
        (target + source) * hidden * hidden + 2 * target * source * hidden,
    )
    weights = gates * hidden * (width + 2 * hidden)
    moves = Box(
        "recurrent",
        "decoder",
        1,
        (Step(f"s_t = {config.cell.upper()}([y_t-1, c_t], s_t-1)", (target, hidden)),),
        weights + 2 * gates * hidden,
        target * weights,
    )
    return [looks, moves]
