"""When a run is over, how far it is, and what it leaves.

In: where a run stands, and its limits. Out: a reason to stop, a share between 0 and 1, an `Outcome`.
"""

from dataclasses import dataclass
from typing import Literal

from malmoi.config.training import TrainingConfig
from malmoi.training.checkpoints import Checkpoint
from malmoi.training.state import RunState

Reason = Literal["max_steps", "max_epochs", "max_target_tokens", "max_minutes", "patience", "data", "signal"]


@dataclass(frozen=True)
class Progress:
    """How a run is doing, after each update; for whoever draws a bar."""

    step: int
    epoch: int
    """From 1."""
    target_tokens: int
    seconds: float
    lr: float
    loss: float | None
    """Per token, smoothed, of the last row."""
    target_tokens_per_second: float | None
    share: float | None
    """How much of the run is done, by the limit that comes first; None without limits."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. After a signal it can be resumed; else its limits were reached."""

    reason: Reason
    signal_number: int | None
    step: int
    epoch: int
    """From 1."""
    target_tokens: int
    seconds: float
    skipped: int
    rollbacks: int
    best: Checkpoint | None
    """The best kept checkpoint by `best_metric`."""
    checkpoints: tuple[Checkpoint, ...]
    """All kept ones in the order of their steps."""

    @property
    def exit_status(self) -> int:
        """0, or what a shell expects after a signal: 143 SIGTERM, 130 SIGINT, 138 SIGUSR1 (on Linux)."""
        return 0 if self.signal_number is None else 128 + self.signal_number


def limit_reached(run: RunState, seconds: float, config: TrainingConfig) -> Reason | None:
    """The first limit that is reached, of those that can be told without the next batch."""
    if config.max_steps is not None and run.step >= config.max_steps:
        return "max_steps"
    if config.max_target_tokens is not None and run.target_tokens >= config.max_target_tokens:
        return "max_target_tokens"
    if config.max_minutes is not None and seconds >= 60 * config.max_minutes:
        return "max_minutes"
    if config.patience and run.stale_validations >= config.patience:
        return "patience"
    return None


def share_done(run: RunState, seconds: float, epochs: float, config: TrainingConfig) -> float | None:
    """The largest share of any limit; `epochs` counts the finished part of the present one too."""
    shares = [
        done / limit
        for done, limit in (
            (run.step, config.max_steps),
            (run.target_tokens, config.max_target_tokens),
            (seconds, 60 * config.max_minutes if config.max_minutes is not None else None),
            (epochs, config.max_epochs),
        )
        if limit is not None
    ]
    return min(1.0, max(shares)) if shares else None
