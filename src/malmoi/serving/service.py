"""What all interfaces share: texts in, answers out, with the client's presence watched all the while.

In: a request, a model, texts and a wish. Out: answers; a `RefusedError` where there are none. Work of any length is
done in threads: the event loop only waits.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from malmoi.decoding.interface import Hypothesis
from malmoi.log import get_logger
from malmoi.serving.batcher import stopping
from malmoi.serving.detection import Detector
from malmoi.serving.guard import Presence
from malmoi.serving.keys import Client, Keys
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
        self.finishers = Pool(2, "finish")
        self.aside = Pool(1, "aside", most=4)
        self.ending = asyncio.Event()
        self.looking = Pool(1, "runs", most=MOST_LOOKING)
        self.pools = (self.threads, self.finishers, self.aside, self.looking)
        self.loading: dict[str, asyncio.Task[Loaded]] = {}

    async def in_thread(self, function: Callable[P, T], *arguments: P.args, **words: P.kwargs) -> T:
        """The value of a function that may take its time."""
        return await asyncio.wrap_future(self.threads.submit(function, *arguments, **words))

    async def load(self, model: ServedModel) -> Loaded:
        """A model in memory; all who ask before it is there wait for the same reading."""
        if model.maybe_loaded is not None:
            return model.maybe_loaded
        name = model.description.name
        if name not in self.loading:
            self.loading[name] = asyncio.create_task(self.in_thread(model.load))
            self.loading[name].add_done_callback(lambda _: self.loading.pop(name))
        return await asyncio.shield(self.loading[name])

    def check_texts(self, texts: Sequence[str]) -> int:
        """How many characters texts have; `RefusedError` where there are too many."""
        total = sum(map(len, texts))
        if len(texts) > self.limits.texts:
            raise RefusedError(400, "too_many_texts", f"one request may have {self.limits.texts} texts at most")
        if total > self.limits.characters:
            message = f"request ({total}) exceeds text limit ({self.limits.characters})"
            raise RefusedError(400, "text_too_long", message)
        return total

    async def plan(self, model: ServedModel, texts: Sequence[str], wish: Wish) -> tuple[Loaded, Plan]:
        """Texts as requests to a loaded model."""
        self.check_texts(texts)
        return await self.plan_texts(model, texts, wish)

    async def plan_texts(self, model: ServedModel, texts: Sequence[str], wish: Wish) -> tuple[Loaded, Plan]:
        """As `plan` for texts that are parts of those that were checked."""
        total = sum(map(len, texts))
        loaded = await self.load(model)
        arguments = (loaded, model.description, texts, wish, self.limits)
        plan = make_plan(*arguments) if total <= SHORT_CHARACTERS else await self.in_thread(make_plan, *arguments)
        self.metrics.add("characters", total)
        if self.limits.log_text:
            get_logger().info("%s: %r", model.description.name, list(texts))
        return loaded, plan

    async def client_of(self, request: Request, given: object = None) -> Client | None:
        """Whose key a request brings, in its head or as `given` in its body; `RefusedError` where it needs one."""
        if self.maybe_keys is None:
            return None
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if kind.lower() in ("bearer", "deepl-auth-key") and key.strip():
            return await self.in_thread(self.maybe_keys.find, key.strip())
        if isinstance(given, str) and given:
            return await self.in_thread(self.maybe_keys.find, given)
        raise RefusedError(401, "key_required", "this service needs a key")

    async def charge(self, client: Client | None, num_characters: int) -> None:
        """Count what a client uses; `RefusedError` where it is too much."""
        if client is not None and self.maybe_keys is not None:
            await self.in_thread(self.maybe_keys.charge, client, num_characters)

    async def refund(self, client: Client | None, num_characters: int) -> None:
        """Give back what a client was charged for and did not get."""
        if client is not None and self.maybe_keys is not None:
            await self.in_thread(self.maybe_keys.refund, client, num_characters)

    async def translate(
        self, request: Request, client: Client | None, model: ServedModel, texts: Sequence[str], wish: Wish
    ) -> tuple[Loaded, list[Answer]]:
        """Answers to all texts, unless the client leaves before."""
        leash = self.leash()
        loaded, plan = await self.plan(model, texts, wish)
        return loaded, await self.finish(request, leash, loaded, plan, await self.search(request, client, loaded, plan))

    async def finish(
        self, request: Request, leash: Leash, loaded: Loaded, plan: Plan, found: Sequence[Sequence[Hypothesis]]
    ) -> list[Answer]:
        """Hypotheses as texts."""
        if sum(map(len, plan.texts)) <= SHORT_CHARACTERS:
            return finish(loaded, plan, found)
        return await self.in_pieces(request, leash, finish, loaded, plan, found, leash.check)

    def leash(self) -> Leash:
        """The time that a request has, from now on."""
        return Leash(self.limits.deadline)

    async def in_pieces(
        self, request: Request, leash: Leash, function: Callable[P, T], *arguments: P.args, **words: P.kwargs
    ) -> T:
        """The value of a function that puts answers together, and does so only while somebody waits: in threads of
        their own, so that neither keys nor other requests wait for it."""
        work = self.finishers.submit(function, *arguments, **words)
        return await wait_for(work, request, leash, self.ending, stopping())

    async def search(
        self,
        request: Request,
        client: Client | None,
        loaded: Loaded,
        plan: Plan,
        maybe_characters: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of a plan, unless the client leaves before; `maybe_characters` are what it is charged for,
        those of the texts if left out."""
        watched = await self.submit(client, loaded, plan, maybe_characters=maybe_characters)
        async with aclosing(self.watch(request, watched)) as changes:
            async for ticket in changes:
                if ticket.is_done:
                    return ticket.hypotheses()
        raise ClientGoneError

    async def submit(
        self,
        client: Client | None,
        loaded: Loaded,
        plan: Plan,
        *,
        watches: bool = False,
        maybe_characters: int | None = None,
    ) -> Watched:
        """Charge the client and let the sentences wait for their turn; what is refused costs nothing."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            # The loop may be closed before the last step of a batch that nobody waits for.
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        ticket = Ticket(plan.group, plan.requests, tell, seconds=self.limits.deadline, watches=watches)
        num_characters = sum(map(len, plan.texts)) if maybe_characters is None else maybe_characters
        await self.charge(client, num_characters)
        try:
            loaded.batcher.submit(ticket)
        except RefusedError:
            await self.refund(client, num_characters)
            raise
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

    async def apart(
        self,
        request: Request,
        client: Client | None,
        num_characters: int,
        function: Callable[P, T],
        *arguments: P.args,
        **words: P.kwargs,
    ) -> T:
        """The value of a function that computes for long, one at a time beside the search; few may wait for it. The
        client is charged, unless it gets no answer."""
        leash = self.leash()
        await self.charge(client, num_characters)
        try:
            work = self.aside.submit(function, *arguments, **words)
            return await wait_for(work, request, leash, self.ending, stopping())
        except ClientGoneError:
            raise
        except Exception:
            await self.refund(client, num_characters)
            raise

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
