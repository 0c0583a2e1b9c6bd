"""`malmoi demo`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Json, Quiet, Verbose
from malmoi.log import configure_logging


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the run, its model and the report.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="How many updates to train.")] = 3600,
    minutes: Annotated[
        float, typer.Option(metavar="N", min=0.01, help="Stop training after so many minutes, on a slow machine.")
    ] = 4.8,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train on real data in five minutes, without any arguments.

    Learns to pronounce English words from the CMU dictionary, tests itself on words that it
    never saw, and leaves a model and a page to look at.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.demo import run_demo

    run_demo(out, steps=steps, minutes=minutes, as_json=json, quiet=quiet)
