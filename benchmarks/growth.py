"""How time and memory of an update grow with length, batch, vocabulary and layers, beside what the mathematics asks.

    python benchmarks/growth.py --out benchmarks/results/growth.md
    python benchmarks/growth.py --only vocabulary

Each row is a process of its own that builds a Transformer, makes a few updates on random ids without padding and tells
the fastest of them and the highest resident memory. Beside it stands what the mathematics asks:

* operations: two for each product of two numbers and its sum, in the projections, the feed-forward layers, the scores
  and sums of attention (whole squares, also where later tokens are hidden) and the output layer; three times that,
  since the backward pass needs two products where the forward pass needs one.
* memory: four numbers a weight (itself, its gradient, two moments of Adam) and the numbers that the backward pass needs
  of each layer, 8 x width + 2 x feed-forward for each source token, 13 x width + 2 x feed-forward for each target
  token, 4 bytes each. Neither logits nor matrices of attention are in it, since both can be made again in parts.

A row is marked where its operations per second fall below 70 % of those of the row before it, or where the quotient of
its memory (without that of imports) and what is asked is more than half again that of the row before it. With a
vocabulary of 64,000 the logits must not be whole: the update, beside the model, must take less than they would. Linux
only.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peers.machine import describe

WARM_UP, UPDATES = 1, 3
SLOWER, LARGER = 0.7, 1.5
"""From one row to the next: operations per second that are told as too slow, memory over what is asked as too large."""


@dataclass(frozen=True)
class Case:
    """One row: `rows` pairs of `length` tokens on both sides."""

    length: int = 16
    rows: int = 256
    vocabulary: int = 10_000
    layers: int = 4
    width: int = 128
    feed_forward: int = 256
    heads: int = 4

    @property
    def tokens(self) -> int:
        """Of one side."""
        return self.rows * self.length

    @property
    def num_weights(self) -> int:
        """Of the matrices; biases and norms are next to nothing."""
        layer = 12 * self.width**2 + 4 * self.width * self.feed_forward
        return self.layers * layer + (self.vocabulary + 1) * self.width

    @property
    def operations(self) -> int:
        """Of one update."""
        width, ff = self.width, self.feed_forward
        scores = 4 * self.length * width
        encoder = 8 * width**2 + 4 * width * ff + scores
        decoder = 16 * width**2 + 4 * width * ff + 2 * scores
        return 3 * self.tokens * (self.layers * (encoder + decoder) + 2 * width * self.vocabulary)

    @property
    def asked_bytes(self) -> int:
        """Of model, optimiser and what the backward pass needs."""
        kept = self.layers * (21 * self.width + 4 * self.feed_forward)
        return 16 * self.num_weights + 4 * self.tokens * kept

    @property
    def logits_bytes(self) -> int:
        return 4 * self.tokens * self.vocabulary


START = Case()
TABLES: dict[str, list[Case]] = {
    "length": [
        replace(START, length=length, rows=4096 // length) for length in (16, 32, 64, 128, 256, 512, 1024, 2048)
    ],
    "batch": [replace(START, rows=rows) for rows in (16, 64, 128, 256, 512, 1024)],
    "vocabulary": [replace(START, vocabulary=size) for size in (1_000, 4_000, 16_000, 32_000, 64_000)],
    "layers": [replace(START, layers=layers) for layers in (1, 2, 4, 8, 16)],
}
SHOWN = {"length": "length", "batch": "rows", "vocabulary": "vocabulary", "layers": "layers"}


@dataclass(frozen=True)
class Measured:
    """What a case took."""

    seconds: float
    imported_bytes: int
    """Resident before the model was built."""
    model_bytes: int
    """Resident when model and optimiser were there and had made one update of one pair."""
    peak_bytes: int


def resident_bytes(key: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}")


def serve(case: Case, seed: int) -> Measured:
    """One case, in the process that was made for it."""
    import numpy as np

    from malmoi.config.model import TransformerConfig
    from malmoi.config.training import TrainingConfig
    from malmoi.data.batch import Batch, batch_of_rows
    from malmoi.device import keep_freed_memory
    from malmoi.models.build import build_model
    from malmoi.training.objective import ModelWithLoss
    from malmoi.training.optimizer import Adam, trainable_parameters
    from malmoi.training.step import Updater

    keep_freed_memory()
    imported = resident_bytes("VmRSS")
    config = TransformerConfig(
        width=case.width,
        heads=case.heads,
        encoder_layers=case.layers,
        decoder_layers=case.layers,
        feed_forward=case.feed_forward,
        dropout=0.3,
    )
    network = build_model(config, case.vocabulary, case.vocabulary).train()
    parameters = trainable_parameters(network)
    updater = Updater(ModelWithLoss(network, 0.1), parameters, Adam(parameters, TrainingConfig()))
    random = np.random.default_rng(seed)

    def batch(rows: int, length: int) -> Batch:
        source, target = (list(random.integers(2, case.vocabulary, (rows, length))) for _ in range(2))
        return batch_of_rows(source, target, np.arange(1, rows + 1, dtype=np.int64), case.vocabulary, case.vocabulary)

    updater.update(batch(1, 2), 1e-4, (seed, 0))
    model = resident_bytes("VmRSS")
    whole = batch(case.rows, case.length)
    fastest = float("inf")
    for step in range(WARM_UP + UPDATES):
        began = time.perf_counter()
        updater.update(whole, 1e-4, (seed, step + 1))
        if step >= WARM_UP:
            fastest = min(fastest, time.perf_counter() - began)
    return Measured(fastest, imported, model, resident_bytes("VmHWM"))


def measure(case: Case, options: argparse.Namespace) -> Measured:
    """A case in a process of its own."""
    command = [sys.executable, __file__, "--serve", json.dumps(asdict(case)), "--seed", str(options.seed)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured = Measured(**json.loads(result.stdout))
    print(f"{case}: {measured.seconds:.2f} s, {measured.peak_bytes / 2**20:,.0f} MB", file=sys.stderr, flush=True)
    return measured


def rate(case: Case, measured: Measured) -> float:
    """Operations per second."""
    return case.operations / measured.seconds


def excess(case: Case, measured: Measured) -> float:
    """Memory of the update, model and optimiser included, over what is asked."""
    return (measured.peak_bytes - measured.imported_bytes) / case.asked_bytes


def judge(cases: Sequence[Case], found: Sequence[Measured]) -> list[str]:
    """A mark for each row that grew worse than the mathematics, against the row before it."""
    marks = [""]
    for before, now in zip(range(len(cases)), range(1, len(cases)), strict=False):
        words: list[str] = []
        if rate(cases[now], found[now]) < SLOWER * rate(cases[before], found[before]):
            words.append("slower than asked")
        if excess(cases[now], found[now]) > LARGER * excess(cases[before], found[before]):
            words.append("larger than asked")
        marks.append(", ".join(words))
    return marks


def rows_of(name: str, found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Figures of a table."""
    cases = TABLES[name]
    first = rate(cases[0], found[0])
    return [
        {
            SHOWN[name]: getattr(case, SHOWN[name]),
            "target_tokens": case.tokens,
            "seconds": measured.seconds,
            "gflop_asked": case.operations / 1e9,
            "gflop_per_second": rate(case, measured) / 1e9,
            "speed_against_first": rate(case, measured) / first,
            "peak_mb": measured.peak_bytes / 2**20,
            "update_mb": (measured.peak_bytes - measured.model_bytes) / 2**20,
            "memory_mb": (measured.peak_bytes - measured.imported_bytes) / 2**20,
            "asked_mb": case.asked_bytes / 2**20,
            "logits_mb": case.logits_bytes / 2**20,
            "mark": mark,
        }
        for case, measured, mark in zip(cases, found, judge(cases, found), strict=True)
    ]


