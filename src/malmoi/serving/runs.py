"""Runs of training as a page shows them: a folder of run folders, read while they grow.

In: the folder that the operator named, and the name of a run in it. Out: plain values. Nothing is written or locked. A
name is looked up among the folder's own entries, so that it cannot lead anywhere else. Of metrics no more than the last
part is read, and that once: what was read is kept as a few numbers, with places in the file from which to read again.
"""

import json
import os
import time
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from malmoi.config.training import Metric, higher_is_better
from malmoi.log import get_logger
from malmoi.serving.limits import RefusedError, shown
from malmoi.serving.run_files import MOST_INTEGER, maybe_read, open_inside, plain, whole_lines

CONFIG_FILE, METRICS_FILE = "config.toml", "metrics.jsonl"
METRIC_KEYS: Mapping[str, Metric] = {f"valid_{name}": name for name in get_args(Metric)}
STILL_SECONDS = 600.0
"""A run that is not finished and has written nothing for so long is taken for stopped."""
MOST_BYTES = 16 * 2**20
"""Only so much of the end of a file of metrics is read."""
MOST_RUNS = 200
"""So many runs are listed, those that changed last."""
MOST_ROWS, MOST_ANSWER_BYTES = 10_000, 4 * 2**20
"""What one answer holds; the rest comes with the next one."""
MARK_BYTES = 2**16
MOST_CONFIG_BYTES, MOST_CARD_BYTES = 2**18, 2**22
DECODER = json.JSONDecoder(parse_constant=lambda _: None)

Status = Literal["running", "finished", "stopped"]
Row = dict[str, Any]


@dataclass
class Record:
    """What is known of a file of metrics, as far as it was read."""

    identity: tuple[int, int]
    end: int
    state: tuple[int, int] = (0, 0)
    last: bytes = b""
    """The line before the end: where it is another one, the file was cut back or written anew."""
    step: int = 0
    best: dict[str, float] = field(default_factory=dict[str, float])
    marks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Places where a line begins, each with the highest step before it."""
    maybe_parameters: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the first line is among those that are read."""
        return self.shown_marks()[0][0] == 0

    def shown_marks(self) -> list[tuple[int, int]]:
        """Those that are not too far from the end."""
        return [mark for mark in self.marks if mark[0] >= self.end - MOST_BYTES] or self.marks[-1:]

    def place_of(self, after: int) -> int:
        """A place with all shown rows of higher steps behind it."""
        marks = self.shown_marks()
        return marks[max(0, bisect_right(marks, after, key=lambda mark: mark[1]) - 1)][0]

    def is_of(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Whether a file is the one that was read, or that one with more behind it."""
        if (found.st_mtime_ns, found.st_size) == self.state:
            return self.identity == (found.st_dev, found.st_ino)
        is_longer = self.state[1] < found.st_size <= self.end + MOST_BYTES
        if self.identity != (found.st_dev, found.st_ino) or not is_longer:
            return False
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last

    def read(self, file: BinaryIO, found: os.stat_result) -> None:
        """Take in what is new."""
        for place, line in whole_lines(file, self.end, found.st_size):
            self.end, self.last = place, line
            row = maybe_row(line)
            if row is not None:
                self.step = max(self.step, step_of(row))
                add_best(self.best, row)
            if place - self.marks[-1][0] >= MARK_BYTES:
                self.marks.append((place, self.step))
                # Whoever translates has the interpreter meanwhile.
                time.sleep(0.001)
        self.state = (found.st_mtime_ns, found.st_size)


class RunList:
    """The runs in a folder, with what is known of them; for one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, Record] = {}
        self.odd: set[str] = set()

    def list(self) -> dict[str, Any]:
        """Runs, the last changed one first, and of how many that changed earlier nothing is said; one that cannot be
        read is passed over."""
        runs = sorted(run_folders(self.folder), key=lambda run: (-round(changed_at(run), 1), run.name))
        shown = runs[:MOST_RUNS]
        names = {run.name for run in shown}
        self.records = {name: record for name, record in self.records.items() if name in names}
        found = [summary for summary in map(self.maybe_summary, shown) if summary is not None]
        return {"runs": found, "left_out": len(runs) - len(shown)}

    def maybe_summary(self, run: Path) -> dict[str, Any] | None:
        """A run in one row."""
        try:
            with open_inside(run, METRICS_FILE) as file:
                record = self.follow(run, file)
                updated = os.fstat(file.fileno()).st_mtime
            if record.maybe_parameters is None:
                record.maybe_parameters = num_parameters(run)
            return {
                "name": plain(run.name),
                "status": status_of(run, updated),
                "step": record.step,
                "updated": round(updated, 1),
                "best": record.best,
                "parameters": record.maybe_parameters,
                "whole": record.whole,
            }
        except Exception as error:  # noqa: BLE001
            if run.name not in self.odd and len(self.odd) < MOST_ROWS:
                self.odd.add(run.name)
                get_logger().warning("the run %s cannot be shown (%s)", shown(run.name), type(error).__name__)
            return None

    def read(self, name: str, after: int) -> dict[str, Any]:
        """The next rows of one run behind a step, its config and status; `RefusedError` (404) where there is none."""
        run = next((one for one in run_folders(self.folder) if plain(one.name) == name), None)
        if run is None:
            raise RefusedError(404, "no_such_run", f"there is no run {shown(name)!r} here")
        try:
            with open_inside(run, METRICS_FILE) as file:
                record = self.follow(run, file)
                rows, more = read_rows(file, record, after)
                updated = os.fstat(file.fileno()).st_mtime
        except (OSError, RuntimeError) as error:
            raise RefusedError(404, "no_such_run", "the metrics of this run cannot be read") from error
        return {
            "name": name,
            "rows": rows,
            "more": more,
            "whole": record.whole,
            "config": read_config(run),
            "status": status_of(run, updated),
        }

    def follow(self, run: Path, file: BinaryIO) -> Record:
        """What is known of a run's metrics, with what is new in them."""
        found = os.fstat(file.fileno())
        record = self.records.get(run.name)
        if record is None or not record.is_of(file, found):
            record = begin_record(file, found)
        if (found.st_mtime_ns, found.st_size) != record.state:
            record.read(file, found)
        self.records[run.name] = record
        return record


