"""How fast malmoi trains against its peers, in turn within one call: real commands, the same data, sizes and batches.

    python benchmarks/train.py --data multi30k/bpe-en-de --out benchmarks/results/train-tiny.md
    python benchmarks/train.py --size paper-base --rounds 3 --out benchmarks/results/train-paper-base.md
    python benchmarks/train.py --size rnn --only malmoi malmoi-ranks eole joeynmt

Peers: a plain loop around `torch.nn.Transformer`, Marian with the trainer of Hugging Face, Eole, Sockeye, JoeyNMT. Each
of the toolkits is installed with pinned versions into an environment of its own under `--environments`. One that cannot
be installed or run is reported with the reason.

A figure is real target tokens per second of whole updates in steady state: tokens that go into the model, end symbols
included, padding not, counted on their way in by a probe around the toolkit's own step (`peers/probe.py`; malmoi's own
count is checked against its store), over the time between the ends of updates. First all are tried with each choice of
threads and processes for a few updates; the fastest choice of each takes part in the rounds, with a batch scaled so
that an update holds as many target tokens as one of malmoi. Every turn is a new process, and its first updates are cut
off. Memory is the highest sum of resident memory over the processes of a turn. Linux only.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from peers.corpus import open_corpus
from peers.environment import UnavailableError, python_of, run
from peers.eole import EOLE
from peers.huggingface import HUGGINGFACE
from peers.joeynmt import JOEYNMT
from peers.machine import describe, higher, measure_apart
from peers.malmoi import MALMOI, MALMOI_RANKS, check_count, num_parameters, tokens_of_epoch
from peers.plain import PLAIN
from peers.report import Report, Row, Trial, as_markdown
from peers.setting import SIZES, Contestant, Corpus, Precision, Setting
from peers.sockeye import SOCKEYE
from peers.turn import Turn, environment_of, take_turn

CONTESTANTS = (MALMOI, MALMOI_RANKS, PLAIN, HUGGINGFACE, EOLE, SOCKEYE, JOEYNMT)
OURS = (MALMOI, MALMOI_RANKS)
TRIAL_WARM_UP, TRIAL_UPDATES = 2, 4
TOLERANCE = 0.1
"""By which an update may differ from one of malmoi in its target tokens."""
UPDATES = {"tiny": (10, 30), "rnn": (10, 30), "paper-base": (2, 6)}
"""Warm-up and measured updates of a turn."""


@dataclass
class Entry:
    """A contestant with one precision: what was tried, what was chosen, its turns."""

    contestant: Contestant
    precision: Precision
    setting: Setting
    python: str
    trials: list[Trial] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contestant.name if self.precision == "fp32" else f"{self.contestant.name}-{self.precision}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {self.precision}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.en, train.de, valid.en, valid.de, tokenised")
    parser.add_argument("--languages", nargs=2, default=("en", "de"), help="endings of the two sides")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(one.name for one in CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, help="measured updates of a turn (tiny and rnn: 30, paper-base: 6)")
    parser.add_argument("--warm-up", type=int, help="updates cut off before them (tiny and rnn: 10, paper-base: 2)")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="of malmoi: pairs times the longest side")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="processors to use")
    parser.add_argument("--no-trials", action="store_true", help="all threads in one process, batches not scaled")
    parser.add_argument("--bf16", choices=("auto", "yes", "no"), default="auto", help="auto: where products are fast")
    parser.add_argument(
        "--better-precision", action="store_true", help="of a peer only the precision that was faster when tried"
    )
    parser.add_argument("--turn-seconds", type=float, default=1800.0, help="longest turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "malmoi-benchmarks")
    parser.add_argument("--folder", type=Path, help="working files, kept (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if options.better_precision and options.no_trials:
        parser.error("--better-precision goes by trials: leave --no-trials away")
    unknown = set(options.only or ()) - {one.name for one in CONTESTANTS}
    if unknown:
        parser.error(f"no such contestant: {', '.join(sorted(unknown))}")
    warm_up, updates = UPDATES[options.size]
    options.warm_up = warm_up if options.warm_up is None else options.warm_up
    options.updates = updates if options.updates is None else options.updates
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def enter(
    options: argparse.Namespace, corpus: Corpus, workspace: Path, *, bf16: bool, left_out: dict[str, str]
) -> list[Entry]:
    """Who takes part, installed and with its data prepared; `left_out` is told about the others."""
    entries: list[Entry] = []
    for contestant in CONTESTANTS:
        if options.only and contestant.name not in options.only:
            continue
        if options.size not in contestant.sizes:
            left_out[contestant.label] = f"has no model of size {options.size}"
            continue
        folder = workspace / contestant.name
        setting = Setting(
            size=SIZES[options.size],
            corpus=corpus,
            prepared=folder / "prepared",
            folder=folder / "turn",
            record=folder / "record",
            precision="fp32",
            threads=max(1, options.threads // contestant.processes[0]),
            processes=contestant.processes[0],
            batch_tokens=options.batch_tokens,
            seed=options.seed,
        )
        setting.prepared.mkdir(parents=True, exist_ok=True)
        say(f"{contestant.name}: preparing")
        try:
            python = python_of(contestant.name, contestant.requirements, options.environments)
            for command in contestant.prepare(setting, python):
                run(command, contestant.name, setting.prepared, environment_of(setting))
        except UnavailableError as reason:
            left_out[contestant.label] = str(reason)
            say(str(reason))
            continue
        for precision in contestant.precisions:
            if precision == "fp32" or bf16:
                entries.append(Entry(contestant, precision, replace(setting, precision=precision), python))
            else:
                left_out[f"{contestant.label}, bf16"] = "products of bf16 are slow here (--bf16 yes tries all the same)"
    return entries


def choices(entry: Entry, threads: int) -> list[Setting]:
    """Every number of processes with all threads between them; one process also with a single thread."""
    settings: list[Setting] = []
    for processes in entry.contestant.processes:
        if processes <= threads or processes == entry.contestant.processes[0]:
            settings.append(replace(entry.setting, processes=processes, threads=max(1, threads // processes)))
    if entry.contestant.processes[0] == 1 and threads > 1:
        settings.append(replace(entry.setting, processes=1, threads=1))
    return settings


def turn_of(entry: Entry, setting: Setting, options: argparse.Namespace, warm_up: int, updates: int) -> Turn:
    """One turn; malmoi's count of tokens is checked."""
    turn = take_turn(
        entry.contestant, setting, entry.python, warm_up=warm_up, updates=updates, seconds=options.turn_seconds
    )
    if entry.contestant in OURS:
        check_count(setting, turn.updates)
    say(f"{entry.name}, {setting.processes} x {setting.threads} threads: {turn.speed:,.0f} target tokens per second")
    return turn


