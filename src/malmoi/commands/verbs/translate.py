"""`malmoi translate`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import (
    Beam,
    DecodingSettings,
    Device,
    Json,
    ModelArgument,
    NBest,
    Quiet,
    Threads,
    Verbose,
    Workers,
)
from malmoi.errors import ConfigError
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
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write here, .gz or .zst packed; after any stop the same command goes on."),
    ] = None,
    workers: Workers = 0,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --out: ray puts the workers on a Ray cluster.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --out: so many lines are translated and kept together.")
    ] = None,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Translate text, line for line, to standard output; with --out a file of any size to a file.

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
    if out is None:
        if cluster is not None or block is not None or workers:
            raise ConfigError("--workers, --cluster and --block share out the work of a file: give --out, too")
        raise typer.Exit(run_translate(request))
    from malmoi.commands.bulk import BulkRequest, run_bulk

    raise typer.Exit(run_bulk(request, BulkRequest(out, workers, cluster, block), quiet=quiet))
