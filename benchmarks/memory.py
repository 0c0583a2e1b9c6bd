"""Whether memory stays flat while malmoi translates for a long time: its resident memory, sampled.

    python benchmarks/memory.py --minutes 60 --model RUN --source test.en --out benchmarks/results/memory.md
    python benchmarks/memory.py --minutes 1

One `malmoi translate MODEL -` is fed sentences without an end, those of `--source` again and again, each time in
another order (random words for a model of random weights if there is none), until the time is up; then its input ends
and all answers must have come. The slope is that of a straight line through the samples of the second half, in MB per
hour: what a leak would show, while a cache that fills up at the start does not. Linux only.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression
from typing import IO

from decoders.material import make_model, write_sentences
from peers.machine import describe
from peers.turn import resident_bytes, tree

NUM_SENTENCES = 2000
SHOWN = 13


@dataclass(frozen=True)
class Sample:
    """Memory at one time, and lines that were answered by then."""

    seconds: float
    megabytes: float
    lines: int


class Feed:
    """Writes sentences into a pipe until it is told to stop, and counts them; a second thread counts answers."""

    def __init__(self, lines: list[bytes], into: IO[bytes], answers: IO[bytes], seed: int) -> None:
        self.lines, self.into, self.answers = lines, into, answers
        self.draw = random.Random(seed)
        self.num_written = self.num_answered = 0
        self.is_over = False
        self.threads = [threading.Thread(target=one) for one in (self.write, self.count)]
        for thread in self.threads:
            thread.start()

    def write(self) -> None:
        with self.into:
            while not self.is_over:
                self.draw.shuffle(self.lines)
                self.into.write(b"".join(self.lines))
                self.num_written += len(self.lines)

    def count(self) -> None:
        for _ in self.answers:
            self.num_answered += 1

    def end(self) -> None:
        self.is_over = True
        for thread in self.threads:
            thread.join()


def whole_lines(text: bytes) -> list[bytes]:
    """Lines as malmoi cuts them, at LF alone, each with one, so that in any order they stay so many."""
    return [line + b"\n" for line in text.removesuffix(b"\n").split(b"\n")]


def slope(samples: list[Sample]) -> float:
    """MB per hour over the second half of the time."""
    half = [one for one in samples if one.seconds >= samples[-1].seconds / 2]
    if len(half) < 2:
        return 0.0
    return 3600 * linear_regression([one.seconds for one in half], [one.megabytes for one in half]).slope


def thinned(samples: list[Sample], count: int = SHOWN) -> list[Sample]:
    """Samples at even distances, first and last among them."""
    if len(samples) <= count:
        return samples
    return [samples[round(place * (len(samples) - 1) / (count - 1))] for place in range(count)]


def watch(process: "subprocess.Popen[bytes]", feed: Feed, minutes: float, every: float) -> list[Sample]:
    """Samples from the first answer on, which comes when the model is loaded."""
    while not feed.num_answered:
        if process.poll() is not None:
            raise SystemExit(f"malmoi ended with {process.returncode} before the first answer")
        time.sleep(0.1)
    samples, began = list[Sample](), time.monotonic()
    while (passed := time.monotonic() - began) < 60 * minutes:
        memory = sum(resident_bytes(pid) for pid in tree(process.pid))
        samples.append(Sample(passed, memory / 2**20, feed.num_answered))
        time.sleep(every)
    return samples


def as_markdown(how: dict[str, str], samples: list[Sample]) -> str:
    """The curve in a few rows."""
    peak = max(one.megabytes for one in samples)
    rows = [
        f"| {one.seconds / 60:.1f} | {one.megabytes:,.0f} | {one.lines:,} |" for one in thinned(samples, count=SHOWN)
    ]
    lines = [
        "# Memory of a long translation",
        "",
        "Made by `benchmarks/memory.py`, which says how.",
        "",
        *(f"* {name}: {text}" for name, text in how.items()),
        f"* {len(samples)} samples, highest {peak:,.0f} MB",
        f"* slope over the second half {slope(samples):+,.1f} MB per hour",
        "",
        "| minutes | resident memory, MB | lines answered |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained model, or a run (default: random weights, 128 wide)")
    parser.add_argument("--source", type=Path, help="with --model: sentences")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="decoding settings")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="all samples as one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="malmoi-memory-") as folder:
        model, source = options.model or Path(folder) / "model", options.source or Path(folder) / "source"
        if options.model is None:
            make_model(model, "tiny", options.seed)
        if options.source is None:
            write_sentences(source, NUM_SENTENCES, options.seed)
        words = [word for setting in options.set for word in ("--set", setting)]
        command = [sys.executable, "-m", "malmoi", "translate", str(model), "-", "--quiet", *words]
        command += ["--threads", str(options.threads)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        feed = Feed(whole_lines(source.read_bytes()), process.stdin, process.stdout, options.seed)
        try:
            samples = watch(process, feed, options.minutes, options.every)
            feed.end()
            process.wait()
        finally:
            # Whatever ends this script ends what it has started.
            process.kill()
        if process.returncode or feed.num_answered != feed.num_written:
            raise SystemExit(f"{feed.num_written} lines in, {feed.num_answered} out, status {process.returncode}")
    how = describe("python benchmarks/memory.py " + " ".join(sys.argv[1:]), options.seed)
    told = {"how": how, "slope": slope(samples), "samples": [asdict(one) for one in samples]}
    print(json.dumps(told) if options.json else as_markdown(how, samples))
    if options.out:
        options.out.write_text(as_markdown(how, samples), encoding="utf-8")


if __name__ == "__main__":
    main()
