"""`malmoi export`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Json, ModelArgument, Quiet, Verbose
from malmoi.log import configure_logging


def export(
    model: ModelArgument,
    to: Annotated[str, typer.Option(metavar="FORMAT", help="ctranslate2.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the copy; it must not be there yet.")],
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="int8, int8_float32, int8_float16, int8_bfloat16, float16, bfloat16 or float32. Left out: as the "
            "model's own weights.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write a model for another program, and prove the copy.

    Both answer the same sentences; a copy that answers otherwise is not left. What fewer bits change is measured and
    held to a bound.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.export import run_export

    run_export(model, to=to, out=out, maybe_quantization=quantization, as_json=json)