def try_out(entries: list[Entry], options: argparse.Namespace, left_out: dict[str, str]) -> list[Entry]:
    """Choose threads and processes of each, and scale its batch to the real tokens of the first one's updates."""
    maybe_wanted: float | None = None
    able: list[Entry] = []
    for entry in entries:
        best: Turn | None = None
        reasons: list[str] = []
        for setting in choices(entry, options.threads):
            try:
                turn = turn_of(entry, setting, options, TRIAL_WARM_UP, TRIAL_UPDATES)
            except UnavailableError as reason:
                reasons.append(f"{setting.processes} x {setting.threads} threads: {reason}")
                entry.trials.append(Trial(setting.processes, setting.threads, None, str(reason)))
                say(str(reason))
                continue
            entry.trials.append(Trial(setting.processes, setting.threads, turn.speed, None))
            if best is None or turn.speed > best.speed:
                best, entry.setting = turn, setting
        if best is None:
            left_out[entry.label] = "; ".join(reasons)
            continue
        if maybe_wanted is None:
            is_ours = entry.contestant in OURS
            maybe_wanted = mean(tokens_of_epoch(entry.setting, 0)) if is_ours else best.tokens_per_update
        entry.setting = replace(entry.setting, batch_tokens=scaled(entry, best.tokens_per_update, maybe_wanted))
        able.append(entry)
    return able


def speed_when_tried(entry: Entry) -> float:
    return max(trial.speed for trial in entry.trials if trial.speed is not None)


