"""`malmoi serve`: models behind HTTP, until a signal to stop; and `malmoi keys`, who may ask.

In: models, an address, settings. Out: an exit status, 0 after a signal to stop.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import cast

from starlette.types import ASGIApp

from malmoi.commands.results import write_json, write_line
from malmoi.config.training import Device
from malmoi.device import set_threads
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.serving.addresses import OWN_NAMES, bind, cannot_listen, is_loopback
from malmoi.serving.app import create_app
from malmoi.serving.keys import Keys
from malmoi.serving.limits import ServingConfig
from malmoi.serving.metrics import Metrics
from malmoi.serving.models import Models, ServedModel, describe
from malmoi.serving.server import end_process, make_server
from malmoi.serving.service import Service
from malmoi.settings import parse_overrides, validate


@dataclass(frozen=True)
class ServeRequest:
    """What the command line asked for."""

    models: tuple[str, ...]
    host: str
    port: int
    is_lazy: bool
    is_open: bool
    maybe_keys: Path | None
    maybe_runs: Path | None
    settings: tuple[str, ...]
    device: str
    threads: int
    as_json: bool = False


def run_serve(request: ServeRequest) -> int:
    """Serve until a signal to stop."""
    app, service, sockets = prepare(request)
    names = list(service.models.by_name)

    def tell(url: str) -> None:
        if request.as_json:
            write_json({"url": url, "models": names}, flush=True)

    server = make_server(app, service, request.host, request.port, tell=tell)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        server.run(sockets)
    except OSError as error:
        if server.started:
            raise
        # Somebody else began to listen there while the models were loaded.
        raise cannot_listen(request.host, request.port, error) from error
    status = 0 if server.started else 1
    end_process(service, status)
    return status


def prepare(request: ServeRequest) -> tuple[ASGIApp, Service, list[socket]]:
    """The application, its service and where it will listen. Faults of address and keys are told before all models are
    read, unless those are to be loaded when first asked for."""
    check_address(request)
    if request.maybe_runs is not None and not request.maybe_runs.is_dir():
        raise ConfigError(f"--runs {request.maybe_runs}: no such folder")
    limits = validate(ServingConfig, parse_overrides(request.settings), "the settings of the service")
    if not limits.hosts and request.maybe_keys is None and not request.is_open:
        limits = limits.model_copy(update={"hosts": OWN_NAMES})
    maybe_keys = open_keys(request.maybe_keys) if request.maybe_keys is not None else None
    sockets = bind(request.host, request.port)
    set_threads(request.threads)
    metrics = Metrics()
    device = cast(Device, request.device)
    models = Models(
        [
            ServedModel(describe(word), limits, metrics, device=device, threads=request.threads)
            for word in request.models
        ]
    )
    for model in models.by_name.values() if not request.is_lazy else ():
        model.load()
    service = Service(models, limits, metrics, maybe_keys=maybe_keys, maybe_runs=request.maybe_runs)
    return create_app(service), service, sockets


def open_keys(path: Path) -> Keys:
    """The keys of a file that is there."""
    check_keys_file(path)
    keys = Keys(path)
    if not keys.clients():
        get_logger().warning(
            "%s holds no keys yet: `malmoi keys add NAME` makes one, and nobody else may translate", path
        )
    return keys


def check_keys_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of keys; `malmoi keys add NAME --file {path}` makes it")


def check_address(request: ServeRequest) -> None:
    """Whoever can reach the address may ask: others than this machine need keys, unless the operator says otherwise."""
    if request.maybe_keys is None and not request.is_open and not is_loopback(request.host):
        raise ConfigError(
            f"--host {request.host} is an address that others can reach: give --keys FILE (malmoi keys makes it), or "
            "--open to let everybody in"
        )
    if request.maybe_keys is not None and request.is_open:
        raise ConfigError("--open lets everybody in, and --keys only some: give one of them")
    if request.maybe_keys is None and not is_loopback(request.host):
        get_logger().warning("everybody who reaches %s may translate", request.host)


def run_keys(action: str, maybe_name: str | None, path: Path, maybe_characters: int | None, *, as_json: bool) -> None:
    """Make, list or remove keys; a new one is written to standard output, and nowhere else."""
    if action != "add":
        check_keys_file(path)
    if (action == "list") != (maybe_name is None):
        raise ConfigError("malmoi keys list, malmoi keys add NAME, or malmoi keys remove NAME")
    keys = Keys(path)
    try:
        match action:
            case "add":
                key = keys.add(maybe_name or "", maybe_characters)
                write_json({"name": maybe_name, "key": key}) if as_json else write_line(key)
            case "remove":
                keys.remove(maybe_name or "")
            case "list":
                for client in keys.clients():
                    row = {"name": client.name, "characters": client.maybe_characters, "used": client.used}
                    most = "no limit" if client.maybe_characters is None else f"{client.maybe_characters:,}"
                    write_json(row) if as_json else write_line(f"{client.name}\t{client.used:,}\t{most}")
            case _:
                raise ConfigError(f"malmoi keys {action}: must be add, list or remove")
    finally:
        keys.close()
