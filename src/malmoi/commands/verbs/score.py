"""`malmoi score`, its options."""

from typing import Annotated

import typer

from malmoi.commands.options import DataArgument, Device, Json, ModelArgument, Quiet, Threads, Verbose
from malmoi.log import configure_logging


def score(
    model: ModelArgument,
    words: DataArgument,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the log-probability of every token.")] = False,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Log-probability of each pair's target, given its source.

    Natural logarithms, the end symbol included.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.score import run_score

    raise typer.Exit(run_score(model, tuple(words), tokens=tokens, device=device, threads=threads, as_json=json))