def keep_better(entries: list[Entry], left_out: dict[str, str]) -> list[Entry]:
    """All of malmoi's, and the faster precision of each peer; `left_out` is told what the others reached."""
    kept: list[Entry] = []
    for entry in entries:
        others = [one for one in entries if one.contestant is entry.contestant and one is not entry]
        faster = [one for one in others if speed_when_tried(one) > speed_when_tried(entry)]
        if entry.contestant in OURS or not faster:
            kept.append(entry)
            continue
        speeds = f"{speed_when_tried(entry):,.0f} target tokens per second, {speed_when_tried(faster[0]):,.0f}"
        left_out[entry.label] = f"when tried, {speeds} in {faster[0].precision}"
    return kept


def scaled(entry: Entry, tokens_per_update: float, wanted: float) -> int:
    """The batch in the contestant's own count that holds the wanted target tokens; about right is left as it is."""
    now = entry.setting.batch_tokens
    match entry.contestant.batch_counts:
        case "as malmoi":
            return now
        case "target tokens":
            return round(wanted)
        case "otherwise":
            factor = wanted / tokens_per_update
            return now if abs(factor - 1) < TOLERANCE else round(now * factor)


def take_rounds(entries: list[Entry], options: argparse.Namespace, left_out: dict[str, str]) -> None:
    """All in turn, as often as there are rounds; the order turns round from one round to the next."""
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        for entry in entries[:: -1 if number % 2 else 1]:
            if entry.label in left_out:
                continue
            try:
                entry.turns.append(turn_of(entry, entry.setting, options, options.warm_up, options.updates))
            except UnavailableError as reason:
                left_out[entry.label] = str(reason)
                say(str(reason))


def row_of(entry: Entry) -> Row:
    """The figures of an entry's turns."""
    setting = entry.setting
    return Row(
        name=entry.name,
        label=entry.label,
        is_ours=entry.contestant in OURS,
        speeds=[turn.speed for turn in entry.turns],
        peak_megabytes=max(turn.peak_bytes for turn in entry.turns) / 2**20,
        tokens_per_update=sum(turn.tokens_per_update for turn in entry.turns) / len(entry.turns),
        losses=entry.turns[-1].losses,
        how=f"{setting.processes} x {setting.threads} threads, batch {setting.batch_tokens:,}",
        trials=entry.trials,
        versions=next(
            (word for word in entry.contestant.requirements if word.lower().startswith(package_of(entry))), ""
        ),
        counted=entry.contestant.counted,
        differs=entry.contestant.differs,
    )


def package_of(entry: Entry) -> str:
    return {"huggingface": "transformers"}.get(entry.contestant.name, entry.contestant.name) + "=="


def compare(options: argparse.Namespace, workspace: Path) -> Report:
    """Everything from the corpus to the report."""
    ceilings = measure_apart(options.threads)
    corpus = open_corpus(options.data, tuple(options.languages), workspace, options.seed)
    say(f"{corpus.description}; products: {ceilings}")
    left_out: dict[str, str] = {}
    bf16 = options.bf16 == "yes" or (options.bf16 == "auto" and ceilings["bf16_is_useful"])
    entries = enter(options, corpus, workspace, bf16=bf16, left_out=left_out)
    if not options.no_trials:
        entries = try_out(entries, options, left_out)
        if options.better_precision:
            entries = keep_better(entries, left_out)
    take_rounds(entries, options, left_out)
    ceilings = higher(ceilings, measure_apart(options.threads))
    size = SIZES[options.size]
    ours = [entry for entry in entries if entry.contestant in OURS]
    return Report(
        how=describe("python benchmarks/train.py " + " ".join(sys.argv[1:]), options.seed),
        size=size,
        corpus=corpus.description,
        num_parameters=num_parameters(ours[0].setting) if ours else None,
        ceilings=ceilings,
        rounds=options.rounds,
        updates=options.updates,
        warm_up=options.warm_up,
        rows=[row_of(entry) for entry in entries if entry.turns],
        left_out=left_out,
    )


def main() -> None:
    options = parse()
    # An end by a signal goes the way of all ends, so that no turn runs on without this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    workspace = (options.folder or Path(tempfile.mkdtemp(prefix="malmoi-benchmark-"))).absolute()
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
