"""`malmoi translate`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Beam, DecodingSettings, Device, Json, ModelArgument, Quiet, Threads, Verbose
from malmoi.log import configure_logging


def translate(
    model: ModelArgument,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Text, one sentence a line; - is standard input.")
    ] = "-",
    beam: Beam = None,
    n_best: Annotated[
        int | None,
        typer.Option("--n-best", metavar="N", min=1, help="So many translations: line number, score, text, by tabs."),
    ] = None,
    settings: DecodingSettings = None,
    prefix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File: how the translation of each line must begin.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File: phrases, by tabs, that the translation of each line must hold."),
    ] = None,
    unbuffered: Annotated[bool, typer.Option("--unbuffered", help="Answer each line before reading the next.")] = False,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Translate text, line for line, to standard output."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.translate import TranslateRequest, run_translate

    request = TranslateRequest(
        model=model,
        file=file,
        beam=beam,
        n_best=n_best,
        settings=tuple(settings or ()),
        prefix=prefix,
        constraints=constraints,
        unbuffered=unbuffered,
        device=device,
        threads=threads,
        as_json=json,
    )
    raise typer.Exit(run_translate(request))
