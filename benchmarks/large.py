"""A corpus that is larger than memory should be: generated, prepared into several stores, trained on, killed, resumed.

    python benchmarks/large.py --pairs 50000000 --stores 5 --workers 2 --out benchmarks/results/data-50m.md

Everything goes through the command line, in processes of its own: `malmoi prepare` for the first store, `--like` it for
the others, `malmoi train` on all of them, once undisturbed and once with a kill -9 in between. The text of a store is
deleted once it is prepared. Memory is RssAnon of /proc/<pid>/status, the part that cannot be dropped and read again,
summed over a command's processes; so this runs on Linux only. About 65 bytes a pair of text and as much of a store,
with four words a line. A page goes to standard output, or one JSON object with --json.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import anonymous_megabytes, generate, recipe

LOOK_SECONDS = 0.1
SETTINGS = (
    "model.width=64",
    "model.heads=4",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.feed_forward=128",
    "text.vocabulary_size=8000",
    "training.lr=0.002",
    "training.warmup_steps=100",
    "training.schedule=inverse_sqrt",
    "training.metrics=['loss']",
    "training.best_metric=loss",
    "training.average=0",
    "training.threads=1",
    "training.log_every=1",
    "training.save_every=50",
    "training.validate_every=1000000",
)


@dataclass
class Taken:
    """What a command took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of all its processes; 0 where it was killed."""
    anonymous_megabytes: float = 0.0
    """At most, all its processes together."""
    first_update_seconds: float = 0.0
    """From the start of the command until its first new row of metrics."""
    first_update_cpu_seconds: float = 0.0
    """The same in processor time, which other programs do not lengthen."""
    said: str = ""


def family(process: int) -> list[int]:
    """A process and all that it started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*"):
        try:
            found += [one for child in (task / "children").read_text().split() for one in family(int(child))]
        except OSError:
            continue
    return found


def run(words: list[str], folder: Path, stop: Callable[[], bool] = lambda: False) -> Taken:
    """A command, watched until it ends or is to be killed; its metrics grow in `folder`/metrics.jsonl."""
    taken, began, cpu_before = Taken(), time.monotonic(), sum(os.times()[2:4])
    rows = num_rows(folder)
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([sys.executable, "-m", "malmoi", *words], stdout=told, stderr=told)
        killed = False
        while process.poll() is None:
            alive = sum(anonymous_megabytes(str(one)) for one in family(process.pid))
            taken.anonymous_megabytes = max(taken.anonymous_megabytes, alive)
            # Rows of updates that were not saved go first, when a run goes on.
            before, rows = rows, num_rows(folder)
            if not taken.first_update_seconds and rows > before:
                taken.first_update_seconds = time.monotonic() - began
                taken.first_update_cpu_seconds = cpu_seconds(process.pid)
            if stop():
                process.send_signal(signal.SIGKILL)
                killed = True
            time.sleep(LOOK_SECONDS)
        told.seek(0)
        taken.said = told.read().decode(errors="replace")
    taken.seconds, taken.cpu_seconds = time.monotonic() - began, sum(os.times()[2:4]) - cpu_before
    if process.returncode != (-signal.SIGKILL if killed else 0):
        raise SystemExit(f"{' '.join(words[:3])} ended with status {process.returncode}:\n{taken.said}")
    print(f"{' '.join(words[:2])}: {taken.seconds:.1f} s, {taken.anonymous_megabytes:.0f} MB", file=sys.stderr)
    return taken


def cpu_seconds(process: int) -> float:
    """Processor time of a process up to now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def num_rows(folder: Path) -> int:
    """Rows of training up to now."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


