"""What the data side costs: text to ids, memory, time to the first batch, batches per second.

    python benchmarks/data.py --pairs 10000000 --workers 2 --out benchmarks/results/data-10m.md
    python benchmarks/data.py --pairs 10000000 --ids-only --out benchmarks/results/data-10m-ids.md

Writes generated pairs as text into a temporary folder (about 140 bytes a pair, and 90 for the store), looks through
them, learns a BPE vocabulary, tokenises them into a store and takes batches for a while. Memory is RssAnon of
/proc/<pid>/status, the part that cannot be dropped and read again, so that this runs on Linux only. A table goes to
standard output, or one JSON object with --json.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from malmoi.config.text import CleaningConfig, DataSource, TextConfig
from malmoi.data.batch import Batch, collate
from malmoi.data.batching import BatchPlan
from malmoi.data.prepare import build_store, scan
from malmoi.data.store import IntArray, Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.log import configure_logging
from malmoi.text.corpus import open_corpus
from malmoi.text.tokenizer import Tokenizers, train_tokenizers

SAMPLE_SECONDS = 0.1
GENERATED_AT_ONCE = 50_000
NUM_WORDS = 200_000
MEAN_WORDS = 12


def anonymous_megabytes(process: str = "self") -> float:
    """RssAnon of a process; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def children() -> list[str]:
    """Process ids of our workers."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text(encoding="ascii").split()
        except OSError:
            # A thread may end while we look.
            continue
    return found


@dataclass
class Peak:
    """Highest anonymous memory, looked at by a thread many times a second."""

    own: float = 0.0
    worker: float = 0.0
    """Of the largest worker."""
    total: float = 0.0

    def look(self) -> None:
        own, workers = anonymous_megabytes(), [anonymous_megabytes(process) for process in children()]
        self.own = max(self.own, own)
        self.worker = max([self.worker, *workers])
        self.total = max(self.total, own + sum(workers))


@dataclass
class Stage:
    """What one stage took."""

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process and of workers that ended in the stage."""
    peak: Peak = field(default_factory=Peak)


@contextmanager
def measured(name: str, stages: list[Stage]) -> Iterator[Stage]:
    """Time and memory of what happens inside."""
    stage = Stage(name)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            stage.peak.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, start_cpu = time.perf_counter(), sum(os.times()[:4])
    try:
        yield stage
    finally:
        stage.seconds, stage.cpu_seconds = time.perf_counter() - start, sum(os.times()[:4]) - start_cpu
        stage.peak.look()
        done.set()
        watcher.join()
    stages.append(stage)
    print(f"{name}: {stage.seconds:.1f} s, {stage.peak.total:.0f} MB", file=sys.stderr)


def generate(folder: Path, num_pairs: int, seed: int, mean_words: int = MEAN_WORDS) -> None:
    """Two files of lines whose words follow Zipf's law over `NUM_WORDS` made-up words."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lengths = generator.integers(2, 11, NUM_WORDS)
    words = np.array(["".join(generator.choice(letters, length)) for length in lengths], dtype=object)
    chances = 1 / np.arange(1, NUM_WORDS + 1)
    limits = np.cumsum(chances / chances.sum())
    with (folder / "train.src").open("wb") as source, (folder / "train.tgt").open("wb") as target:
        for first in range(0, num_pairs, GENERATED_AT_ONCE):
            count = min(GENERATED_AT_ONCE, num_pairs - first)
            num_words = generator.poisson(mean_words - 1, count) + 1
            for file in (source, target):
                # Both sides of a pair are about as long as each other.
                own = np.maximum(1, num_words + generator.integers(-2, 3, count))
                drawn = words[np.minimum(np.searchsorted(limits, generator.random(own.sum())), NUM_WORDS - 1)].tolist()
                ends = np.cumsum(own).tolist()
                starts = [0, *ends[:-1]]
                lines = (" ".join(drawn[start:end]) for start, end in zip(starts, ends, strict=True))
                file.write(("\n".join(lines) + "\n").encode("ascii"))


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All stages; figures by name."""
    stages: list[Stage] = []
    figures: dict[str, Any] = {"workers": options.workers, "anonymous_megabytes_at_start": anonymous_megabytes()}
    if options.ids_only:
        with measured("write ids", stages):
            write_ids(folder / "store", options)
    else:
        figures |= tokenise(folder, options, stages)
    with measured("open and verify the store", stages):
        store = Store.open(folder / "store")
    figures |= use_store(store, options, stages)
    figures |= {
        "anonymous_megabytes_at_most": max(stage.peak.total for stage in stages),
        "stages": {
            stage.name: {
                "seconds": stage.seconds,
                "cpu_seconds": stage.cpu_seconds,
                "anonymous_megabytes": stage.peak.own,
                "anonymous_megabytes_of_the_largest_worker": stage.peak.worker,
                "anonymous_megabytes_with_workers": stage.peak.total,
            }
            for stage in stages
        },
    }
    return figures


