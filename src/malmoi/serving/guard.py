"""What stands before every route: how much may come in and how long it may take, who is counted, what every answer
carries, and what is said where a route fails.

In: the calls of an ASGI server. Out: the same, with a bounded body. An answer may be given before the whole body is
there; the rest is then read and thrown away, within bounds: whoever writes all before reading would else find the
connection reset, and never see the answer.
"""

import asyncio
import time
import traceback
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from malmoi.log import get_logger
from malmoi.serving.addresses import is_ours
from malmoi.serving.bodies import refusal
from malmoi.serving.limits import RefusedError, ServingConfig, shown
from malmoi.serving.metrics import Metrics

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""Of answers that have no policy of their own: nothing in them is ever run or loaded."""
ALWAYS_OPEN = ("/metrics",)
MOST_DISCARDED = 64 * 2**20
"""Of a body that is not wanted so much is read, as long as a body may take; then the connection is closed."""


class Presence:
    """Who is being served, and whether anybody else may come."""

    def __init__(self) -> None:
        self.num_active = 0
        self.is_draining = False


class Guard:
    """The outermost layer of the app but for the headers that let pages of other origins read its answers."""

    def __init__(self, app: ASGIApp, limits: ServingConfig, metrics: Metrics, presence: Presence) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.presence = presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = Visit(self.limits, scope, receive, send)
        self.presence.num_active += 1
        self.metrics.set("active_requests", self.presence.num_active)
        try:
            await self.serve(scope, visit)
        finally:
            self.presence.num_active -= 1
            self.metrics.set("active_requests", self.presence.num_active)
            # A path that is no route of ours is the client's text, and there are endlessly many.
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.add("requests", route=route, status=str(visit.status or 499))
            self.metrics.observe(time.monotonic() - visit.began_at, route=route)

    async def serve(self, scope: Scope, visit: "Visit") -> None:
        """Let the app answer, or say why it does not."""
        try:
            visit.check_host()
            if self.presence.is_draining and scope["path"] not in ALWAYS_OPEN:
                raise RefusedError(503, "stopping", "the service is stopping", 5)
            visit.check_length()
            await self.app(scope, visit.receive, visit.send)
        except RefusedError as error:
            await visit.refuse(error)
        except Exception as error:  # noqa: BLE001
            # The message of an error may hold text of a user; the places in the program do not.
            places = "".join(traceback.format_tb(error.__traceback__))
            get_logger().error("a request failed with %s\n%s", type(error).__name__, places)
            await visit.refuse(internal())


def internal() -> RefusedError:
    """What is said of a fault of our own."""
    return RefusedError(500, "internal", "this failed for a reason of our own; see the log")


class Visit:
    """One request: the server's calls with what is counted about them."""

    def __init__(self, limits: ServingConfig, scope: Scope, receive: Receive, send: Send) -> None:
        self.limits = limits
        self.scope = scope
        self.of_server = receive
        self.to_server = send
        self.began_at = time.monotonic()
        self.num_bytes = 0
        names = {name for name, _ in scope["headers"]}
        self.is_whole = not names & {b"content-length", b"transfer-encoding"}
        # Who asks before writing is told by the answer not to write; who wrote some of it was told to go on.
        self.is_held_back = b"expect" in names
        self.status = 0

    def check_host(self) -> None:
        """Refuse a name that is not ours: a page of that name would read the answer."""
        for name, value in self.scope["headers"] if self.limits.hosts else ():
            if name == b"host" and not is_ours(value.decode("latin-1"), self.limits.hosts):
                message = (
                    f"this service is not asked by the name {shown(value.decode('latin-1'))}; see the setting hosts"
                )
                raise RefusedError(421, "wrong_host", message)

    def check_length(self) -> None:
        """Refuse a body by what its head says."""
        for name, value in self.scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self.limits.body_bytes:
                raise self.too_large()

    def too_large(self) -> RefusedError:
        return RefusedError(413, "body_too_large", f"a body may have {self.limits.body_bytes} bytes at most")

    async def receive(self) -> Message:
        """The next part of the body, as long as it is neither too large nor too late."""
        if self.is_whole:
            return await self.of_server()
        try:
            message = await self.next_part()
        except TimeoutError:
            seconds = f"{self.limits.body_seconds:g}"
            raise RefusedError(408, "body_too_slow", f"the body was not there after {seconds} seconds") from None
        if self.num_bytes > self.limits.body_bytes:
            raise self.too_large()
        return message

    async def next_part(self) -> Message:
        """A part of the body, or that the client has left; `TimeoutError` where the time for the body is over."""
        remaining = self.began_at + self.limits.body_seconds - time.monotonic()
        self.is_held_back = False
        message = await asyncio.wait_for(self.of_server(), max(remaining, 0.001))
        self.num_bytes += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read what is still to come of a body that is not wanted."""
        with suppress(TimeoutError):
            while not self.is_whole and not self.is_held_back and self.num_bytes < MOST_DISCARDED:
                await self.next_part()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name.lower() for name, _ in message.get("headers", ())}
            added = [header for header in (*HEADERS, POLICY) if header[0] not in own]
            if not self.is_whole:
                added.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        elif not self.is_whole and not message.get("more_body", False):
            # The answer is complete for whoever reads it; the server closes the connection once it is told so.
            await self.to_server({**message, "more_body": True})
            await self.discard()
            message = {"type": message["type"]}
        await self.to_server(message)

    async def refuse(self, error: RefusedError) -> None:
        """Say no, if nothing has been said yet."""
        if not self.status:
            await refusal(self.scope["path"], error)(self.scope, self.receive, self.send)
