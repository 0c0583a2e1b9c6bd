"""How fast malmoi trains, against a plain loop around `torch.nn.Transformer`, in turn within one run.

    python benchmarks/training.py
    python benchmarks/training.py --store runs/multi30k --out benchmarks/results/training-speed.md

Both train the 4+4 layer, 128-wide Transformer (4 heads, feed-forward 256, dropout 0.3, label smoothing 0.1, one shared
embedding, Adam) in fp32. The plain loop is what one writes first: fused Adam, cross-entropy on whole logits. Both get
256 x 16 tokens without padding, and the same padded batches, the plain loop with key-padding masks. With `--store` (a
run or prepared folder) the padded batches are real ones; without it their lengths are drawn. Each has a process of its
own, since malmoi also tells the C library to keep freed memory; they take turns. A figure is the median over the rounds
of target tokens per second of whole updates, real tokens only. Dropout that acts on attention weights in the plain loop
is switched off there, so that both do the same.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from malmoi.config import TrainingConfig, TransformerConfig
from malmoi.data.batch import Batch, BatchMaker, batch_of_rows
from malmoi.data.batching import BatchPlan
from malmoi.data.store import Store
from malmoi.device import keep_freed_memory
from malmoi.models.build import build_model
from malmoi.models.positions import sines_and_cosines
from malmoi.text.tokenizer import Tokenizers
from malmoi.training.loss import ModelWithLoss
from malmoi.training.optimizer import build_optimizer, trainable_parameters
from malmoi.training.step import Updater

WIDTH, HEADS, LAYERS, FEED_FORWARD, DROPOUT, SMOOTHING = 128, 4, 4, 256, 0.3, 0.1
BATCH_TOKENS = 4096
LABELS = {"plain": "plain loop", "malmoi": "malmoi"}
KINDS = {"full": "256 x 16 without padding", "padded": "padded batches"}
Step = Callable[[Batch], None]


class Plain(nn.Module):
    """torch.nn.Transformer with one embedding for source, target and output."""

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        self.num_ids = num_ids
        self.embedding = nn.Embedding(num_ids + 1, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, FEED_FORWARD, DROPOUT, batch_first=True)
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.dropout = nn.Dropout(DROPOUT)
        self.register_buffer("positions", sines_and_cosines(512, WIDTH).float())

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * WIDTH**0.5 + self.positions[: ids.size(1)])

    def forward(self, batch: Batch) -> Tensor:
        length = batch.target_input_BT.size(1)
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        padding = torch.arange(batch.source_BS.size(1)) >= batch.source_lengths_B[:, None]
        maybe_padding = padding if bool(padding.any()) else None
        hidden = self.transformer(
            self.embed(batch.source_BS),
            self.embed(batch.target_input_BT),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=maybe_padding,
            memory_key_padding_mask=maybe_padding,
        )
        return hidden @ self.embedding.weight[: self.num_ids].T


def plain_step(num_ids: int) -> Step:
    """One update of the plain loop."""
    model = Plain(num_ids).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(batch)
        places = torch.arange(logits.size(1)) >= batch.target_lengths_B[:, None]
        wanted = batch.target_output_BT.masked_fill(places, -100)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()

    return step


def our_step(num_ids: int) -> Step:
    """One update as the trainer makes it."""
    config = TransformerConfig(
        width=WIDTH,
        heads=HEADS,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        feed_forward=FEED_FORWARD,
        dropout=DROPOUT,
    )
    network = build_model(config, num_ids, num_ids).train()
    parameters = trainable_parameters(network)
    updater = Updater(ModelWithLoss(network, SMOOTHING), parameters, build_optimizer(parameters, TrainingConfig()))
    counter = iter(range(1, 1 << 30))

    def step(batch: Batch) -> None:
        updater.update(batch, 1e-4, (1, next(counter)))

    return step


def full_batches(count: int, num_ids: int) -> list[Batch]:
    """256 x 16 random ids, nothing padded."""
    random = np.random.default_rng(0)
    rows = BATCH_TOKENS // 16
    return [
        batch_of_rows(
            list(random.integers(2, num_ids, (rows, 16))),
            list(random.integers(2, num_ids, (rows, 16))),
            np.arange(1, rows + 1, dtype=np.int64),
            num_ids,
            num_ids,
        )
        for _ in range(count)
    ]


def drawn_batches(count: int, num_ids: int) -> list[Batch]:
    """Random ids with lengths as sentences have them, of like length within a batch."""
    random = np.random.default_rng(1)
    batches: list[Batch] = []
    for middle in random.integers(9, 24, count):
        rows = BATCH_TOKENS // int(middle + 2)
        targets = [random.integers(2, num_ids, length) for length in random.integers(middle, middle + 2, rows)]
        sources = [random.integers(2, num_ids, length) for length in random.integers(middle - 3, middle + 3, rows)]
        batches.append(batch_of_rows(sources, targets, np.arange(1, rows + 1, dtype=np.int64), num_ids, num_ids))
    return batches


def real_batches(folder: Path, count: int) -> list[Batch]:
    """Batches of a run's own training store."""
    tokenizers = Tokenizers.load(folder / "tokenizer")
    stores = [Store.open(path) for path in sorted((folder / "data" / "train").iterdir())]
    epoch = BatchPlan(stores, BATCH_TOKENS, 1).epoch(0)
    make = BatchMaker(stores, tokenizers, 1)
    return [make(epoch[number], 0, number) for number in range(count)]


