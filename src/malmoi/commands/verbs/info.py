"""`malmoi info`, its options."""

import typer

from malmoi.commands.options import Json, ModelArgument, Quiet, Verbose
from malmoi.log import configure_logging


def info(model: ModelArgument, json: Json = False, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Say what a model is, and check this copy of it.

    Tells what it was trained on and its scores, and translates the sentences that were stored with it. The exit
    status is 1 where the copy at hand does not translate them as it did when it was finished.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.info import run_info

    raise typer.Exit(run_info(model, as_json=json))
