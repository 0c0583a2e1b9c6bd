"""Which of the models saved along the way are kept.

In: checkpoints with their validation metrics. Out: the best ones, the last ones, and those that may go.
"""

import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from malmoi.config.training import Metric, higher_is_better
from malmoi.files import TEMPORARY


@dataclass
class Checkpoint:
    """A model folder `name` under a run's `checkpoints`, and what validation said of it (names without `valid_`)."""

    step: int
    name: str
    metrics: dict[str, float] = field(default_factory=dict[str, float])


def is_better(metric: Metric, value: float, maybe_best: float | None) -> bool:
    """Whether `value` beats the best so far; a tie and what is no number do not."""
    if math.isnan(value):
        return False
    if maybe_best is None:
        return True
    return value > maybe_best if higher_is_better(metric) else value < maybe_best


def rank(checkpoints: Iterable[Checkpoint], metric: Metric) -> list[Checkpoint]:
    """Best first, of two equal ones the earlier; those without the metric are left out."""
    measured = [checkpoint for checkpoint in checkpoints if not math.isnan(checkpoint.metrics.get(metric, math.nan))]
    sign = -1 if higher_is_better(metric) else 1
    return sorted(measured, key=lambda checkpoint: (sign * checkpoint.metrics[metric], checkpoint.step))


def choose_kept(
    checkpoints: Sequence[Checkpoint], metric: Metric, keep_last: int, keep_best: int
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """(kept, superfluous), both in the order of their steps."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    kept_steps = {checkpoint.step for checkpoint in ordered[max(0, len(ordered) - keep_last) :]}
    kept_steps |= {checkpoint.step for checkpoint in rank(ordered, metric)[:keep_best]}
    return (
        [checkpoint for checkpoint in ordered if checkpoint.step in kept_steps],
        [checkpoint for checkpoint in ordered if checkpoint.step not in kept_steps],
    )


def remove_folder(folder: Path) -> None:
    """Delete a folder so that a kill half-way leaves a temporary name, never half a folder under its own."""
    if folder.exists():
        condemned = folder.with_name(f"{TEMPORARY}removed-{folder.name}")
        if condemned.exists():
            shutil.rmtree(condemned)
        folder.rename(condemned)
        shutil.rmtree(condemned)


def remove_temporaries(parent: Path) -> None:
    """Delete what killed runs left half-written or half-deleted."""
    for leftover in sorted(parent.glob(f"{TEMPORARY}*")):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
