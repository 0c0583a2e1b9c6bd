"""`malmoi doctor`, its options."""

from typing import Annotated

import typer

from malmoi.commands.options import Json, Quiet, Verbose
from malmoi.log import configure_logging


def doctor(
    build: Annotated[
        bool, typer.Option("--build", help="First compile the native code that decodes faster; takes a C++ compiler.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say what this machine has and what is missing."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.doctor import run_doctor

    run_doctor(build=build, as_json=json)
