"""A service on this machine for tests: a real server in a thread, and plain HTTP to it.

In: models and settings. Out: addresses, statuses and bodies.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from malmoi.serving.app import create_app
from malmoi.serving.keys import Keys
from malmoi.serving.limits import ServingConfig
from malmoi.serving.metrics import Metrics
from malmoi.serving.models import Models, ServedModel, describe
from malmoi.serving.server import StoppingServer, make_server
from malmoi.serving.service import Service

GOLDEN = Path(__file__).parent / "golden" / "model"
PATIENCE = 60.0
"""Seconds until an answer must have come; nothing is measured by it."""


def wait(is_true: Callable[[], bool]) -> None:
    """Until something is so, which it must become."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, "it never came to this"
        time.sleep(0.001)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """As a strict parser reads it."""

        def refuse(name: str) -> float:
            raise AssertionError(name)

        return json.loads(self.body.decode("utf-8"), parse_constant=refuse)


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    server: StoppingServer
    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        """JSON."""
        return self.ask("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


def send(running: Running, path: str, value: Any) -> socket.socket:
    """A request whose answer is not waited for."""
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", running.port), PATIENCE)
    client.sendall(head.encode() + body)
    return client


def make_service(
    words: Sequence[str] = (f"en-ko={GOLDEN}",),
    *,
    keys: Path | None = None,
    runs: Path | None = None,
    threads: int = 0,
    **settings: Any,
) -> Service:
    limits, metrics = ServingConfig(**settings), Metrics()
    models = [ServedModel(describe(word), limits, metrics, device="cpu", threads=threads) for word in words]
    return Service(
        Models(models), limits, metrics, maybe_keys=Keys(keys) if keys is not None else None, maybe_runs=runs
    )


@contextmanager
def serving(words: Sequence[str] = (f"en-ko={GOLDEN}",), **settings: Any) -> Iterator[Running]:
    """A server that ends with the block; models are loaded when they are first asked for."""
    service = make_service(words, **settings)
    server = make_server(create_app(service), service, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait(lambda: server.started or not thread.is_alive())
    assert server.started, "the server does not start"
    try:
        yield Running(server, service, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
