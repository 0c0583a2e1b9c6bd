"""What is said of the three systems, tried: five experiments, each with its curve, its numbers and whether it held.

    python benchmarks/claims.py --out docs/reports/claims.html            hours, most of them for recall (estimated)
    python benchmarks/claims.py --out page.html --only heads order        two of them, some minutes
    python benchmarks/claims.py --out page.html --quick                   that it runs at all: small sizes, no meaning

* parallel: a recurrent system cannot use the machine in parallel. An update on 4,096 tokens, cut into ever fewer and
  longer sentences: time for each token. Held if the longest take a recurrent system at least twice as long for a token
  as the shortest, and a Transformer less than half of that.
* recall: far-off words are lost. A key, then so many other symbols; which key was it? Encoders read in one direction,
  since the other one would end at the key. Held if plain Seq2Seq is right less than nine times in ten at a distance at
  which both systems with attention are right more often.
* order: attention without positions cannot tell order. Which of two symbols came first? Held if a Transformer without
  positions is right at most six times in ten, and with them at least nineteen in twenty.
* heads: h heads cost about as much as one. An update of a Transformer 512 wide. Held if eight take at most a quarter
  more than one.
* table: complexity per layer. Forward pass of one encoder layer 128 wide, by length; beside it the multiply-adds,
  sequential operations and longest paths of table 1 of the paper. Held if self-attention is the faster wherever
  sentences are shorter than vectors are wide, as the table says.

Times are the median of interleaved repeats: each repeat asks every system once. Writes a page and, beside it, the same
as JSON.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from html import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peers.machine import processor

from malmoi.config.model import ModelConfig, RnnConfig, TransformerConfig
from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch, batch_of_rows
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from malmoi.report.charts import WIDE, Line, Ticks, key, line_chart
from malmoi.report.comparison import read_part
from malmoi.report.curves import number_label
from malmoi.report.markup import table
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.step import Updater

END, FIRST, KEYS, SYMBOLS = 1, 2, 16, 48
VOCABULARY = FIRST + SYMBOLS
TOKENS = 4096
Rows = tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]


@dataclass(frozen=True)
class Sizes:
    """How much is done; `quick` is for seeing that it runs."""

    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    distances: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    tokens: int = TOKENS
    repeats: int = 5
    updates: int = 1500
    rows: int = 64
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    width: int = 512


QUICK = Sizes((8, 16), (4, 8), 128, 2, 5, 8, (1, 2, 8), 32)


@dataclass(frozen=True)
class Claim:
    """One experiment: by system its values at `places` (None where it has none), and what they say."""

    name: str
    sentence: str
    x_label: str
    y_label: str
    places: tuple[int, ...]
    values: Mapping[str, Sequence[float | None]]
    held: bool
    verdict: str
    notes: tuple[str, ...] = ()


def systems(width: int = 128, *, one_way: bool = False, layers: int = 2) -> dict[str, ModelConfig]:
    """The three, in the sizes of `malmoi compare`."""
    states = {"width": width, "hidden": 2 * width, "dropout": 0.0, "bidirectional": not one_way}
    return {
        "Seq2Seq": RnnConfig.model_validate({"attention": "none", **states}),
        "Seq2Seq + attention": RnnConfig.model_validate({"attention": "additive", **states}),
        "Transformer": transformer(width, layers=layers),
    }


def transformer(width: int, *, heads: int = 4, layers: int = 2, positions: str = "sinusoidal") -> TransformerConfig:
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "feed_forward": 2 * width, "dropout": 0.0}
    return TransformerConfig.model_validate({"width": width, "heads": heads, "positions": positions, **sizes})


def make_updater(config: ModelConfig, seed: int = 1) -> tuple[Seq2Seq, Updater]:
    network = build_model(config, VOCABULARY, VOCABULARY, seed=seed)
    parameters = trainable_parameters(network)
    adam = Adam(parameters, TrainingConfig(lr=1e-3))
    return network, Updater(ModelWithLoss(network, 0.0).train(), parameters, adam, clip_norm=1.0)


def make_batch(rows: Rows) -> Batch:
    sources, targets = rows
    return batch_of_rows(sources, targets, np.arange(len(sources), dtype=np.int64), VOCABULARY, VOCABULARY)


def random_rows(count: int, length: int) -> Rows:
    """Sentences of one length on both sides, end symbols included."""
    draw = np.random.default_rng(length)
    ids = draw.integers(FIRST, VOCABULARY, size=(2, count, length))
    ids[:, :, -1] = END
    return list(ids[0]), list(ids[1])


def in_turn(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, after one of each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, one in work.items():
            began = time.perf_counter()
            one()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def try_parallel(sizes: Sizes) -> Claim:
    values: dict[str, list[float | None]] = {name: [] for name in systems()}
    for length in sizes.lengths:
        batch = make_batch(random_rows(max(1, sizes.tokens // length), length))
        work: dict[str, Callable[[], object]] = {}
        for name, config in systems().items():
            _, updater = make_updater(config)
            work[name] = partial(updater.update, batch, 1e-4, (1, 1))
        for name, seconds in in_turn(work, sizes.repeats).items():
            values[name].append(1e6 * seconds / batch.num_target_tokens)
    growth = {name: (found[-1] or 0.0) / (found[0] or 1.0) for name, found in values.items()}
    recurrent = min(growth["Seq2Seq"], growth["Seq2Seq + attention"])
    told = ", ".join(f"{name} {one:.2f} times" for name, one in growth.items())
    return Claim(
        "parallel",
        "A recurrent system cannot use the machine in parallel: long sentences take it longer for each token.",
        "tokens of a sentence",
        "microseconds for a target token of an update (lower is better)",
        sizes.lengths,
        values,
        recurrent >= 2 and growth["Transformer"] < recurrent / 2,
        f"From {sizes.lengths[0]} to {sizes.lengths[-1]} tokens, a token takes {told} as long.",
    )


def recall_rows(draw: np.random.Generator, count: int, distance: int) -> Rows:
    """A key and so many symbols that are none; the answer is the key."""
    keys = draw.integers(FIRST, FIRST + KEYS, size=count)
    others = draw.integers(FIRST + KEYS, VOCABULARY, size=(count, distance))
    ends = np.full((count, 1), END)
    return list(np.hstack([keys[:, None], others, ends])), list(np.hstack([keys[:, None], ends]))


def order_rows(draw: np.random.Generator, count: int, distance: int) -> Rows:
    """Two symbols among others, in one order or the other; the answer says in which."""
    first = draw.integers(0, 2, size=count)
    ids = draw.integers(FIRST + KEYS, VOCABULARY, size=(count, distance))
    for row in range(count):
        near, far = np.sort(draw.choice(distance, size=2, replace=False))
        ids[row, near], ids[row, far] = (FIRST + first[row], FIRST + 1 - first[row])
    ends = np.full((count, 1), END)
    return list(np.hstack([ids, ends])), list(np.hstack([(FIRST + first)[:, None], ends]))


def learn(config: ModelConfig, draw_rows: Callable[[np.random.Generator, int], Rows], sizes: Sizes) -> float:
    """The share of new sources that are answered rightly after so many updates, each on rows of its own."""
    network, updater = make_updater(config)
    draw = np.random.default_rng(1)
    for step in range(1, sizes.updates + 1):
        rate = 1e-3 * min(1.0, step / 100)
        updater.update(make_batch(draw_rows(draw, sizes.rows)), rate, (1, step))
    network.eval()
    batch = make_batch(draw_rows(np.random.default_rng(2), 16 * sizes.rows))
    with torch.inference_mode():
        hidden_BTD = network(batch.source_BS, batch.source_lengths_B, batch.target_input_BT)
        logits_BV = hidden_BTD[:, 0] @ network.output_weight_VD.T
        if network.output_bias_V is not None:
            logits_BV = logits_BV + network.output_bias_V
    return float((logits_BV.argmax(-1) == batch.target_output_BT[:, 0]).float().mean())


def try_recall(sizes: Sizes) -> Claim:
    values: dict[str, list[float | None]] = {name: [] for name in systems()}
    for distance in sizes.distances:
        for name, config in systems(64, one_way=True).items():
            found = learn(config, lambda draw, count, distance=distance: recall_rows(draw, count, distance), sizes)
            values[name].append(100 * found)
    rows = list(zip(*values.values(), strict=True))
    lost = [
        place
        for place, (plain, *looking) in zip(sizes.distances, rows, strict=True)
        if (plain or 0.0) < 90 < min(one or 0.0 for one in looking)
    ]
    return Claim(
        "recall",
        "A recurrent system without attention loses what lies far behind.",
        "symbols after the key",
        "keys recalled, % (higher is better)",
        sizes.distances,
        values,
        bool(lost),
        f"Plain Seq2Seq alone loses the key at {lost}." if lost else "There is no distance at which it alone loses it.",
        (f"{sizes.updates:,} updates on {sizes.rows} new sentences each; chance is {100 / KEYS:.1f} %.",),
    )


def try_order(sizes: Sizes) -> Claim:
    configs: dict[str, ModelConfig] = {
        "Transformer without positions": transformer(64, positions="none"),
        "Seq2Seq": systems(64)["Seq2Seq"],
        "Transformer": transformer(64),
    }
    places = (8,)
    values: dict[str, list[float | None]] = {
        name: [100 * learn(config, lambda draw, count: order_rows(draw, count, places[0]), sizes)]
        for name, config in configs.items()
    }
    without, with_them = values["Transformer without positions"][0] or 0.0, values["Transformer"][0] or 0.0
    return Claim(
        "order",
        "Attention without positions cannot tell order.",
        "symbols of a sentence",
        "sentences whose order is told, % (higher is better)",
        places,
        values,
        without <= 60 and with_them >= 95,
        f"Without positions {without:.1f} %, with them {with_them:.1f} %; chance is 50 %.",
    )


def try_heads(sizes: Sizes) -> Claim:
    batch = make_batch(random_rows(max(1, sizes.tokens // 128), 32))
    work: dict[str, Callable[[], object]] = {}
    for heads in sizes.heads:
        _, updater = make_updater(transformer(sizes.width, heads=heads))
        work[str(heads)] = partial(updater.update, batch, 1e-4, (1, 1))
    seconds = in_turn(work, sizes.repeats)
    shares = {name: one / seconds["1"] for name, one in seconds.items()}
    return Claim(
        "heads",
        "h heads cost about as much as one head of the full width.",
        "heads",
        "time of an update, one head = 1 (lower is better)",
        sizes.heads,
        {"Transformer": [shares[str(heads)] for heads in sizes.heads]},
        shares["8"] <= 1.25,
        f"Eight heads take {shares['8']:.2f} times as long as one, in a model {sizes.width} wide.",
    )


def try_table(sizes: Sizes, width: int = 128, rows: int = 16) -> Claim:
    layer = systems(width, one_way=True, layers=1)
    names = {"Transformer": "self-attention layer", "Seq2Seq": "recurrent layer"}
    values: dict[str, list[float | None]] = {name: [] for name in names.values()}
    for length in sizes.lengths:
        batch = make_batch(random_rows(rows, length))
        work: dict[str, Callable[[], object]] = {}
        for name, title in names.items():
            network = build_model(layer[name], VOCABULARY, VOCABULARY, seed=1).eval()
            work[title] = partial(encode, network, batch)
        for title, seconds in in_turn(work, sizes.repeats).items():
            values[title].append(1e3 * seconds)
    looking, reading = values.values()
    faster = [n for n, ours, theirs in zip(sizes.lengths, looking, reading, strict=True) if (ours or 0) < (theirs or 0)]
    short = [place for place, length in enumerate(sizes.lengths) if length < width]
    return Claim(
        "table",
        "A self-attention layer is faster than a recurrent one where sentences are shorter than vectors are wide.",
        "tokens of a sentence",
        f"milliseconds for {rows} sentences, forward, {width} wide (lower is better)",
        sizes.lengths,
        values,
        all((looking[place] or 0.0) < (reading[place] or 0.0) for place in short),
        f"Self-attention is the faster at {faster}.",
        (
            "Calculated, for n words and vectors of d numbers (table 1): self-attention n²·d, 1 sequential operation, "
            "path 1; recurrent n·d², n sequential operations, path n.",
            *(
                f"n = {n}: n²·d = {n * n * width:,}, n·d² = {n * width * width:,}; sequential operations 1 and {n}"
                for n in sizes.lengths
            ),
            "The layer that was measured holds projections and feed-forward (both n·d²) as well.",
        ),
    )


@torch.inference_mode()
def encode(network: Seq2Seq, batch: Batch) -> object:
    return network.encode(batch.source_BS, batch.source_lengths_B)


CLAIMS: dict[str, Callable[[Sizes], Claim]] = {
    "parallel": try_parallel,
    "recall": try_recall,
    "order": try_order,
    "heads": try_heads,
    "table": try_table,
}


def section(claim: Claim) -> str:
    """One experiment on the page: what is said, whether it held, the curve, the numbers."""
    ticks = [(math.log2(place), number_label(place)) for place in claim.places]
    low, high = ticks[0][0] - 0.3, ticks[-1][0] + 0.3
    lines = [
        Line(style, name, [(x, y, None, None) for (x, _), y in zip(ticks, found, strict=True) if y is not None])
        for style, (name, found) in enumerate(claim.values.items())
    ]
    identity = f"chart-{claim.name}"
    chart = line_chart(lines, Ticks(ticks, low, high), identity=identity, x_label=escape(claim.x_label), width=WIDE)
    names = [f'<span class="system">{key(style)} {escape(name)}</span>' for style, name in enumerate(claim.values)]
    rows = [
        [number_label(place), *("–" if found[at] is None else f"{found[at]:,.3g}" for found in claim.values.values())]
        for at, place in enumerate(claim.places)
    ]
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in claim.notes)
    held = "It held on this machine." if claim.held else "It did not hold on this machine."
    return (
        f"<section><h2>{escape(claim.sentence)}</h2><p><b>{held}</b> {escape(claim.verdict)}</p>"
        f'<p class="legend">{"".join(names)}</p><div class="charts one"><figure>'
        f'<figcaption id="{identity}">{escape(claim.y_label)}</figcaption>{chart}</figure></div>'
        f"{table([escape(claim.x_label), *names], rows)}{notes}</section>"
    )


def page(claims: Sequence[Claim], machine: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
        'content="width=device-width, initial-scale=1">\n<title>What is said of the three systems, tried</title>\n'
        f"<style>{read_part('style.css')}</style>\n</head>\n<body><main>\n"
        "<h1>What is said of the three systems, tried</h1>\n"
        f'<p class="soft">{escape(machine)}; benchmarks/claims.py says how each is tried, and when it counts as held.'
        f"</p>\n{''.join(map(section, claims))}\n</main></body>\n</html>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    claims: list[Claim] = []
    machine = f"{processor()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    if options.quick:
        machine += "; --quick: these numbers say nothing"
    for name in options.only:
        claims.append(CLAIMS[name](QUICK if options.quick else Sizes()))
        print(name, "held:" if claims[-1].held else "did not hold:", claims[-1].verdict, flush=True)
        # After each, so that a stop loses one of them at most.
        options.out.write_text(page(claims, machine), encoding="utf-8")
        found = {"machine": machine, "claims": [asdict(one) for one in claims]}
        options.out.with_suffix(".json").write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
