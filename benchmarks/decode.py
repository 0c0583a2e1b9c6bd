"""How fast malmoi decodes against its peers, in turn within one call, with the same weights and sentences.

    python benchmarks/decode.py --size tiny --out benchmarks/results/decode-tiny.md
    python benchmarks/decode.py --size paper-base --out benchmarks/results/decode-paper-base.md
    python benchmarks/decode.py --model RUN --source test.en --reference test.de
    python benchmarks/decode.py --quick

Systems: malmoi with its engine (fp32, int8) and without it, CTranslate2 with copies that `malmoi export` made (float32,
int8), `generate` of Hugging Face with a Marian model (random weights; in an environment of its own). One that cannot be
installed or run is reported with the reason.

Without `--model` weights are random, with a vocabulary of 10,000 words. Such a model seldom says `</s>`, so that the
length of all outputs is fixed on all sides (`--tokens`, 16); outputs of another length are counted and shown. A trained
model writes as much as it likes. Beside one, Hugging Face has a model of the same sizes with random weights: it is
given as many tokens as the sentences have, and writes as many as ours did in the mean. Tokens are those of the best
outputs, end symbols not counted.

First each system is tried with every way to share out the cores (batches at once x threads in each) and every size of
batches, on a few sentences; the fastest takes part in the rounds. The same for single sentences. All take turns,
each turn is a process of its own, the order turns round from one round to the next. Sentences are sorted by length by
the systems themselves (for Hugging Face here). malmoi's time includes text to ids and back, CTranslate2's the way back.
Memory is the highest resident memory of the process of a turn. Linux only.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoders.material import (
    SIZES,
    VOCABULARY,
    bleu,
    export,
    make_model,
    num_parameters,
    sizes_of,
    stand_in,
    write_sentences,
)
from decoders.report import Report, Row, Start, as_markdown
from decoders.task import Cell, Task, from_json, splits
from peers.environment import UnavailableError, python_of
from peers.huggingface import REQUIREMENTS
from peers.machine import describe, measure_apart

SYSTEMS = ("malmoi-fp32", "malmoi-int8", "malmoi-plain", "ctranslate2-float32", "ctranslate2-int8", "huggingface-fp32")
TRIAL_SINGLE = 8
SHORT = 10


@dataclass
class Entry:
    """A system with its model."""

    name: str
    label: str
    python: str
    model: str
    precision: str
    shares: list[tuple[int, int]]
    start: list[str]
    """The command that translates ten sentences of standard input; empty: there is none."""
    is_random: bool = False
    """Random weights beside trained ones."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny", help="of random weights")
    parser.add_argument("--model", type=Path, help="a trained model, or a run")
    parser.add_argument("--source", type=Path, help="with --model: sentences")
    parser.add_argument("--reference", type=Path, help="with --model: their translations, tokenised")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=SYSTEMS, help=", ".join(SYSTEMS))
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=1024, help="of random words")
    parser.add_argument(
        "--trial-sentences", type=int, default=256, help="at least; a batch for each worker in any case"
    )
    parser.add_argument("--single", type=int, default=100, help="sentences that are translated one by one in a round")
    parser.add_argument("--seconds", type=float, default=5.0, help="shortest turn; a whole pass in any case")
    parser.add_argument("--tokens", type=int, default=16, help="of every output where weights are random")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="cores to use")
    parser.add_argument("--turn-seconds", type=float, default=1800.0, help="longest turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="see that it works, in two minutes; figures mean little")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "malmoi-benchmarks")
    parser.add_argument("--folder", type=Path, help="working files, kept (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if options.model and not options.source:
        parser.error("--model needs --source")
    if options.quick:
        options.rounds, options.sentences, options.trial_sentences, options.single = 1, 32, 16, 4
        options.seconds, options.batch_sizes, options.beams = 0.0, [16], [5]
        options.only = options.only or [name for name in SYSTEMS if not name.startswith("huggingface")]
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def enter(options: argparse.Namespace, model: Path, workspace: Path, left_out: dict[str, str]) -> list[Entry]:
    """Who takes part; `left_out` is told about the others."""
    cores, entries = options.threads, list[Entry]()
    inside = sorted({(1, cores), (1, 1)})
    translate = [sys.executable, "-m", "malmoi", "translate", str(model), "--quiet"]
    for name in options.only or SYSTEMS:
        system, precision = name.rsplit("-", 1)
        python = sys.executable
        match system:
            case "malmoi" if precision == "plain":
                entries.append(Entry(name, "malmoi, plain torch", python, str(model), "fp32", inside, []))
            case "malmoi":
                shares = sorted({(cores, 1), (1, 1)})
                start = [*translate, "--set", f"precision={precision}"]
                entries.append(
                    Entry(name, f"malmoi, engine, {precision}", python, str(model), precision, shares, start)
                )
            case "ctranslate2":
                say(f"{name}: exporting")
                copy, note = export(model, workspace, precision)
                label = f"CTranslate2, {precision}" + (f" ({note})" if note else "")
                shares, start = sorted({*splits(cores), (1, 1)}), [python, str(copy / "translate.py")]
                entries.append(Entry(name, label, python, str(copy), precision, shares, start))
            case _:
                try:
                    python = python_of("huggingface", tuple(REQUIREMENTS.split()), options.environments)
                except UnavailableError as reason:
                    left_out["Hugging Face"] = str(reason)
                    continue
                maybe_sizes = sizes_of(model) if options.model else SIZES[options.size] | {"vocabulary": VOCABULARY}
                if maybe_sizes is None:
                    left_out["Hugging Face"] = "has no such model"
                    continue
                label = "Hugging Face generate, fp32" + (" (random weights)" if options.model else "")
                told = json.dumps(maybe_sizes | {"vocabulary": maybe_sizes["vocabulary"] - 2})
                entries.append(Entry(name, label, python, told, "fp32", inside, [], is_random=bool(options.model)))
    return entries


def take_turn(entry: Entry, task: Task, workspace: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One turn in a process of its own; `UnavailableError` with its last words where it fails."""
    path = workspace / "task.json"
    task.write(path)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    command = [entry.python, "-m", "decoders.turn", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=options.turn_seconds
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"took more than {options.turn_seconds:.0f} s for a turn") from None
    if done.returncode:
        spoken = [line for line in done.stderr.splitlines() if line.strip()]
        raise UnavailableError((spoken or ["it said nothing"])[-1][:300])
    return json.loads(done.stdout.splitlines()[-1])


def task_of(entry: Entry, beam: int, sources: Path, options: argparse.Namespace, num_tokens: int) -> Task:
    """`num_tokens`: of every output, where weights are random."""
    return Task(
        system=entry.name,
        model=entry.model,
        precision=entry.precision,
        workers=1,
        threads=1,
        sources=str(sources),
        beam=beam,
        batch_sizes=tuple(options.batch_sizes),
        num_tokens=num_tokens if entry.is_random or not options.model else 0,
        num_single=TRIAL_SINGLE,
        seconds=0.0,
        outputs="",
        seed=options.seed,
    )


@dataclass
class Contest:
    """A system with one beam: what was chosen, its row."""

    entry: Entry
    row: Row
    task: Task
    single: Task


def try_out(
    entry: Entry, beam: int, files: dict[str, Path], workspace: Path, options: argparse.Namespace, num_tokens: int
) -> Contest:
    """Choose how cores are shared and the size of batches, for many sentences and for single ones."""
    sources = files["stand-in" if entry.is_random else "all"]
    row, best, quickest = Row(entry.name, entry.label, beam), (0.0, Cell(0, 0, 0, 0), (1, 1)), (float("inf"), (1, 1))
    for share in entry.shares:
        # Less than a batch for each worker would leave some without work.
        count = max(options.trial_sentences, share[0] * max(options.batch_sizes))
        trial = workspace / "trial.txt"
        write_lines(trial, spread(read_lines(sources), count))
        task = replace(task_of(entry, beam, trial, options, num_tokens), workers=share[0], threads=share[1])
        told = take_turn(entry, task, workspace, options)
        for cell in from_json(told):
            row.trials.append(f"{share[0]} x {share[1]}, {cell.batch_size}: {cell.tokens_per_second:,.0f}")
            best = max(best, (cell.tokens_per_second, cell, share), key=lambda one: one[0])
        middle = statistics.median(told["single"])
        row.trials.append(f"{share[0]} x {share[1]}, one by one: {1000 * middle:.1f} ms")
        quickest = min(quickest, (middle, share))
    (workers, threads), (single_workers, single_threads) = best[2], quickest[1]
    row.how = f"{workers} x {threads} threads, batches of {best[1].batch_size}"
    row.how_single = f"{single_workers * single_threads} threads"
    say(f"{entry.name}, beam {beam}: {best[0]:,.0f} tokens/s with {row.how}")
    row.mean_tokens = best[1].tokens_per_second / best[1].sentences_per_second
    plain = replace(task_of(entry, beam, sources, options, num_tokens), seconds=options.seconds)
    has_bleu = options.reference and not entry.is_random
    outputs = str(workspace / f"{entry.name}-{beam}.txt") if has_bleu else ""
    sizes = (best[1].batch_size,)
    task = replace(plain, workers=workers, threads=threads, batch_sizes=sizes, num_single=0, outputs=outputs)
    single = replace(
        plain, workers=single_workers, threads=single_threads, batch_sizes=(), num_single=options.single, outputs=""
    )
    return Contest(entry, row, task, single)


def take_part(contest: Contest, workspace: Path, options: argparse.Namespace) -> None:
    """Both turns of a round."""
    row = contest.row
    told = take_turn(contest.entry, contest.task, workspace, options)
    (cell,) = from_json(told)
    row.tokens_per_second.append(cell.tokens_per_second)
    row.sentences_per_second.append(cell.sentences_per_second)
    row.peak_bytes = max(row.peak_bytes, told["peak_bytes"])
    row.loading.append(told["loaded"])
    row.num_wrong, row.versions = told["num_wrong"], told["versions"]
    if contest.task.outputs:
        num_lines = options.sentences if options.quick else None
        row.bleu = bleu(Path(contest.task.outputs), options.reference, num_lines)
    row.single.append(take_turn(contest.entry, contest.single, workspace, options)["single"])
    say(f"{contest.entry.name}, beam {row.beam}: {cell.tokens_per_second:,.0f} tokens/s")


def time_starts(entries: list[Entry], short: bytes, rounds: int, left_out: dict[str, str]) -> list[Start]:
    """Process start to process end, in turn."""
    starts = {entry.name: Start(entry.label, []) for entry in entries if entry.start}
    for _ in range(rounds):
        for entry in entries:
            if entry.name not in starts:
                continue
            began = time.perf_counter()
            done = subprocess.run(entry.start, input=short, capture_output=True, check=False)
            if done.returncode or done.stdout.count(b"\n") != SHORT:
                left_out[f"{entry.label}, from the shell"] = done.stderr.decode(errors="replace")[-300:]
                del starts[entry.name]
                continue
            starts[entry.name].seconds.append(time.perf_counter() - began)
    return list(starts.values())


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def spread(lines: list[str], count: int) -> list[str]:
    """So many lines, or all, at even distances, so that the mixture of lengths is that of all."""
    count = min(count, len(lines))
    return [lines[index * len(lines) // count] for index in range(count)]


def prepare(options: argparse.Namespace, workspace: Path) -> tuple[Path, dict[str, Path]]:
    """The model folder, and files of sentences: `all`, and `short` for the start."""
    files = {name: workspace / f"{name}.txt" for name in ("all", "short")}
    model = options.model or workspace / "model"
    if options.model is None:
        if not model.exists():
            make_model(model, options.size, options.seed)
        write_sentences(files["all"], options.sentences, options.seed)
    else:
        files["all"].write_bytes(options.source.read_bytes().removesuffix(b"\n") + b"\n")
    lines = read_lines(files["all"])
    if options.quick:
        lines = lines[: options.sentences]
        write_lines(files["all"], lines)
    write_lines(files["short"], sorted(lines, key=len)[:SHORT])
    if options.model:
        files["stand-in"] = workspace / "stand-in.txt"
        write_lines(files["stand-in"], stand_in(model, lines))
    return model.absolute(), files


def compare(options: argparse.Namespace, workspace: Path) -> Report:
    """Everything from the weights to the report."""
    model, files = prepare(options, workspace)
    ceilings = measure_apart(options.threads)
    left_out: dict[str, str] = {}
    entries = enter(options, model, workspace, left_out)
    contests: list[Contest] = []
    for entry in entries:
        for beam in options.beams:
            ours = [contest.row.mean_tokens for contest in contests if contest.row.beam == beam]
            num_tokens = round(ours[0]) if options.model and ours else options.tokens
            try:
                contests.append(try_out(entry, beam, files, workspace, options, num_tokens))
            except UnavailableError as reason:
                left_out[f"{entry.label}, beam {beam}"] = str(reason)
                say(f"{entry.name}: {reason}")
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        for contest in contests[:: -1 if number % 2 else 1]:
            take_part(contest, workspace, options)
    able = [entry for entry in entries if any(contest.entry is entry for contest in contests)]
    starts = time_starts(able, files["short"].read_bytes(), options.rounds, left_out)
    num_lines = files["all"].read_bytes().count(b"\n")
    what = f"{options.model.name}, {options.source.name}" if options.model else f"{options.size}, random weights"
    length = "as long as the model likes" if options.model else f"{options.tokens} tokens each, fixed on all sides"
    return Report(
        how=describe("python benchmarks/decode.py " + " ".join(sys.argv[1:]), options.seed),
        title=what,
        facts=[
            f"model: {num_parameters(model):,} weights; {num_lines:,} sentences; outputs {length}",
            f"{options.threads} cores; product of two matrices, fp32: {ceilings['fp32']:.0f} GFLOP/s "
            f"({ceilings['kernels']})",
            f"{options.rounds} rounds, {options.single} single sentences in each; ratios are medians over the rounds",
        ],
        rows=[contest.row for contest in contests],
        starts=starts,
        left_out=left_out,
    )


def main() -> None:
    options = parse()
    workspace = (options.folder or Path(tempfile.mkdtemp(prefix="malmoi-decode-"))).absolute()
    workspace.mkdir(parents=True, exist_ok=True)
    try:
        report = compare(options, workspace)
    finally:
        if options.folder is None:
            shutil.rmtree(workspace, ignore_errors=True)
    print(json.dumps(report.as_json(), indent=1) if options.json else as_markdown(report))
    if options.out:
        options.out.write_text(as_markdown(report), encoding="utf-8")


if __name__ == "__main__":
    main()