def prepare(options: argparse.Namespace, folder: Path) -> tuple[list[Path], list[Taken], int]:
    """All stores, what each took, and the bytes of text that they were made from."""
    stores, taken, size = [folder / f"store-{number}" for number in range(options.stores)], [], 0
    for number, store in enumerate(stores):
        text = folder / "text"
        text.mkdir()
        generate(text, options.pairs // options.stores, options.seed + number, options.words)
        size += sum(one.stat().st_size for one in text.iterdir())
        words = ["prepare", str(text / "train.src"), str(text / "train.tgt"), "--out", str(store), "--quiet"]
        words += [f"--workers={options.workers}"]
        words += [f"--like={stores[0]}"] if number else list(SETTINGS)
        taken.append(run(words, store))
        shutil.rmtree(text)
    return stores, taken, size


def train(options: argparse.Namespace, folder: Path, stores: list[Path], name: str, stop_at: int = 0) -> Taken:
    """A run of so many updates, or up to a kill."""
    run_folder = folder / name
    # What the stores were prepared with is known to them.
    settings = [word for word in SETTINGS if not word.startswith("text.")]
    settings += [f"training.batch_tokens={options.batch_tokens}", f"training.max_steps={options.steps}"]
    words = ["train", *map(str, stores), *settings, "--out", str(run_folder), "--quiet"]
    return run(words, run_folder, lambda: bool(stop_at) and num_rows(run_folder) >= stop_at)


def look(options: argparse.Namespace, folder: Path, stores: list[Path]) -> dict[str, float]:
    """Batches alone, in a process of its own."""
    code = "import sys; from large import take_batches; take_batches(*sys.argv[1:])"
    words = [sys.executable, "-c", code, str(options.batch_tokens), str(options.seconds), *map(str, stores)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    return json.loads(done.stdout)


def take_batches(batch_tokens: str, seconds: str, *folders: str) -> None:
    """Open the stores, take batches for a while, and print what that took."""
    from malmoi.data.batch import Batch, collate
    from malmoi.data.batching import BatchPlan
    from malmoi.data.store import IntArray, Store
    from malmoi.data.stream import BatchStream

    before = anonymous_megabytes()
    start = time.perf_counter()
    stores = [Store.open(path) for name in folders for path in sorted((Path(name) / "data" / "train").iterdir())]
    opened, opened_cpu = time.perf_counter(), time.process_time()

    def make(indices: IntArray, epoch: int, position: int) -> Batch:
        del epoch, position
        return collate(stores, indices, 8000, 8000)

    plan = BatchPlan(stores, int(batch_tokens), 1)
    num_batches = tokens = 0
    peak = 0.0
    with BatchStream(plan, make) as stream:
        next(stream)
        first, first_cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < first + float(seconds):
            tokens += next(stream)[2].num_target_tokens
            num_batches += 1
            if num_batches % 100 == 0:
                peak = max(peak, anonymous_megabytes())
        taken, taken_cpu = time.perf_counter() - first, time.process_time() - first_cpu
    found = {
        "pairs": sum(store.num_pairs for store in stores),
        "tokens": sum(int(store.source_offsets[-1] + store.target_offsets[-1]) for store in stores),
        "store_bytes": sum(one.size for store in stores for one in store.manifest.files.values()),
        "windows": plan.num_windows(),
        "open_seconds": opened - start,
        "first_batch_seconds": first - opened,
        "first_batch_cpu_seconds": first_cpu - opened_cpu,
        "batches_per_second": num_batches / taken,
        "batches_per_cpu_second": num_batches / taken_cpu,
        "target_tokens_per_cpu_second": tokens / taken_cpu,
        "anonymous_megabytes": peak,
        "anonymous_megabytes_at_start": before,
    }
    print(json.dumps(found))


def weights(folder: Path, steps: int) -> bytes:
    """Those of the last checkpoint of a run."""
    return (folder / "checkpoints" / f"step-{steps:08d}" / "model.safetensors").read_bytes()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures by name."""
    stores, prepared, size = prepare(options, folder)
    batches = look(options, folder, stores)
    whole = train(options, folder, stores, "whole")
    hurt = train(options, folder, stores, "hurt", stop_at=options.steps // 2)
    resumed = train(options, folder, stores, "hurt")
    is_same = weights(folder / "whole", options.steps) == weights(folder / "hurt", options.steps)
    lines = 2 * (options.pairs // options.stores)
    later = prepared[1:] or prepared
    return {
        **batches,
        "text_bytes": size,
        "first_lines_per_cpu_second": lines / prepared[0].cpu_seconds,
        "first_lines_per_second": lines / prepared[0].seconds,
        "lines_per_cpu_second": lines * len(later) / sum(one.cpu_seconds for one in later),
        "lines_per_second": lines * len(later) / sum(one.seconds for one in later),
        "prepare_megabytes": max(one.anonymous_megabytes for one in prepared),
        "train_megabytes": max(one.anonymous_megabytes for one in (whole, hurt, resumed)),
        "start_seconds": whole.first_update_seconds,
        "start_cpu_seconds": whole.first_update_cpu_seconds,
        "resume_seconds": resumed.first_update_seconds,
        "resume_cpu_seconds": resumed.first_update_cpu_seconds,
        "killed_after": options.steps // 2,
        "is_same": is_same,
    }


def page(figures: dict[str, Any], how: dict[str, str]) -> str:
    """The figures as Markdown."""
    rows = [
        ("pairs to train on", "{pairs:,}"),
        ("tokens, both sides, end symbols included", "{tokens:,}"),
        ("text, GB", "{text_gigabytes:.1f}"),
        ("stores, GB", "{store_gigabytes:.1f}"),
        (
            "first store (looked through, then tokenised), lines per second and core",
            "{first_lines_per_cpu_second:,.0f}",
        ),
        ("the same, lines per second of wall time", "{first_lines_per_second:,.0f}"),
        ("stores like it, lines per second and core", "{lines_per_cpu_second:,.0f}"),
        ("the same, lines per second of wall time", "{lines_per_second:,.0f}"),
        ("anonymous memory of `malmoi prepare` at most, all processes, MB", "{prepare_megabytes:,.0f}"),
        ("opening the stores, s", "{open_seconds:.2f}"),
        ("first batch from open stores, s", "{first_batch_seconds:.2f} (processor {first_batch_cpu_seconds:.2f})"),
        ("windows of an epoch", "{windows}"),
        ("batches per second", "{batches_per_second:,.0f} (of processor time {batches_per_cpu_second:,.0f})"),
        ("target tokens per second of processor time", "{target_tokens_per_cpu_second:,.0f}"),
        ("anonymous memory of a process that takes batches, after imports, MB", "{anonymous_megabytes_at_start:.0f}"),
        ("the same at most, MB", "{anonymous_megabytes:.0f}"),
        ("`malmoi train` to its first update, s", "{start_seconds:.1f} (processor {start_cpu_seconds:.1f})"),
        ("killed with -9 after so many updates", "{killed_after}"),
        ("started again, to its next update, s", "{resume_seconds:.1f} (processor {resume_cpu_seconds:.1f})"),
        ("anonymous memory of `malmoi train` at most, MB", "{train_megabytes:,.0f}"),
        ("weights at the end equal those of the undisturbed run bit for bit", "{same}"),
    ]
    values = {
        **figures,
        "text_gigabytes": figures["text_bytes"] / 1e9,
        "store_gigabytes": figures["store_bytes"] / 1e9,
        "same": "yes" if figures["is_same"] else "NO",
    }
    lines = ["# A large corpus in several stores", "", *(f"* {name}: {text}" for name, text in how.items()), ""]
    lines += ["| what | figure |", "|---|---|"]
    lines += [f"| {name} | {value} |".format(**values) for name, value in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=50_000_000)
    parser.add_argument("--stores", type=int, default=5)
    parser.add_argument("--words", type=int, default=4, help="of a line, on average")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long batches are taken")
    parser.add_argument("--folder", type=Path, help="where everything goes (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="malmoi-", dir=options.folder) as folder:
        figures = measure(options, Path(folder))
    names = ("pairs", "stores", "words", "workers", "steps", "batch_tokens", "seed", "seconds")
    how = recipe(
        "benchmarks/large.py", [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in names], options.seed
    )
    if options.out is not None:
        options.out.write_text(page(figures, how), encoding="utf-8")
    print(json.dumps({**how, **figures}) if options.json else page(figures, how))


if __name__ == "__main__":
    main()
