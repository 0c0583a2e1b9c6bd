"""Is `malmoi train` with data alone as good on tiny data as what can be found by hand? Words of five kinds.

    python benchmarks/strings.py --runs runs/strings --seeds 1 2 3 --out benchmarks/results/strings.md
    python benchmarks/strings.py --runs runs/strings --task lemma-de --size 1000 --recipe small --workers 1

`tasks.py` says where the words are from. Every recipe is trained once with the first seed and measured on validation
data, which also chose its checkpoint. The one with the most words right is the best by hand, whichever recipe that is
(zero configuration takes part). Then zero configuration and the best by hand are trained with all seeds and measured on
the test words, which nothing else looks at. A recipe is what stands in `RECIPES` upon the settings that malmoi chooses
for the data. Every run has one thread; `--workers` are trained beside each other. A run that was stopped goes on.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from command import malmoi, table
from peers.environment import python_of
from peers.machine import describe
from tasks import REQUIREMENTS, SIZES, TASKS

LONG = ("training.max_steps=6000", "training.validate_every=200", "training.patience=0")
RECIPES: dict[str, tuple[str, ...]] = {
    "zero": (),
    "long": LONG,
    # Wu, Cotterell and Hulden (2021), "Applying the Transformer to Character-level Transduction", table 2.
    "wu": (
        *LONG,
        "model.encoder_layers=4",
        "model.decoder_layers=4",
        "model.width=256",
        "model.feed_forward=1024",
        "model.dropout=0.3",
        "training.lr=0.001",
        "training.batch_tokens=4096",
    ),
    "pre-norm": (*LONG, "model.norm_place=pre", "model.dropout=0.4", "model.attention_dropout=0.1"),
    "dropout": (*LONG, "model.dropout=0.5"),
    "small": (*LONG, "model.width=64", "model.feed_forward=256", "model.dropout=0.2", "training.lr=0.003"),
    "rnn": (
        *LONG,
        "model.architecture=rnn",
        "model.attention=additive",
        "model.width=128",
        "model.hidden=256",
        "model.dropout=0.4",
        "training.lr=0.002",
    ),
}


@dataclass(frozen=True)
class Run:
    """A recipe on a task."""

    task: str
    size: int
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}-{self.size}-{self.recipe}-{self.seed}"


@dataclass(frozen=True)
class Score:
    """Words that are right, symbols that are wrong, both in %; what the run cost."""

    exact: float
    symbol_error: float
    updates: int
    minutes: float


def train(run: Run, data: Path, runs: Path) -> None:
    """Train, unless that was done; a run that was stopped goes on."""
    folder = runs / run.name
    if not (folder / "model").exists():
        files = [str(data / f"{run.task}.{run.size}.tsv"), "--valid", str(data / f"{run.task}.valid.tsv")]
        settings = [*RECIPES[run.recipe], f"training.seed={run.seed}", "training.threads=1"]
        with (runs / f"{run.name}.log").open("a", encoding="utf-8") as log:
            command = [sys.executable, "-m", "malmoi", "train", *files, "--out", str(folder), *settings]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        print(f"{run.name}: trained", file=sys.stderr, flush=True)


def measure(run: Run, part: str, data: Path, runs: Path) -> Score:
    """The scores of a run's model on a part of the data."""
    words = (str(runs / run.name), str(data / f"{run.task}.{part}.tsv"), "--metric", "exact", "--metric", "ser")
    report = json.loads(malmoi("evaluate", *words, "--threads", "1", "--json"))["report"]
    found = {score["metric"]: score["value"] for score in report["scores"]}
    last = json.loads((runs / run.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return Score(found["exact"], found["ser"], last["step"], last["seconds"] / 60)


def scores(runs: list[Run], part: str, options: argparse.Namespace, data: Path) -> dict[Run, Score]:
    """Train and measure, several beside each other."""

    def one(run: Run) -> Score:
        train(run, data, options.runs)
        return measure(run, part, data, options.runs)

    with ThreadPoolExecutor(options.workers) as pool:
        return dict(zip(runs, pool.map(one, runs), strict=True))


def best_by_hand(cell: tuple[str, int], found: dict[Run, Score]) -> Run:
    """The run with the most words right, then with the fewest wrong symbols."""
    of_cell = {run: score for run, score in found.items() if (run.task, run.size) == cell}
    return max(of_cell, key=lambda run: (of_cell[run].exact, -of_cell[run].symbol_error))


def mean_of(values: list[float]) -> str:
    """Mean and, where there are several, the standard deviation."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def test_table(best: dict[tuple[str, int], Run], test: dict[Run, Score], seeds: list[int]) -> list[str]:
    """Data alone beside the best by hand on test words."""
    rows = [["task", "pairs", "data alone, words right, %", "wrong symbols, %", "best by hand", "words right, %"]]
    rows[0] += ["wrong symbols, %", "data alone against it, points"]
    for (task, size), chosen in best.items():
        cells: list[str] = []
        right: list[float] = []
        for recipe in ("zero", chosen.recipe):
            found = [test[Run(task, size, recipe, seed)] for seed in seeds]
            right.append(statistics.mean(score.exact for score in found))
            cells += [recipe, mean_of([one.exact for one in found]), mean_of([one.symbol_error for one in found])]
        rows.append([task, f"{size:,}", *cells[1:], f"{right[0] - right[1]:+.1f}"])
    return table(rows)


def valid_table(valid: dict[Run, Score]) -> list[str]:
    """Every recipe on validation words."""
    rows = [["task", "pairs", "recipe", "words right, %", "wrong symbols, %", "updates", "minutes"]]
    for run, score in valid.items():
        cells = [f"{score.exact:.1f}", f"{score.symbol_error:.1f}", f"{score.updates:,}", f"{score.minutes:.0f}"]
        rows.append([run.task, f"{run.size:,}", run.recipe, *cells])
    return table(rows)


def page(valid: list[str], test: list[str], options: argparse.Namespace) -> str:
    """What was found, and what it takes to make it again."""
    facts = describe("python " + " ".join(sys.argv), options.seeds[0])
    lines = ["# Words: `malmoi train` with data alone against the best by hand", ""]
    lines += [f"* {key}: {value}" for key, value in facts.items()]
    lines += [f"* packages of the tasks: {', '.join(REQUIREMENTS)}"]
    if test:
        lines += ["", f"## Test words: mean over seeds {' '.join(map(str, options.seeds))}", "", *test]
    lines += ["", f"## Validation words, seed {options.seeds[0]}", "", *valid, "", "## Recipes", ""]
    lines += [f"* {name}: {', '.join(words) or 'the data alone'}" for name, words in RECIPES.items()]
    return "\n".join(lines) + "\n"


def make_tasks(options: argparse.Namespace, data: Path) -> list[tuple[str, int]]:
    """The wanted tasks and sizes, made unless they are there; a task with too few words has no large part."""
    data.mkdir(parents=True, exist_ok=True)
    cells: list[tuple[str, int]] = []
    for task in options.task or TASKS:
        if not (data / f"{task}.test.tsv").exists():
            python = python_of("strings", REQUIREMENTS, options.environments, torch=False)
            subprocess.run([python, str(Path(__file__).with_name("tasks.py")), task, str(data)], check=True)
        cells += [(task, size) for size in options.size or SIZES if (data / f"{task}.{size}.tsv").exists()]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="where runs and data are kept")
    parser.add_argument("--task", action="append", choices=tuple(TASKS))
    parser.add_argument("--size", action="append", type=int, choices=SIZES)
    parser.add_argument(
        "--recipe", action="append", choices=tuple(RECIPES), help="beside zero, which takes part always"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--workers", type=int, default=2, help="runs beside each other, a thread each")
    parser.add_argument("--no-test", action="store_true", help="validation words only")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "malmoi-benchmarks")
    parser.add_argument("--out", type=Path, help="page to write")
    options = parser.parse_args()
    data = options.runs / "data"
    cells = make_tasks(options, data)
    recipes = dict.fromkeys(("zero", *(options.recipe or RECIPES)))
    tried = [Run(task, size, recipe, options.seeds[0]) for task, size in cells for recipe in recipes]
    valid = scores(tried, "valid", options, data)
    test: list[str] = []
    if not options.no_test:
        best = {cell: best_by_hand(cell, valid) for cell in cells}
        chosen = {cell: dict.fromkeys(("zero", run.recipe)) for cell, run in best.items()}
        again = [Run(*cell, recipe, seed) for cell in cells for recipe in chosen[cell] for seed in options.seeds]
        test = test_table(best, scores(again, "test", options, data), options.seeds)
    text = page(valid_table(valid), test, options)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
