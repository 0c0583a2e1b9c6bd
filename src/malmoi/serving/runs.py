"""Runs of training as a page shows them: a folder of run folders, read while they grow.

In: the folder that the operator named, and the name of a run in it. Out: plain values. Nothing is written or locked. A
name is looked up among the folder's own entries, so that it cannot lead anywhere else.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from malmoi.config import Metric, higher_is_better
from malmoi.errors import ConfigError
from malmoi.serving.limits import RefusedError, shown
from malmoi.settings import read_toml

CONFIG_FILE, METRICS_FILE = "config.toml", "metrics.jsonl"
VALID = "valid_"
STILL_SECONDS = 600.0
"""A run that is not finished and has written nothing for so long is taken for stopped."""
MOST_BYTES = 256 * 2**20

Status = Literal["running", "finished", "stopped"]
Row = dict[str, Any]


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """All runs in a folder, the last changed one first."""
    found = [summary(one) for one in run_folders(folder)]
    return sorted(found, key=lambda one: (-float(one["updated"]), one["name"]))


def read_run(folder: Path, name: str, after: int) -> dict[str, Any]:
    """The rows of one run behind a step, its config and status; `RefusedError` (404) where there is none."""
    run = next((one for one in run_folders(folder) if one.name == name), None)
    if run is None:
        raise RefusedError(404, "no_such_run", f"there is no run {shown(name)!r} here")
    rows = [row for row in read_rows(run / METRICS_FILE) if step_of(row) > after]
    return {"name": name, "rows": rows, "config": read_config(run), "status": status_of(run)}


def run_folders(folder: Path) -> Iterator[Path]:
    """Folders that hold a run; links to elsewhere are none."""
    inside = folder.resolve()
    for entry in sorted(folder.iterdir()):
        if (entry / CONFIG_FILE).is_file() and (entry / METRICS_FILE).is_file() and entry.resolve().parent == inside:
            yield entry


def summary(run: Path) -> dict[str, Any]:
    """A run in one row."""
    rows = list(read_rows(run / METRICS_FILE))
    return {
        "name": run.name,
        "status": status_of(run),
        "step": max(map(step_of, rows), default=0),
        "updated": round((run / METRICS_FILE).stat().st_mtime, 1),
        "best": best_values(rows),
        "parameters": num_parameters(run),
    }


def status_of(run: Path) -> Status:
    """Whether a run goes on."""
    if (run / "model" / CONFIG_FILE).is_file():
        return "finished"
    return "running" if time.time() - (run / METRICS_FILE).stat().st_mtime < STILL_SECONDS else "stopped"


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a file that may be growing: a last line that is not whole yet is none, and what is no number is null."""
    if path.stat().st_size > MOST_BYTES:
        raise RefusedError(400, "run_too_large", "the metrics of this run are too large to be shown")
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            row: Any = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield {key: plain(value) for key, value in cast(Row, row).items()}


def plain(value: Any) -> Any:
    """A value that JSON has."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def step_of(row: Row) -> int:
    step = row.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else 0


def best_values(rows: list[Row]) -> dict[str, float]:
    """The best value of each validation metric."""
    found: dict[str, float] = {}
    for row in rows:
        for key, value in row.items():
            name = key.removeprefix(VALID)
            if key == name or name not in get_args(Metric) or not isinstance(value, int | float):
                continue
            better = max if higher_is_better(cast("Metric", name)) else min
            found[name] = better(found.get(name, float(value)), float(value))
    return found


def num_parameters(run: Path) -> int | None:
    """Of the finished model, or of a checkpoint; None as long as there is neither."""
    for card in (run / "model" / "card.json", *sorted(run.glob("checkpoints/*/card.json"))):
        try:
            value: Any = json.loads(card.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        number = cast(Row, value).get("num_parameters") if isinstance(value, dict) else None
        if isinstance(number, int):
            return number
    return None


def read_config(run: Path) -> Mapping[str, Any]:
    """The settings of a run, as they are written down; empty where they cannot be read."""
    try:
        return read_toml(run / CONFIG_FILE)
    except ConfigError:
        return {}
