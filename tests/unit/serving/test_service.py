"""What a request waits with, without a server."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Request as Wanted
from malmoi.serving.service import Service, Watched
from malmoi.serving.tickets import Group, Ticket


class Staying:
    """A client that neither says more nor leaves."""

    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}


def test_nothing_waits_on_behind_one_who_stopped_watching() -> None:
    left: list[Ticket] = []

    async def watch() -> set[Any]:
        ticket = Ticket(Group(DecodingConfig()), [Wanted((1,))], lambda: None, ends_at=math.inf)
        loaded = SimpleNamespace(batcher=SimpleNamespace(leave=left.append))
        watched = Watched(ticket, asyncio.Event(), cast(Any, loaded))
        changes = Service.watch(cast(Any, None), cast(Any, Staying()), watched)
        reading = asyncio.create_task(anext(changes))
        await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait({reading})
        await changes.aclose()
        await asyncio.sleep(0.01)
        return asyncio.all_tasks() - {cast(Any, asyncio.current_task())}

    assert asyncio.run(watch()) == set()
    assert len(left) == 1