def tokenise(folder: Path, options: argparse.Namespace, stages: list[Stage]) -> dict[str, float]:
    """From generated text to a store."""
    with measured("generate text", stages):
        generate(folder, options.pairs, options.seed)
    cleaning = CleaningConfig()
    corpus = open_corpus(DataSource(source=str(folder / "train.src"), target=str(folder / "train.tgt")))
    with measured("scan", stages) as scanning:
        found = scan([corpus], cleaning, seed=options.seed)
    with measured("learn the vocabulary", stages):
        text = TextConfig(vocabulary_size=options.vocabulary)
        tokenizers = train_tokenizers(text, found.sources, found.targets, options.seed)
    lines = 2 * found.facts.num_pairs
    del found
    with measured("tokenise", stages) as tokenising:
        build_store(corpus, tokenizers, cleaning, folder / "store", workers=options.workers)
    return {
        "plain_lines_per_cpu_second": plain_rate(corpus_lines(folder), tokenizers),
        "scan_lines_per_second": lines / scanning.seconds,
        "lines_per_second": lines / tokenising.seconds,
        "lines_per_cpu_second": lines / tokenising.cpu_seconds,
    }


def write_ids(folder: Path, options: argparse.Namespace) -> None:
    """A store of ids drawn by chance, about as long as the generated text; no text, no tokeniser."""
    generator = np.random.default_rng(options.seed)
    with StoreWriter(folder, options.vocabulary, options.vocabulary) as writer:
        for first in range(0, options.pairs, GENERATED_AT_ONCE):
            count = min(GENERATED_AT_ONCE, options.pairs - first)
            source = generator.poisson(2 * MEAN_WORDS - 2, count) + 2
            target = np.maximum(2, source + generator.integers(-4, 5, count))
            source_ids, target_ids = (
                generator.integers(2, options.vocabulary, side.sum()) for side in (source, target)
            )
            writer.add(source_ids, source, target_ids, target, np.arange(first + 1, first + count + 1))
        writer.finish(key="ids", description="ids", inputs={}, weight=1.0, cleaning={})


def use_store(store: Store, options: argparse.Namespace, stages: list[Stage]) -> dict[str, float]:
    """What training asks of a store."""

    def make(indices: IntArray, epoch: int, position: int) -> Batch:
        del epoch, position
        return collate([store], indices, options.vocabulary, options.vocabulary)

    with measured("first batch", stages) as first:
        plan = BatchPlan([store], options.batch_tokens, options.seed)
        stream = BatchStream(plan, make)
        next(stream)
    with measured("batches", stages) as batches:
        taken = take_batches(stream, options.seconds)
    # As at the turn of an epoch, while the window before is still held.
    with measured("a window of the next epoch", stages) as ordering:
        plan.window(1)
    stream.close()
    return {
        "pairs": store.num_pairs,
        "tokens": int(store.source_offsets[-1] + store.target_offsets[-1]),
        "first_batch_seconds": first.seconds,
        "batches_per_second": taken["batches"] / batches.seconds,
        "target_tokens_per_second": taken["target_tokens"] / batches.seconds,
        "real_source": taken["source_tokens"] / taken["source_area"],
        "real_target": taken["target_tokens"] / taken["target_area"],
        "windows": plan.num_windows(),
        "window_seconds": ordering.seconds,
    }