class Contestant:
    """A process that makes updates when it is told to."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        words = [sys.executable, __file__, "--serve", name, "--batches", str(arguments.batches)]
        words += ["--threads", str(arguments.threads), "--vocabulary", str(arguments.vocabulary)]
        words += ["--store", str(arguments.store)] if arguments.store else []
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, kind: str) -> float:
        """Target tokens per second of one round on `full` or `padded` batches."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(name: str, arguments: argparse.Namespace) -> None:
    """One contestant's side: a round for each line of standard input."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if name == "malmoi":
        keep_freed_memory()
    torch.manual_seed(1)
    batches = make_batches(arguments)
    num_ids = vocabulary_size(arguments)
    step = plain_step(num_ids) if name == "plain" else our_step(num_ids)
    for line in sys.stdin:
        began = time.perf_counter()
        for batch in batches[line.strip()]:
            step(batch)
        seconds = time.perf_counter() - began
        print(sum(batch.num_target_tokens for batch in batches[line.strip()]) / seconds, flush=True)


def vocabulary_size(arguments: argparse.Namespace) -> int:
    return Tokenizers.load(arguments.store / "tokenizer").target.size if arguments.store else arguments.vocabulary


def make_batches(arguments: argparse.Namespace) -> dict[str, list[Batch]]:
    """The same batches in every process."""
    num_ids, count = vocabulary_size(arguments), arguments.batches
    padded = real_batches(arguments.store, count) if arguments.store else drawn_batches(count, num_ids)
    return {"full": full_batches(count, num_ids), "padded": padded}


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Target tokens per second of each, in turn; the first round warms up and is not counted."""
    contestants = {name: Contestant(name, arguments) for name in ("plain", "malmoi")}
    found: dict[str, list[float]] = {f"{LABELS[name]}, {KINDS[kind]}": [] for kind in KINDS for name in contestants}
    for number in range(arguments.rounds + 1):
        for kind in KINDS:
            for name, contestant in contestants.items():
                speed = contestant.run(kind)
                if number:
                    found[f"{LABELS[name]}, {KINDS[kind]}"].append(speed)
    for contestant in contestants.values():
        contestant.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a run folder, or one that `malmoi prepare` made")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="updates per round")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=10_000, help="ids, where there is no store")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--serve", choices=("plain", "malmoi"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments)
        return
    report = make_report(measure(arguments), arguments, vocabulary_size(arguments))
    print(json.dumps(report, indent=1) if arguments.json else as_table(report))
    if arguments.out:
        arguments.out.write_text(as_table(report), encoding="utf-8")


def make_report(figures: dict[str, list[float]], arguments: argparse.Namespace, num_ids: int) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    names = list(medians)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "compiler_on_path": shutil.which("g++") is not None,
        "rounds": arguments.rounds,
        "batches": arguments.batches,
        "vocabulary": num_ids,
        "real_text": arguments.store is not None,
        "tokens_per_second": {
            name: {"median": round(medians[name]), "min": round(min(values)), "max": round(max(values))}
            for name, values in figures.items()
        },
        "ratio_without_padding": round(paired(figures, names[1], names[0]), 2),
        "ratio_padded": round(paired(figures, names[3], names[2]), 2),
        "ratio_our_padded_to_plain_without_padding": round(paired(figures, names[3], names[0]), 2),
    }


def paired(figures: dict[str, list[float]], ours: str, plain: str) -> float:
    """Median of the ratios round by round, which a machine whose speed drifts disturbs less."""
    return statistics.median(mine / theirs for mine, theirs in zip(figures[ours], figures[plain], strict=True))


def as_table(report: dict[str, Any]) -> str:
    lines = [
        "# Training speed, 4+4 layers, width 128, fp32",
        "",
        "Made by `benchmarks/training.py`, which says what is compared. Target tokens per second of whole updates.",
        "",
        f"{report['date']}, torch {report['torch']}, Python {report['python']}, {report['threads']} threads on "
        f"{report['cores']} cores ({report['kernels']}), vocabulary {report['vocabulary']:,}, "
        f"{'real' if report['real_text'] else 'drawn'} lengths in the padded batches, {report['rounds']} rounds of "
        f"{report['batches']} updates each in turn, seed 1. "
        f"A C++ compiler {'is' if report['compiler_on_path'] else 'is not'} on PATH (malmoi does not use one).",
        "",
        "| what | median | lowest | highest |",
        "|---|---|---|---|",
    ]
    for name, row in report["tokens_per_second"].items():
        lines.append(f"| {name} | {row['median']:,} | {row['min']:,} | {row['max']:,} |")
    lines += [
        "",
        "Ratios, median of the rounds: "
        f"{report['ratio_without_padding']} without padding, {report['ratio_padded']} on padded batches; "
        f"malmoi on padded batches against the plain loop without padding: "
        f"{report['ratio_our_padded_to_plain_without_padding']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