def table(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table as Markdown."""
    lines = [f"## {name.capitalize()}", ""]
    lines.append(
        f"| {SHOWN[name]} | target tokens | seconds | GFLOP asked | GFLOP/s | … against the first row "
        "| highest memory, MB | without imports, MB | asked, MB | update alone, MB | whole logits, MB | |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [f"{row[SHOWN[name]]:,}", f"{row['target_tokens']:,}", f"{row['seconds']:.3f}"]
        cells += [f"{row['gflop_asked']:.1f}", f"{row['gflop_per_second']:.1f}", f"{row['speed_against_first']:.2f}"]
        cells += [f"{row[key]:,.0f}" for key in ("peak_mb", "memory_mb", "asked_mb", "update_mb", "logits_mb")]
        lines.append(f"| {' | '.join([*cells, row['mark']])} |")
    return [*lines, ""]


def check_logits(tables: dict[str, list[dict[str, Any]]]) -> str | None:
    """What the largest vocabulary says about whole logits; None where it was not measured."""
    if "vocabulary" not in tables:
        return None
    row = tables["vocabulary"][-1]
    is_whole = row["update_mb"] >= row["logits_mb"]
    return (
        f"With a vocabulary of {row['vocabulary']:,} whole logits would be {row['logits_mb']:,.0f} MB; the update "
        f"takes {row['update_mb']:,.0f} MB beside model and optimiser: they {'ARE' if is_whole else 'are never'} whole."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        print(json.dumps(asdict(serve(Case(**options.serve), options.seed))))
        return
    tables = {name: rows_of(name, [measure(case, options) for case in TABLES[name]]) for name in options.only}
    how = describe("python benchmarks/growth.py " + " ".join(sys.argv[1:]), options.seed)
    maybe_logits = check_logits(tables)
    lines = ["# How an update grows", "", "Made by `benchmarks/growth.py`, which says what is counted.", ""]
    lines += [f"* {name}: {text}" for name, text in how.items()]
    lines += [
        f"* model: {START.layers}+{START.layers} layers, width {START.width}, feed-forward {START.feed_forward}, "
    ]
    lines[-1] += f"{START.heads} heads, {options.threads} threads, {START.rows} x {START.length} tokens, "
    lines[-1] += f"vocabulary {START.vocabulary:,}, unless the table varies it"
    lines.append("")
    for name, rows in tables.items():
        lines += table(name, rows)
    text = "\n".join([*lines, *([maybe_logits] if maybe_logits else [])]) + "\n"
    print(json.dumps({"how": how, "tables": tables, "logits": maybe_logits}, indent=1) if options.json else text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if maybe_logits is not None and " ARE " in maybe_logits:
        sys.exit(1)


if __name__ == "__main__":
    main()
