"""Runs inside the process of a toolkit: notes the end of every update and how many target tokens it consumed.

In: `consumed` calls from the few lines that each contestant file wraps around the toolkit's own step. Out: one JSON
object a line in the file that the environment variable names. Needs torch and the standard library.
"""

import json
import os
import sys
import time
from typing import Any

RECORD_VARIABLE = "MALMOI_BENCHMARK_RECORD"


class Probe:
    """Sums what was consumed, and writes a line after each step of an optimiser of torch."""

    def __init__(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.file = open(f"{os.environ[RECORD_VARIABLE]}.{os.environ.get('RANK', '0')}", "a", encoding="ascii")  # noqa: PTH123, SIM115
        self.tokens = 0
        self.loss: float | None = None
        register_optimizer_step_post_hook(self.after_step)
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr, flush=True)

    def consumed(self, tokens: int, loss: float | None = None) -> None:
        """A batch went into the model; `loss` as the toolkit counts it."""
        self.tokens += int(tokens)
        self.loss = loss

    def after_step(self, *_: Any) -> None:
        """The weights have moved. Steps without a batch, as of a second optimiser, are passed over."""
        if self.tokens:
            self.file.write(json.dumps([time.monotonic(), self.tokens, self.loss]) + "\n")
            self.file.flush()
        self.tokens = 0
