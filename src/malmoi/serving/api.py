"""Our own interface: what neither of the foreign ones has, for the page and for programs.

In: JSON. Out: JSON, events, or the page of an explanation; a fault is `{"error": {"code": ..., "message": ...}}`.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from malmoi.errors import MalmoiError
from malmoi.report.explanation import Language, explanation_page
from malmoi.serving.bodies import body_of, check, read_json, reply
from malmoi.serving.following import next_words
from malmoi.serving.guard import internal
from malmoi.serving.keys import Charge
from malmoi.serving.limits import RefusedError, bounded_options, check_number
from malmoi.serving.models import Loaded, ServedModel
from malmoi.serving.service import Caller, Service
from malmoi.serving.tables import (
    ExplainBody,
    Fault,
    NextBody,
    NextWords,
    Offsets,
    TranslateBody,
    Translated,
    answer_table,
    sentence_table,
)
from malmoi.serving.tickets import Ticket
from malmoi.serving.translation import Answer, Plan, Wish, build, make_answer
from malmoi.serving.waiting import ClientGoneError
from malmoi.text.ids import REPLACEMENT

if TYPE_CHECKING:
    from malmoi.checkpoint import Model

FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault} for status in (400, 401, 404, 408, 413, 415, 429, 500, 503)
}
EVENTS = "text/event-stream"
MOST_STEP = 2**53


class Api:
    """The routes."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.explained: dict[str, Model] = {}

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/api", tags=["malmoi"], responses=FAULTS)
        add = router.add_api_route
        translate = body_of(TranslateBody, forms=False)
        add("/models", self.models, methods=["GET"], response_model=dict[str, Any])
        add("/models", self.models, methods=["HEAD"], include_in_schema=False)
        add("/translate", self.translate, methods=["POST"], response_model=Translated, openapi_extra=translate)
        add(
            "/stream",
            self.stream,
            methods=["POST"],
            response_class=Response,
            responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}},
            openapi_extra=translate,
        )
        following = body_of(NextBody, forms=False)
        add("/next", self.next, methods=["POST"], response_model=NextWords, openapi_extra=following)
        explain = body_of(ExplainBody, forms=False)
        add(
            "/explain",
            self.explain,
            methods=["POST"],
            response_class=Response,
            responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
            openapi_extra=explain,
        )
        add("/runs", self.runs, methods=["GET"], response_model=dict[str, Any])
        add("/runs/{name}", self.run, methods=["GET"], response_model=dict[str, Any])
        return router

    async def models(self) -> JSONResponse:
        """What is served, and what may be asked for."""
        limits = self.service.limits
        table = {
            "models": [model_table(model) for model in self.service.models.by_name.values()],
            "limits": {
                "characters": limits.characters,
                "alternatives": limits.alternatives + 1,
                "beam_size": limits.beam_size,
                "max_length": limits.max_length,
                "constraints": limits.constraints,
                "explain_characters": limits.explain_characters,
            },
            "key_required": self.service.maybe_keys is not None,
            "runs": self.service.maybe_runs is not None,
        }
        return reply(table)

    async def read(self, request: Request) -> tuple[TranslateBody, Caller, ServedModel, Wish]:
        """What a request for a translation asks for."""
        fields = await read_json(request)
        caller = await self.service.caller_of(request)
        body = check(TranslateBody, fields)
        limits = self.service.limits
        if len(body.constraints) > limits.constraints:
            raise RefusedError(400, "bad_request", f"constraints: at most {limits.constraints} phrases")
        self.service.check_texts(body.given)
        options = bounded_options(body.options, limits, n_best=body.n_best)
        wish = Wish(options, body.prefix, tuple(body.constraints), aligns=body.details)
        return body, caller, self.service.models.named(body.model), wish

    async def translate(self, request: Request) -> JSONResponse:
        """Translate a text; with `details` words, tokens and alignments too."""
        body, caller, model, wish = await self.read(request)
        async with self.service.charged(caller, body.given):
            loaded, (answer,) = await self.service.translate(caller, model, [body.text], wish)
            return reply(await self.table(caller, loaded, answer, body))

    async def table(self, caller: Caller, loaded: Loaded, answer: Answer, body: TranslateBody) -> dict[str, Any]:
        """A whole answer as a table."""
        service = self.service
        return await service.run(service.finishers, caller, answer_table, loaded, answer, details=body.details)

    async def stream(self, request: Request) -> Response:
        """Translate a text and tell it while it is made: events `partial`, `sentence`, and `done` or `error`."""
        body, caller, model, wish = await self.read(request)
        async with self.service.charged(caller, body.given) as maybe_charge:
            loaded, plan = await self.service.plan(caller, model, [body.text], wish)
            watched = self.service.submit(caller, loaded, plan, watches=True)
        telling = Telling(loaded, plan, watched.ticket, details=body.details)
        events = self.events(caller, telling, self.service.watch(request, watched), body, maybe_charge)
        return StreamingResponse(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})

    async def events(
        self,
        caller: Caller,
        telling: "Telling",
        changes: AsyncGenerator[Ticket],
        body: TranslateBody,
        maybe_charge: Charge | None,
    ) -> AsyncGenerator[str]:
        """The events of one translation; where it fails, a key pays for the sentences that were told."""
        loaded, plan, ticket = telling.loaded, telling.plan, telling.ticket
        try:
            async with aclosing(changes):
                async for _ in changes:
                    for name, table in telling.news():
                        yield event(name, table)
            if not ticket.is_done:
                return
            (answer,) = await self.service.finish(caller, loaded, plan, ticket.hypotheses())
            yield event("done", await self.table(caller, loaded, answer, body))
        except ClientGoneError:
            return
        except Exception as error:
            await self.service.refund(maybe_charge, telling.num_told)
            told = error if isinstance(error, RefusedError) else internal()
            yield event("error", {"code": told.code, "message": told.message})
            if told is not error:
                raise

    async def next(self, request: Request) -> JSONResponse:
        """Words that could stand behind a prefix of the translation of one sentence."""
        fields = await read_json(request)
        caller = await self.service.caller_of(request)
        body = check(NextBody, fields)
        check_number("count", body.count, 1, self.service.limits.alternatives + 1, whole=True)
        self.service.check_texts(body.given)
        model = self.service.models.named(body.model)
        async with self.service.charged(caller, body.given):
            words = await next_words(self.service, caller, model, body.text, body.prefix, body.count)
        table = [{"text": one.text, "probability": one.probability, "prefix": one.prefix} for one in words]
        return reply({"words": table})

    async def explain(self, request: Request) -> Response:
        """The page of `malmoi explain` for one sentence."""
        fields = await read_json(request)
        caller = await self.service.caller_of(request)
        body = check(ExplainBody, fields)
        if body.language not in get_args(Language):
            raise RefusedError(400, "bad_request", f"language: must be {' or '.join(get_args(Language))}")
        most = self.service.limits.explain_characters
        if len(body.text) > most:
            raise RefusedError(400, "text_too_long", f"a sentence of at most {most} characters is explained")
        model = self.service.models.named(body.model)
        language = cast(Language, body.language)
        async with self.service.charged(caller, [body.text]):
            arguments = (model, body.text, language, caller.leash.check)
            return HTMLResponse(await self.service.run(self.service.aside, caller, self.explanation, *arguments))

    def explanation(self, model: ServedModel, text: str, language: Language, check: Callable[[], None]) -> str:
        """The page; the network that is replayed is read when the first one is asked for. `check` is called between
        pieces of work, and raises where nobody waits any more."""
        # A service that explains nothing needs no torch.
        from malmoi.checkpoint import load_model
        from malmoi.explain.sentence import explain_sentence

        one = model.description
        try:
            if one.name not in self.explained:
                self.explained[one.name] = load_model(one.path)
            explanation = explain_sentence(self.explained[one.name], text, check=check)
            check()
            return explanation_page(explanation, language)
        except MalmoiError as error:
            raise RefusedError(400, "cannot_explain", str(error)) from error

    async def runs(self, request: Request) -> JSONResponse:
        """Runs of training in the folder that the operator named."""
        await self.service.caller_of(request)
        runs = self.service.maybe_runs
        return reply({"runs": [], "left_out": 0} if runs is None else await self.service.look(runs.list))

    async def run(
        self,
        request: Request,
        name: str = Path(max_length=255),
        after: int = Query(default=-1, ge=-1, le=MOST_STEP),
    ) -> JSONResponse:
        """What a run has written behind a step."""
        await self.service.caller_of(request)
        runs = self.service.maybe_runs
        if runs is None:
            raise RefusedError(404, "no_such_run", "this service shows no runs")
        return reply(await self.service.look(runs.read, name, after))


