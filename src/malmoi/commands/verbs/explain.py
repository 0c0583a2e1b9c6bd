"""`malmoi explain`, its options."""

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
)
from malmoi.log import configure_logging


def explain(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="One sentence.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; explain.html if left out, and no page with --json, --alignments."),
    ] = None,
    n_best: NBest = None,
    language: Annotated[str, typer.Option(metavar="NAME", help="Of the page: en or ko.")] = "en",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="A sentence of the same words in another order, to see what positions do. Left out: the other way "
            "round.",
        ),
    ] = None,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Print which source word each word was made from, as 0-0 1-2.")
    ] = False,
    beam: Beam = None,
    settings: DecodingSettings = None,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show how a model came to its translation.

    One HTML page: the search's own output is replayed through the same weights, and all attention is kept.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.explain import ExplainRequest, run_explain

    request = ExplainRequest(
        model=model,
        text=text,
        n_best=n_best or 1,
        against=against,
        alignments=alignments,
        maybe_out=out,
        language=language,
        beam=beam,
        settings=tuple(settings or ()),
        device=device,
        threads=threads,
        as_json=json,
    )
    raise typer.Exit(run_explain(request))
