"""`malmoi compare`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import DATA_HELP, Json, Quiet, Valid, Verbose, Workers
from malmoi.log import configure_logging


def compare(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for runs and report; goes on by itself when it holds some.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="DATA... [key=value]...", help=DATA_HELP + " Then settings.")
    ] = None,
    valid: Valid = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Test data; given once per file. Left out: some pairs are held out of DATA."),
    ] = None,
    system: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="One system's settings in TOML, in place of the three; given once for each."),
    ] = None,
    equal: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="What is held equal: tokens (of training; if left out), time (needs training.max_minutes=N) or "
            "parameters.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Train each system so many times with other seeds; 1 if left out.")
    ] = None,
    language: Annotated[str, typer.Option(metavar="NAME", help="Of the page: en or ko.")] = "en",
    workers: Workers = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train three systems alike on your data and show which does what better.

    Seq2Seq, Seq2Seq with attention and the Transformer, on the same pairs and batches: one HTML report.
    Finished runs in place of DATA, with --test, are compared as they are.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.compare_plan import CompareRequest, read_request

    request = CompareRequest(
        words=tuple(words or ()),
        out=out,
        valid=tuple(valid or ()),
        test=tuple(test or ()),
        configs=tuple(system or ()),
        rule=equal,
        num_seeds=seeds,
        language=language,
        workers=workers,
    )
    # Faults in settings are told before torch, which takes seconds, is there.
    maybe_plan = read_request(request)
    from malmoi.commands.compare import run_compare

    raise typer.Exit(run_compare(request, maybe_plan, as_json=json, quiet=quiet))
