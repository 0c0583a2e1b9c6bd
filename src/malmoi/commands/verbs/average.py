"""`malmoi average`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Json, Quiet, Verbose
from malmoi.log import configure_logging


def average(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the averaged model.")],
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN|CHECKPOINT...", help="A run folder, or several checkpoints.")
    ],
    last: Annotated[
        int, typer.Option(metavar="N", min=0, help="Only so many newest checkpoints of a run; 0 takes all.")
    ] = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make one model out of several checkpoints.

    Its weights are the mean of theirs.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.average import run_average

    run_average(tuple(folders), out=out, last=last, as_json=json)