def begin_record(file: BinaryIO, found: os.stat_result) -> Record:
    """Nothing is known yet; of a large file the end will be."""
    begin = max(0, found.st_size - MOST_BYTES)
    if begin:
        begin = next((place for place, _ in whole_lines(file, begin, found.st_size)), found.st_size)
    return Record((found.st_dev, found.st_ino), begin, marks=[(begin, -1)])


def read_rows(file: BinaryIO, record: Record, after: int) -> tuple[list[Row], bool]:
    """Rows behind a step, as many as one answer holds, and whether there are more."""
    rows: list[Row] = []
    num_bytes = 0
    for _, line in whole_lines(file, record.place_of(after), record.end):
        row = maybe_row(line)
        if row is None or step_of(row) <= after:
            continue
        if len(rows) == MOST_ROWS or num_bytes > MOST_ANSWER_BYTES:
            return rows, True
        rows.append(plain(row))
        num_bytes += len(line)
    return rows, False


def run_folders(folder: Path) -> Iterator[Path]:
    """Folders that hold a run; links to elsewhere are none."""
    try:
        inside, entries = folder.resolve(), sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            is_run = (entry / CONFIG_FILE).is_file() and (entry / METRICS_FILE).is_file()
            is_run = is_run and entry.resolve().parent == inside
        except (OSError, RuntimeError):
            continue
        if is_run:
            yield entry


def changed_at(run: Path) -> float:
    """When a run last wrote a row."""
    try:
        return (run / METRICS_FILE).stat().st_mtime
    except OSError:
        return 0.0


def status_of(run: Path, updated: float) -> Status:
    """Whether a run goes on."""
    if (run / "model" / CONFIG_FILE).is_file():
        return "finished"
    return "running" if time.time() - updated < STILL_SECONDS else "stopped"


def maybe_row(line: bytes) -> Row | None:
    """A line as a row, not yet plain."""
    try:
        row: Any = DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return cast(Row, row) if isinstance(row, dict) else None


def step_of(row: Row) -> int:
    step = row.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and abs(step) < MOST_INTEGER else 0


def add_best(best: dict[str, float], row: Row) -> None:
    """Take the values of validation metrics that are better."""
    for key in METRIC_KEYS.keys() & row.keys():
        name, value = METRIC_KEYS[key], plain(row[key])
        if isinstance(value, int | float) and not isinstance(value, bool):
            better = max if higher_is_better(name) else min
            best[name] = better(best.get(name, float(value)), float(value))


def num_parameters(run: Path) -> int | None:
    """Of the finished model, or of a checkpoint; None as long as there is neither."""
    places = (run / "model" / "card.json", *sorted(run.glob("checkpoints/*/card.json")))
    for place in places:
        try:
            value: Any = json.loads(maybe_read(run, str(place.relative_to(run)), MOST_CARD_BYTES) or b"")
        except (ValueError, RecursionError):
            continue
        number = plain(cast(Row, value).get("num_parameters")) if isinstance(value, dict) else None
        if isinstance(number, int):
            return number
    return None


def read_config(run: Path) -> Mapping[str, Any]:
    """The settings of a run, as they are written down; empty where they cannot be read."""
    content = maybe_read(run, CONFIG_FILE, MOST_CONFIG_BYTES) or b""
    try:
        return cast(Row, plain(tomllib.loads(content.decode("utf-8-sig"))))
    except (ValueError, RecursionError):
        return {}
