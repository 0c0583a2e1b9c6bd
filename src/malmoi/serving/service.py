"""What all interfaces share: texts in, answers out, with the client's presence watched all the while.

In: a request, a model, texts and a wish. Out: answers; a `RefusedError` where there are none. Work of any length is
done in threads: the event loop only waits. A request has one clock for all of it, and a key pays for what is answered.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from malmoi.decoding.interface import Hypothesis
from malmoi.log import get_logger
from malmoi.serving.batcher import stopping
from malmoi.serving.detection import Detector
from malmoi.serving.guard import Presence
from malmoi.serving.keys import Charge, Client, Keys
from malmoi.serving.limits import RefusedError, ServingConfig
from malmoi.serving.metrics import Metrics
from malmoi.serving.models import Loaded, Models, ServedModel
from malmoi.serving.runs import RunList
from malmoi.serving.tickets import Ticket
from malmoi.serving.translation import Answer, Plan, Wish, finish, make_plan
from malmoi.serving.waiting import ClientGoneError, Leash, Pool, until_gone, wait_for

P = ParamSpec("P")
T = TypeVar("T")

SHORT_CHARACTERS = 2_000
"""Texts up to here are cut and put together at once: to hand them to a thread would take longer."""
MOST_LOOKING = 100


@dataclass(frozen=True)
class Caller:
    """Who sent a request, whose key it brings, and until when we work for it."""

    request: Request
    maybe_client: Client | None
    leash: Leash


@dataclass(frozen=True)
class Watched:
    """A ticket that waits for its turn, and what is set when it changes."""

    ticket: Ticket
    changed: asyncio.Event
    loaded: Loaded


class Service:
    """The parts of a running service."""

    def __init__(
        self,
        models: Models,
        limits: ServingConfig,
        metrics: Metrics,
        *,
        maybe_keys: Keys | None = None,
        maybe_runs: Path | None = None,
    ) -> None:
        self.models = models
        self.limits = limits
        self.metrics = metrics
        self.maybe_keys = maybe_keys
        self.maybe_runs = RunList(maybe_runs) if maybe_runs is not None else None
        self.presence = Presence()
        self.detector = Detector(models.sources)
        self.threads = Pool(4, "serve")
        # What puts answers together has threads of its own, so that neither keys nor other requests wait for it.
        self.finishers = Pool(2, "finish")
        # What computes for long does so one at a time beside the search, and few may wait for it.
        self.aside = Pool(1, "aside", most=4)
        self.ending = asyncio.Event()
        self.looking = Pool(1, "runs", most=MOST_LOOKING)
        self.pools = (self.threads, self.finishers, self.aside, self.looking)
        self.loading: dict[str, asyncio.Task[Loaded]] = {}

    async def in_thread(self, function: Callable[P, T], *arguments: P.args, **words: P.kwargs) -> T:
        """The value of a function that nobody waits for with a clock of their own."""
        return await asyncio.wrap_future(self.threads.submit(function, *arguments, **words))

    async def wait(self, caller: Caller, working: asyncio.Future[T]) -> T:
        """The value of work, unless the caller's time is over, it leaves, or the service ends."""
        return await wait_for(working, caller.request, caller.leash, self.ending, stopping())

    async def run(
        self, pool: Pool, caller: Caller, function: Callable[P, T], *arguments: P.args, **words: P.kwargs
    ) -> T:
        """The value of a function that may take its time, in a thread of a pool, for a caller that waits for it."""
        return await self.wait(caller, asyncio.wrap_future(pool.submit(function, *arguments, **words)))

    async def load(self, caller: Caller, model: ServedModel) -> Loaded:
        """A model in memory; all who ask before it is there wait for the same reading."""
        if model.maybe_loaded is not None:
            return model.maybe_loaded
        name = model.description.name
        if name not in self.loading:
            self.loading[name] = asyncio.create_task(self.in_thread(model.load))
            self.loading[name].add_done_callback(lambda _: self.loading.pop(name))
        return await self.wait(caller, asyncio.shield(self.loading[name]))

    async def rank(self, caller: Caller, text: str) -> list[tuple[str, float]]:
        """See `Detector.rank`."""
        return await self.run(self.threads, caller, self.detector.rank, text)

    def check_texts(self, texts: Sequence[str]) -> None:
        """`RefusedError` where there are too many texts or characters."""
        total = sum(map(len, texts))
        if len(texts) > self.limits.texts:
            raise RefusedError(400, "too_many_texts", f"one request may have {self.limits.texts} texts at most")
        if total > self.limits.characters:
            message = f"request ({total}) exceeds text limit ({self.limits.characters})"
            raise RefusedError(400, "text_too_long", message)

    async def plan(self, caller: Caller, model: ServedModel, texts: Sequence[str], wish: Wish) -> tuple[Loaded, Plan]:
        """Texts, whose number was checked, as requests to a loaded model."""
        total = sum(map(len, texts))
        loaded = await self.load(caller, model)
        arguments = (loaded, model.description, texts, wish, self.limits)
        if total <= SHORT_CHARACTERS:
            plan = make_plan(*arguments)
        else:
            plan = await self.run(self.threads, caller, make_plan, *arguments)
        self.metrics.add("characters", total)
        if self.limits.log_text:
            get_logger().info("%s: %r", model.description.name, list(texts))
        return loaded, plan

    async def caller_of(self, request: Request, given: object = None) -> Caller:
        """Who sent a request, whose body is there; `RefusedError` where it needs a key and has none.

        The key stands in the request's head, or is `given` in its body.
        """
        leash = Leash(self.limits.deadline)
        if self.maybe_keys is None:
            return Caller(request, None, leash)
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if kind.lower() not in ("bearer", "deepl-auth-key") or not key.strip():
            key = given if isinstance(given, str) else ""
        if not key:
            raise RefusedError(401, "key_required", "this service needs a key")
        return Caller(request, await self.in_thread(self.maybe_keys.find, key.strip()), leash)

    @asynccontextmanager
    async def charged(self, caller: Caller, texts: Sequence[str]) -> AsyncGenerator[Charge | None]:
        """A key pays for the characters of texts, unless what is done meanwhile fails; `RefusedError` where they are
        more than it has left. They are counted first, so that many requests at once cannot have more than there is.

        Who leaves pays: what it has seen of a stream would else be free.
        """
        if caller.maybe_client is None or self.maybe_keys is None:
            yield None
            return
        charge = await self.in_thread(self.maybe_keys.charge, caller.maybe_client, sum(map(len, texts)))
        try:
            yield charge
        except ClientGoneError:
            raise
        except BaseException:
            await self.refund(charge)
            raise

    async def refund(self, maybe_charge: Charge | None, kept: int = 0) -> None:
        """Give back what a client was charged for and did not get: all but `kept` characters."""
        if maybe_charge is not None and self.maybe_keys is not None:
            await self.in_thread(self.maybe_keys.refund, maybe_charge, kept)

    async def translate(
        self, caller: Caller, model: ServedModel, texts: Sequence[str], wish: Wish
    ) -> tuple[Loaded, list[Answer]]:
        """Answers to all texts, unless the client leaves before."""
        loaded, plan = await self.plan(caller, model, texts, wish)
        return loaded, await self.finish(caller, loaded, plan, await self.search(caller, loaded, plan))

    async def finish(
        self, caller: Caller, loaded: Loaded, plan: Plan, found: Sequence[Sequence[Hypothesis]]
    ) -> list[Answer]:
        """Hypotheses as texts."""
        if sum(map(len, plan.texts)) <= SHORT_CHARACTERS:
            return finish(loaded, plan, found)
        return await self.run(self.finishers, caller, finish, loaded, plan, found, caller.leash.check)

    async def search(self, caller: Caller, loaded: Loaded, plan: Plan) -> list[list[Hypothesis]]:
        """The hypotheses of a plan, unless the client leaves before."""
        async with aclosing(self.watch(caller.request, self.submit(caller, loaded, plan))) as changes:
            async for ticket in changes:
                if ticket.is_done:
                    return ticket.hypotheses()
        raise ClientGoneError

    def submit(self, caller: Caller, loaded: Loaded, plan: Plan, *, watches: bool = False) -> Watched:
        """Let the sentences of a plan wait for their turn."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            # The loop may be closed before the last step of a batch that nobody waits for.
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        ticket = Ticket(plan.group, plan.requests, tell, ends_at=caller.leash.ends_at, watches=watches)
        loaded.batcher.submit(ticket)
        return Watched(ticket, changed, loaded)

    async def watch(self, request: Request, watched: Watched) -> AsyncGenerator[Ticket]:
        """The ticket after every change that it tells of, and once when it is done.

        Ends early when the client leaves; its sentences then leave the search. Whoever stops reading must close this.
        """
        ticket, changed = watched.ticket, watched.changed
        leaving = asyncio.create_task(until_gone(request))
        changing = leaving
        try:
            while not leaving.done():
                changing = asyncio.create_task(changed.wait())
                await asyncio.wait({changing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                if changed.is_set():
                    changed.clear()
                    is_done = ticket.is_done
                    yield ticket
                    if is_done:
                        return
        finally:
            changing.cancel()
            leaving.cancel()
            if not ticket.is_done:
                watched.loaded.batcher.leave(ticket)

    def give_up(self) -> None:
        """Tell all who still wait that nothing comes any more; called in the event loop."""
        self.models.give_up()
        self.ending.set()

    def has_ended(self, seconds: float) -> bool:
        """Whether all threads of a closed service are over after so long."""
        ends_at = time.monotonic() + seconds
        return all(pool.has_ended(ends_at) for pool in self.pools)

    async def look(self, function: Callable[P, T], *arguments: P.args, **words: P.kwargs) -> T:
        """The value of a function that reads runs: in a thread of its own, so that no translation waits for a disk."""
        return await asyncio.wrap_future(self.looking.submit(function, *arguments, **words))

    def close(self) -> None:
        """End all threads; what was accepted has been answered, or its time is over."""
        self.models.close(1.0)
        if self.maybe_keys is not None:
            self.maybe_keys.close()
        for pool in self.pools:
            pool.close()
