"""Two or three systems on the test set of Multi30k: translate with each, measure, compare, write the page.

    python benchmarks/multi30k.py --test test_2016_flickr.lc.norm.tok.en --test test_2016_flickr.lc.norm.tok.de \
        --run Transformer=RUN --run "Seq2Seq + attention=RUN" --run Seq2Seq=RUN --out benchmarks/results/multi30k.md

The runs are those of `configs/multi30k-en-de*.toml` (each file names its command). The first is compared with the
second and the second with the third, by paired bootstrap. `--set KEY=VALUE` is handed to `malmoi translate`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from command import malmoi, table
from peers.machine import describe


def facts_of(run: Path) -> dict[str, Any]:
    """What the model's card and the run's diary tell."""
    card = json.loads((run / "model" / "card.json").read_text(encoding="utf-8"))
    starts = json.loads((run / "environment.json").read_text(encoding="utf-8"))["starts"]
    threads = sorted({start["surroundings"]["threads"] for start in starts})
    config = (run / "config.toml").read_text(encoding="utf-8")
    seed = next(line.split("=")[1].strip() for line in config.splitlines() if line.startswith("seed"))
    return card | {"threads": " and ".join(threads), "seed": seed, "num_starts": len(starts)}


def scores_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores by metric."""
    return {score["metric"]: score for score in report["scores"]}


def systems(names: list[str], facts: list[dict[str, Any]], reports: list[dict[str, Any]]) -> list[str]:
    """One row a system."""
    rows = [["system", "parameters", "updates", "target tokens", "ended by", "BLEU", "chrF2++", "TER"]]
    for name, fact, report in zip(names, facts, reports, strict=True):
        found = scores_of(report)
        counts = [f"{fact[key]:,}" for key in ("num_parameters", "steps", "target_tokens")]
        values = [f"{found[metric]['value']:.2f}" for metric in ("bleu", "chrf", "ter")]
        rows.append([name, *counts, fact["ended_by"], *values])
    return table(rows)


def by_length(names: list[str], reports: list[dict[str, Any]]) -> list[str]:
    """BLEU of each bucket, a column a system."""
    rows = [["source words", "sentences", *names]]
    for buckets in zip(*(report["buckets"] for report in reports), strict=True):
        longest = buckets[0]["longest"]
        rows.append(
            [
                f"{buckets[0]['shortest']} to {longest}"
                if longest is not None
                else f"{buckets[0]['shortest']} or more",
                str(buckets[0]["num_segments"]),
                *(f"{scores_of(bucket)['bleu']['value']:.2f}" for bucket in buckets),
            ]
        )
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", required=True, metavar="NAME=RUN")
    parser.add_argument("--test", action="append", required=True, help="two files, source and target")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", default="0")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [run.split("=", 1)[0] for run in options.run]
    folders = [Path(run.split("=", 1)[1]) for run in options.run]
    settings = [word for setting in options.set for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as scratch:
        outputs: list[str] = []
        for number, folder in enumerate(folders):
            output = Path(scratch) / f"{number}.txt"
            text = malmoi("translate", str(folder), options.test[0], "--threads", options.threads, *settings)
            output.write_text(text, encoding="utf-8")
            outputs.append(str(output))
        measured: list[dict[str, Any]] = []
        for output, other in zip(outputs, [*outputs[1:], None], strict=True):
            against = ["--against", other] if other is not None else []
            words = ("evaluate", output, *options.test, "--tokenize", "none", "--json", *against)
            measured.append(json.loads(malmoi(*words)))
    facts = [facts_of(folder) for folder in folders]
    reports = [one["report"] for one in measured]
    lines = ["# Multi30k English to German, test2016, lower-cased and tokenised text", ""]
    lines += [
        f"* {key}: {value}" for key, value in describe("python " + " ".join(sys.argv), int(facts[0]["seed"])).items()
    ]
    lines += [
        f"* {name}: seed {fact['seed']}, threads {fact['threads']}, {fact['seconds'] / 60:.0f} minutes of training in "
        f"{fact['num_starts']} start(s) beside other work, {fact['weights']}, created {fact['created']}"
        for name, fact in zip(names, facts, strict=True)
    ]
    lines += ["", *systems(names, facts, reports), "", "Signatures: "]
    lines[-1] += ", ".join(f"`{score['signature']}`" for score in reports[0]["scores"])
    lines += ["", "## BLEU by length", "", *by_length(names, reports), "", "## Paired bootstrap", ""]
    rows = [["systems", "metric", "difference", "p"]]
    for first, second, one in zip(names, names[1:], measured, strict=False):
        for row in one["comparison"]["differences"]:
            rows.append(
                [f"{first} against {second}", row["label"], f"{row['difference']:+.2f}", f"{row['p_value']:.4f}"]
            )
    lines += table(rows)
    page = "\n".join(lines) + "\n"
    if options.out:
        options.out.write_text(page, encoding="utf-8")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
