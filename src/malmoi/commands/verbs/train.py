"""`malmoi train`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import DATA_HELP, Config, Json, Preset, Quiet, Valid, Verbose, Workers
from malmoi.log import configure_logging


def tell_settings(is_wanted: bool) -> None:
    """Print what may be set, and stop."""
    if is_wanted:
        from malmoi.config.meanings import settings_as_toml

        typer.echo(settings_as_toml(), nl=False)
        raise typer.Exit


def train(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Run folder; training resumes by itself when it holds a run.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="DATA... [key=value]...", help=DATA_HELP + " Then settings.")
    ] = None,
    valid: Valid = None,
    config: Config = None,
    preset: Preset = None,
    init: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Start from the weights of this model, with its vocabulary.")
    ] = None,
    workers: Workers = 0,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings",
            is_eager=True,
            callback=tell_settings,
            help="Print every setting with its default and what it means, and stop.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a model on pairs of text.

    Settings that are not given are chosen from the data: `malmoi train a.en a.de --out run` is enough.
    Later ones win: automatic, --preset, --config, key=value (as in model.width=128).
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.plan import TrainRequest, read_given

    request = TrainRequest(
        words=tuple(words or ()),
        valid=tuple(valid or ()),
        out=out,
        config=config,
        preset=preset,
        init=init,
        workers=workers,
    )
    # Faults in settings are told before torch, which takes seconds, is there.
    given = read_given(request)
    from malmoi.commands.train import run_train

    raise typer.Exit(run_train(request, given, as_json=json, quiet=quiet))
