"""`malmoi prepare`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import DATA_HELP, Config, Json, Preset, Quiet, Valid, Verbose, Workers
from malmoi.log import configure_logging


def prepare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the store.")],
    words: Annotated[list[str], typer.Argument(metavar="DATA... [key=value]...", help=DATA_HELP)],
    valid: Valid = None,
    config: Config = None,
    preset: Preset = None,
    workers: Workers = 0,
    like: Annotated[
        Path | None,
        typer.Option(metavar="STORE", help="Take vocabulary and settings from this store; train on both as one."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tokenise data once for many runs."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.plan import TrainRequest, read_given

    request = TrainRequest(
        words=tuple(words),
        valid=tuple(valid or ()),
        out=out,
        config=config,
        preset=preset,
        workers=workers,
        like=like,
    )
    given = read_given(request)
    from malmoi.commands.prepare import run_prepare

    run_prepare(request, given, as_json=json, quiet=quiet)
