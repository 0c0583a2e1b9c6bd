"""Whether a run still learns: numbers that are not finite, and models that say the same whatever they read.

In: faults of updates, metrics of validations. Out: a `TrainingError` that names what happened.
"""

import math
from collections.abc import Mapping

from malmoi.errors import MalmoiError
from malmoi.training.state import RunState

DISTINCT_OUTPUTS = "distinct_outputs"
"""Name of the metric by which decoding tells how varied its outputs were, measured by the right answers: 0 is one
output for every source. It is left out where right answers are too few or too alike to tell."""

MAX_SKIPPED_IN_ROW = 10
# A model that once said many different things and now says one has collapsed; one that never did gets some time after
# the warm-up.
WIDE_OUTPUTS = 0.1
PATIENCE_WITH_NARROW = 3
RESCUE_FACTOR = 0.5


class TrainingError(MalmoiError):
    """A run that cannot go on as it is: its loss is no number, or its model has collapsed."""


def check_skips(run: RunState, fault: str) -> None:
    """A single bad update is skipped; many in a row mean that the run is broken."""
    if run.skipped_in_row >= MAX_SKIPPED_IN_ROW:
        raise TrainingError(
            f"{run.skipped_in_row} updates in a row after step {run.step} were not finite (the last: {fault})"
        )


def check_validation(run: RunState, metrics: Mapping[str, float], warmup_steps: int) -> None:
    """Take a validation into account; raises `TrainingError` for a loss that is no number and for a collapse."""
    loss = metrics.get("loss", 0.0)
    if not math.isfinite(loss):
        raise TrainingError(f"the validation loss at step {run.step} is {loss}")
    if DISTINCT_OUTPUTS not in metrics:
        return
    share = metrics[DISTINCT_OUTPUTS]
    run.is_narrow = share <= 0.0
    if not run.is_narrow:
        run.collapsed_validations = 0
        run.widest_outputs = max(run.widest_outputs, share)
        return
    if run.step > warmup_steps or run.widest_outputs > WIDE_OUTPUTS:
        run.collapsed_validations += 1
    if run.widest_outputs > WIDE_OUTPUTS or run.collapsed_validations >= PATIENCE_WITH_NARROW:
        raise TrainingError(f"the model has collapsed: at step {run.step} its output is the same for every source")
