"""`malmoi translate`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Beam, DecodingSettings, Device, Json, ModelArgument, NBest, Quiet, Threads, Verbose
from malmoi.log import configure_logging


def translate(
    model: ModelArgument,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Text, one sentence a line; - is standard input.")
    ] = "-",
    beam: Beam = None,
    n_best: NBest = None,
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
    """Translate text, line for line, to standard output.

    With --n-best each translation has a line: number of the input line, score and text, by tabs.
    """
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
