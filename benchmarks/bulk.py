"""What it costs to have a corpus translated by workers that someone leads, against plain processes side by side.

    python benchmarks/bulk.py --model RUN --source test.en --lines 300000 --out benchmarks/results/bulk.md
    python benchmarks/bulk.py --lines 2000

The same file three ways, in turn, with as many processes of one thread each (`--workers`):

* plain: the file is cut into equal parts beforehand, each is translated by a `malmoi translate PART` of its own, and
  the time is that of the last to end. Nobody keeps order, nothing can be gone on with.
* workers: `malmoi translate FILE --out OUT --workers N`.
* ray: the same with `--cluster ray`, on a Ray that is started for it on this machine.

Times are those of whole commands: loading of models, start of Ray, and what puts the output together are in them. The
outputs of all three must be the same bytes. Lines are those of `--source` again and again, shuffled (random words for a
model of random weights if there is none). What is lost is 1 minus the time of plain over the time of the other, of the
same round. Linux only.
"""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from command import table
from decoders.material import make_model, write_sentences
from memory import whole_lines
from peers.machine import describe

NUM_SENTENCES = 1000
PLAIN = "plain"


@dataclass(frozen=True)
class Turn:
    """One way, once."""

    system: str
    seconds: float
    digest: str


@dataclass(frozen=True)
class Job:
    """What is translated, and by how many processes."""

    model: Path
    corpus: Path
    num_lines: int
    num_workers: int
    settings: tuple[str, ...]

    def translate(self, source: Path, *words: str) -> list[str]:
        return [sys.executable, "-m", "malmoi", "translate", str(self.model), str(source), *words, *self.settings]


def write_corpus(source: Path, path: Path, num_lines: int, seed: int) -> None:
    """The lines of a file as often as it takes, each time in another order."""
    lines, draw, left = whole_lines(source.read_bytes()), random.Random(seed), num_lines
    with path.open("wb") as file:
        while left:
            draw.shuffle(lines)
            file.write(b"".join(lines[:left]))
            left -= min(left, len(lines))


def cut(corpus: Path, num_parts: int, folder: Path) -> list[Path]:
    """Equal parts of a file, in order."""
    lines = whole_lines(corpus.read_bytes())
    bounds = [len(lines) * part // num_parts for part in range(num_parts + 1)]
    paths = [folder / f"part{part}" for part in range(num_parts)]
    for part, path in enumerate(paths):
        path.write_bytes(b"".join(lines[bounds[part] : bounds[part + 1]]))
    return paths


def run_plain(job: Job, folder: Path) -> Turn:
    parts = cut(job.corpus, job.num_workers, folder)
    outputs = [part.with_suffix(".out") for part in parts]
    began, processes = time.monotonic(), list["subprocess.Popen[bytes]"]()
    try:
        for part, output in zip(parts, outputs, strict=True):
            with output.open("wb") as file:
                processes.append(subprocess.Popen(job.translate(part, "--threads", "1", "--quiet"), stdout=file))
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    seconds = time.monotonic() - began
    if any(statuses):
        raise SystemExit(f"plain processes ended with {statuses}")
    return Turn(PLAIN, seconds, digest_of(outputs))


def run_led(system: str, words: list[str], job: Job, folder: Path) -> Turn:
    output = folder / f"{system}.out"
    led = ["--out", str(output), "--workers", str(job.num_workers), "--threads", "1", "--quiet", *words]
    began = time.monotonic()
    subprocess.run(job.translate(job.corpus, *led), check=True)
    seconds = time.monotonic() - began
    digest = digest_of([output])
    output.unlink()
    return Turn(system, seconds, digest)


def digest_of(paths: list[Path]) -> str:
    """SHA-256 over all bytes, one file after the other."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


WAYS: dict[str, Callable[[Job, Path], Turn]] = {
    PLAIN: run_plain,
    "workers": partial(run_led, "workers", []),
    "ray": partial(run_led, "ray", ["--cluster", "ray"]),
}


def losses(turns: list[Turn], system: str) -> list[float]:
    """Of each round, percent."""
    plain, other = ([turn.seconds for turn in turns if turn.system == name] for name in (PLAIN, system))
    return [100 * (1 - one / two) for one, two in zip(plain, other, strict=True)]


def as_markdown(how: dict[str, str], job: Job, turns: list[Turn]) -> str:
    rows = [["way", "minutes", "lines a second, median", "lost against plain, median", "of each round"]]
    for system in dict.fromkeys(turn.system for turn in turns):
        seconds = [turn.seconds for turn in turns if turn.system == system]
        lost = losses(turns, system)
        rows.append(
            [
                system,
                ", ".join(f"{one / 60:.2f}" for one in seconds),
                f"{job.num_lines / median(seconds):,.0f}",
                "" if system == PLAIN else f"{median(lost):.1f} %",
                "" if system == PLAIN else ", ".join(f"{one:.1f} %" for one in lost),
            ]
        )
    lines = [
        "# Workers that are led, against plain processes",
        "",
        "Made by `benchmarks/bulk.py`, which says how.",
        "",
        *(f"* {name}: {text}" for name, text in how.items()),
        f"* {job.num_lines:,} lines, {job.num_workers} processes of one thread each; the outputs are the same bytes",
        "",
        *table(rows),
    ]
    return "\n".join(lines) + "\n"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained model, or a run (default: random weights, 128 wide)")
    parser.add_argument("--source", type=Path, help="with --model: sentences")
    parser.add_argument("--lines", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS), help="plain takes part anyway")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="decoding settings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="all turns as one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="malmoi-bulk-") as name:
        folder = Path(name)
        model, source = options.model or folder / "model", options.source or folder / "source"
        if options.model is None:
            make_model(model, "tiny", options.seed)
        if options.source is None:
            write_sentences(source, NUM_SENTENCES, options.seed)
        write_corpus(source, folder / "corpus", options.lines, options.seed)
        settings = tuple(word for setting in options.set for word in ("--set", setting))
        job = Job(model, folder / "corpus", options.lines, options.workers, settings)
        turns = list[Turn]()
        for number in range(options.rounds):
            names = [name for name in WAYS if name == PLAIN or name in options.ways]
            # The order turns round, so that no way is always the first.
            for system in names[number % len(names) :] + names[: number % len(names)]:
                turns.append(WAYS[system](job, folder))
                print(f"round {number + 1}: {system} {turns[-1].seconds:.1f} s", file=sys.stderr)
    if len({turn.digest for turn in turns}) != 1:
        raise SystemExit(f"outputs differ: {turns}")
    how = describe("python benchmarks/bulk.py " + " ".join(sys.argv[1:]), options.seed)
    told = {"how": how, "lines": options.lines, "turns": [asdict(turn) for turn in turns]}
    print(json.dumps(told) if options.json else as_markdown(how, job, turns))
    if options.out:
        options.out.write_text(as_markdown(how, job, turns), encoding="utf-8")


if __name__ == "__main__":
    main()