def take_batches(stream: BatchStream, seconds: float) -> dict[str, int]:
    """Count what the batches of so many seconds hold."""
    counts = dict.fromkeys(("batches", "source_tokens", "target_tokens", "source_area", "target_area"), 0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        _, _, batch = next(stream)
        counts["batches"] += 1
        counts["source_tokens"] += int(batch.source_lengths_B.sum())
        counts["target_tokens"] += batch.num_target_tokens
        counts["source_area"] += batch.source_BS.numel()
        counts["target_area"] += batch.target_output_BT.numel()
    return counts


def corpus_lines(folder: Path) -> list[str]:
    """The first lines of the generated source."""
    with (folder / "train.src").open(encoding="ascii") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(20_000), strict=False)]


def plain_rate(lines: list[str], tokenizers: Tokenizers) -> float:
    """Lines per processor second of the tokeniser alone, without the memory for words."""
    start = time.process_time()
    tokenizers.source.encode_batch(lines)
    return len(lines) / (time.process_time() - start)


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def words_of(options: argparse.Namespace) -> list[str]:
    """The options that decide the figures."""
    words = [f"--{name} {getattr(options, name)}" for name in ("pairs", "workers", "vocabulary", "seed", "seconds")]
    return [*words, f"--batch-tokens {options.batch_tokens}", *(["--ids-only"] if options.ids_only else [])]


def recipe(script: str, words: list[str], seed: int) -> dict[str, str]:
    """What it takes to run this again."""
    names = ("malmoi", "numpy", "sentencepiece", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return {
        "command": " ".join([f"python {script}", *words]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "seed": str(seed),
        "versions": f"Python {platform.python_version()}, {versions}",
        "machine": f"{processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end",
    }


def table(figures: dict[str, Any], how: dict[str, str]) -> str:
    """The figures as Markdown."""
    text = [
        ("text to ids, lines per second and core (all processes, reading and cleaning included)",
         "{lines_per_cpu_second:,.0f}"),
        ("text to ids, lines per second of wall time, {workers} worker(s)", "{lines_per_second:,.0f}"),
        ("SentencePiece alone, lines per second and core", "{plain_lines_per_cpu_second:,.0f}"),
        ("scan, lines per second", "{scan_lines_per_second:,.0f}"),
    ]  # fmt: skip
    rows = [
        ("pairs", "{pairs:,}"),
        ("tokens, both sides, end symbols included", "{tokens:,}"),
        *(text if "lines_per_second" in figures else []),
        ("time to the first batch from an open store, s", "{first_batch_seconds:.2f}"),
        ("windows of an epoch", "{windows}"),
        ("another window, s (made beside batches where an epoch has several)", "{window_seconds:.2f}"),
        ("batches per second", "{batches_per_second:,.0f}"),
        ("target tokens per second", "{target_tokens_per_second:,.0f}"),
        ("real tokens in a batch, source / target", "{real_source:.1%} / {real_target:.1%}"),
        ("anonymous memory after imports, MB", "{anonymous_megabytes_at_start:.0f}"),
        ("anonymous memory at most, this process and workers, MB", "{anonymous_megabytes_at_most:.0f}"),
    ]
    lines = ["# The data side on generated pairs", "", *(f"* {name}: {text}" for name, text in how.items()), ""]
    lines += ["| what | figure |", "|---|---|"]
    lines += [f"| {name} | {value} |".format(**figures) for name, value in rows]
    lines += ["", "| stage | seconds | processor seconds | own anonymous MB | largest worker | all |"]
    lines.append("|---|---|---|---|---|---|")
    for name, stage in figures["stages"].items():
        cells = [
            f"{stage['seconds']:.1f}",
            f"{stage['cpu_seconds']:.1f}",
            *(f"{stage[key]:.0f}" for key in MEMORY_KEYS),
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) + "\n"


MEMORY_KEYS = (
    "anonymous_megabytes",
    "anonymous_megabytes_of_the_largest_worker",
    "anonymous_megabytes_with_workers",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long batches are taken")
    parser.add_argument("--ids-only", action="store_true", help="draw ids instead of text: what training asks alone")
    parser.add_argument("--folder", type=Path, help="where text and store go (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    configure_logging()
    with tempfile.TemporaryDirectory(prefix="malmoi-", dir=options.folder) as folder:
        figures = run(options, Path(folder))
    how = recipe("benchmarks/data.py", words_of(options), options.seed)
    if options.out is not None:
        options.out.write_text(table(figures, how), encoding="utf-8")
    print(json.dumps({**how, **figures}) if options.json else table(figures, how))


if __name__ == "__main__":
    main()
