"""`malmoi doctor`, its options."""

from malmoi.commands.options import Json, Quiet, Verbose
from malmoi.log import configure_logging


def doctor(json: Json = False, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Say what this machine has and what is missing."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.doctor import run_doctor

    run_doctor(as_json=json)
