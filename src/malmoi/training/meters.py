"""What a run measured: sums between two rows, and `metrics.jsonl`, one JSON object a line.

In: results of updates and validations. Out: rows with stable keys.

A row of training has `step`, `epoch` (from 1), `loss` and `nll` (nats per target token since the row before), `lr`,
`gradient_norm` (mean, before clipping), `target_tokens` (of the run), `target_tokens_per_second` (validation left out)
and `seconds` (of the run, all in all). A row of validation has `step`, `epoch`, `target_tokens`, `seconds` and its
metrics with `valid_` before their names. A rescue leaves a row with `event`. What is no finite number is null.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from malmoi.errors import CheckpointError
from malmoi.files import write_atomically
from malmoi.log import get_logger
from malmoi.training.step import UpdateResult

Row: TypeAlias = dict[str, Any]


@dataclass
class Meter:
    """Sums over the updates since the last row; plain numbers, so that no graph is kept alive."""

    loss: float = 0.0
    nll: float = 0.0
    num_tokens: int = 0
    norm: float = 0.0
    num_updates: int = 0
    seconds: float = 0.0

    def add(self, result: UpdateResult) -> None:
        """Count an applied update."""
        self.loss += result.loss
        self.nll += result.nll
        self.num_tokens += result.num_tokens
        self.norm += result.norm
        self.num_updates += 1

    def row(self) -> Row:
        """The measured part of a row of training; at least one update was added."""
        return {
            "loss": self.loss / self.num_tokens,
            "nll": self.nll / self.num_tokens,
            "gradient_norm": self.norm / self.num_updates,
            "target_tokens_per_second": self.num_tokens / self.seconds if self.seconds else None,
        }


class MetricsFile:
    """`metrics.jsonl` of a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; it can be read at once by others."""
        line = json.dumps({key: finite_or_none(value) for key, value in row.items()}, ensure_ascii=False)
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written ({error.strerror})") from error

    def rows(self) -> list[Row]:
        """All complete rows; a line that a kill cut off is left out."""
        if not self.path.exists():
            return []
        rows: list[Row] = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            try:
                row = json.loads(line) if line else None
            except (ValueError, RecursionError):
                get_logger().warning("%s, line %d: not a complete row, dropped", self.path, number)
                continue
            if isinstance(row, dict) and isinstance(cast(Row, row).get("step"), int):
                rows.append(cast(Row, row))
        return rows

    def cut_back(self, num_rows: int) -> None:
        """Drop all but the first rows: a run that goes on from a state has its rows and will write the others again."""
        if not self.path.exists():
            return
        kept = self.rows()[:num_rows]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        write_atomically(self.path, lines.encode())


def finite_or_none(value: object) -> object:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
