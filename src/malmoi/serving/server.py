"""The server under the application: how long it waits for silent clients, and how it stops.

In: an application and its service. Out: when it has stopped. At the first signal to stop nothing more is accepted
(503), what was accepted is answered, and then the server ends; the second signal ends it at once.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from malmoi.log import get_logger
from malmoi.serving.service import Service

THREAD_SECONDS = 0.5
"""Threads have so long to end by themselves when the server has ended."""
LAST_SECONDS = 5
"""After everything was answered, connections have so long to take it."""


class StoppingServer(uvicorn.Server):
    """A server that answers what it has accepted."""

    def __init__(self, config: uvicorn.Config, service: Service, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(config)
        self.service = service
        self.maybe_tell = tell
        self.maybe_draining_since: float | None = None

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen, and say where."""
        await super().startup(sockets)
        for server in self.servers:
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                get_logger().info("serving on http://%s:%d", shown, port)
                if self.maybe_tell is not None:
                    self.maybe_tell(f"http://{shown}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        if self.maybe_draining_since is not None:
            self.should_exit = self.force_exit = True
            return
        self.maybe_draining_since = time.monotonic()
        self.service.presence.is_draining = True
        get_logger().info("stopping: %d request(s) are still answered", self.service.presence.num_active)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        should_end = await super().on_tick(counter)
        if self.maybe_draining_since is None:
            return should_end
        is_late = time.monotonic() - self.maybe_draining_since > self.service.limits.drain_seconds
        if is_late:
            self.service.give_up()
        return should_end or is_late or not self.service.presence.num_active


def end_process(service: Service, status: int) -> None:
    """End at once, with a status, where threads still compute for somebody whom nobody waits for: nobody can stop them,
    and the interpreter would wait. What was written is written first. Returns where all threads are over."""
    service.close()
    if not service.has_ended(THREAD_SECONDS):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def make_protocol(seconds: float) -> type[H11Protocol]:
    """Connections that are closed when no whole head of a request came for so long."""

    class PatientProtocol(H11Protocol):
        """uvicorn itself waits for ever for a first request, and for the rest of a head."""

        maybe_timer: asyncio.TimerHandle | None = None
        maybe_last: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.maybe_timer = self.loop.call_later(seconds, self.look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.maybe_timer is not None:
                self.maybe_timer.cancel()
            super().connection_lost(exc)

        def look(self) -> None:
            """Close the connection if no request has begun since the last look, and none is being answered."""
            # uvicorn's types know no connection without a request.
            maybe_cycle: Any = vars(self)["cycle"]
            is_answered = maybe_cycle is None or (maybe_cycle is self.maybe_last and maybe_cycle.response_complete)
            if is_answered and self.conn.their_state in (h11.IDLE, h11.ERROR):
                self.transport.close()
                return
            self.maybe_last = maybe_cycle
            self.maybe_timer = self.loop.call_later(seconds, self.look)

    return PatientProtocol


def make_server(
    app: ASGIApp, service: Service, host: str, port: int, *, tell: Callable[[str], None] | None = None
) -> StoppingServer:
    """A server for the application, not yet started; port 0 takes any that is free. `tell` is given its addresses."""
    limits = service.limits
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=make_protocol(limits.idle_seconds),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=max(1, int(limits.idle_seconds)),
        timeout_graceful_shutdown=LAST_SECONDS,
        backlog=1024,
        lifespan="on",
    )
    return StoppingServer(config, service, tell)
