"""`malmoi serve`, its options."""

from pathlib import Path
from typing import Annotated

import typer

from malmoi.commands.options import Device, Json, Quiet, Threads, Verbose
from malmoi.errors import ConfigError
from malmoi.log import configure_logging

KeysFile = Annotated[Path | None, typer.Option("--keys", metavar="FILE", help="Clients need a key of this file.")]


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]MODEL...", help="Model or run folders; a name as en-de says the languages."),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes any that is free.")] = 8000,
    keys: KeysFile = None,
    open_: Annotated[bool, typer.Option("--open", help="Let everybody in, on any address, without keys.")] = False,
    runs: Annotated[Path | None, typer.Option(metavar="DIR", help="Show the curves of the runs in it.")] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Load a model when it is first asked for.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the service, as deadline=30.")
    ] = None,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Serve models over HTTP, with a page, for clients of LibreTranslate and DeepL as they are (docs/serving.md).

    With --json the address is printed as soon as it listens.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    check_extra()
    from malmoi.commands.serve import ServeRequest, run_serve

    request = ServeRequest(
        models=tuple(models),
        host=host,
        port=port,
        is_lazy=lazy,
        is_open=open_,
        maybe_keys=keys,
        maybe_runs=runs,
        settings=tuple(settings or ()),
        device=device,
        threads=threads,
        as_json=json,
    )
    raise typer.Exit(run_serve(request))


def check_extra() -> None:
    """`ConfigError` where the service's own libraries are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "sentencex", "py3langid") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install 'malmoi[serve]'")