class Telling:
    """What of a translation has been told."""

    def __init__(self, loaded: Loaded, plan: Plan, ticket: Ticket, *, details: bool) -> None:
        self.loaded = loaded
        self.plan = plan
        self.ticket = ticket
        self.details = details
        self.said: dict[int, str] = {}
        self.done: set[int] = set()
        self.num_told = 0
        """Characters of the request's sentences that were told whole."""
        # Which sentence each request is of: those that were known without the model have none.
        self.sentences = [number for number, one in enumerate(plan.prepared) if one.request is not None]

    def news(self) -> list[tuple[Literal["partial", "sentence"], dict[str, Any]]]:
        """Events since the last call."""
        found: list[tuple[Literal["partial", "sentence"], dict[str, Any]]] = []
        target = self.loaded.translator.tokenizers.target
        for place, ids in list(self.ticket.partial.items()):
            # The rest of a character may still come.
            text = target.decode(ids).strip().rstrip(REPLACEMENT)
            if place not in self.done and text and self.said.get(place) != text:
                self.said[place] = text
                number = self.sentences[place]
                found.append(("partial", {"sentence": number, "gap": self.gap(number), "text": text}))
        for place, hypotheses in enumerate(self.ticket.results):
            if hypotheses is not None and place not in self.done:
                number = self.sentences[place]
                span = self.plan.spans[0][number]
                self.done.add(place)
                self.num_told += span.end - span.start
                found.append(("sentence", self.sentence(number, hypotheses)))
        return found

    def gap(self, number: int) -> str:
        """What stands between the sentence before and this one."""
        spans = self.plan.spans[0]
        return self.plan.texts[0][spans[number - 1].end if number else 0 : spans[number].start]

    def sentence(self, number: int, hypotheses: Any) -> dict[str, Any]:
        """A sentence that is done; places in its translation count from its own beginning."""
        done = build(self.loaded, self.plan.prepared[number], iter([hypotheses]), self.plan.config)
        text, span = self.plan.texts[0], self.plan.spans[0][number]
        answer = make_answer(text, [span], [done])
        alone = replace(answer.sentences[0], start=0)
        offsets = Offsets(text), Offsets(alone.translation.text)
        return {
            "sentence": number,
            "gap": self.gap(number),
            **sentence_table(self.loaded, answer, alone, *offsets, details=self.details),
        }


def event(name: str, table: Any) -> str:
    """One server-sent event; JSON has no line breaks of its own."""
    return f"event: {name}\ndata: {json.dumps(table, ensure_ascii=False, allow_nan=False)}\n\n"


def model_table(model: ServedModel) -> dict[str, Any]:
    """A model as clients see it."""
    one = model.description
    return {
        "name": one.name,
        "source": one.source,
        "target": one.target,
        "source_name": one.source_name,
        "target_name": one.target_name,
        "architecture": one.config.model.architecture,
        "attention": one.has_attention,
        "parameters": one.num_parameters,
        "explain": True,
        "examples": list(one.examples),
    }
