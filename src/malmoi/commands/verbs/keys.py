"""`malmoi keys`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Json, Quiet, Verbose
from malmoi.commands.verbs.serve import check_extra
from malmoi.log import configure_logging


def keys(
    action: Annotated[str, typer.Argument(metavar="add|list|remove")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the client.")] = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Where keys are kept.")] = Path("keys.sqlite"),
    characters: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Characters in a month; left out: as many as they like.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make, list and remove the keys of `malmoi serve --keys`; a new key is shown once."""
    configure_logging(quiet=quiet, verbose=verbose)
    check_extra()
    from malmoi.commands.serve import run_keys

    run_keys(action, name, file, characters, as_json=json)
