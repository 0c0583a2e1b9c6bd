"""The learning rate as a pure function of the step.

In: the number of an update (the first is 1) and the settings. Out: its rate. Whatever happened before does not
matter, so a resumed run goes on as if it had never stopped. A rescue after a failure multiplies the result by a
factor that the run's state keeps.
"""

import math
from typing import assert_never

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError


def peak_rate(config: TrainingConfig, width: int) -> float:
    """`lr` where it is given; else width^-0.5 * warmup_steps^-0.5, the peak of the paper's schedule (5.3)."""
    if config.lr is not None:
        return config.lr
    if config.warmup_steps == 0:
        raise ConfigError(
            "training.lr: without it the rate is width^-0.5 * warmup_steps^-0.5, and warmup_steps is 0: "
            "set training.lr, or a warmup_steps above 0"
        )
    return width**-0.5 * config.warmup_steps**-0.5


def learning_rate(step: int, config: TrainingConfig, width: int) -> float:
    """Rate of update `step` (from 1) of a model that is `width` wide.

    All schedules rise in a straight line and reach the peak at `warmup_steps` (at step 1 without a warm-up).
    `paper` (Vaswani et al., 2017, eq. 3) and `inverse_sqrt` then fall with the root of the step, `cosine` falls to 0
    just after `max_steps`, `constant` stays.
    """
    if step < 1:
        raise ValueError(f"updates count from 1, not {step}")
    peak = peak_rate(config, width)
    warmup = max(config.warmup_steps, 1)
    if step <= warmup:
        return peak * (step / warmup)
    match config.schedule:
        case "paper" | "inverse_sqrt":
            return peak * math.sqrt(warmup / step)
        case "cosine":
            assert config.max_steps is not None
            share = min(1.0, (step - warmup) / max(1, config.max_steps + 1 - warmup))
            return peak * 0.5 * (1 + math.cos(math.pi * share))
        case "constant":
            return peak
        case _:
            assert_never(config.schedule)
