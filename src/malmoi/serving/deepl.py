"""The interface that clients of DeepL speak, in its second version.

In: JSON or forms. Out: JSON; a fault is `{"message": "..."}`. Texts and HTML are translated; glossaries, documents and
tags other than HTML's are not served, and what asks for them is refused. Options that no model of ours knows how to
heed (`context`, `preserve_formatting`, `model_type`, a preferred formality) are left alone.
"""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from malmoi.serving.bodies import (
    FORM_TYPE,
    JSON_TYPE,
    body_of,
    check,
    parse_form,
    parse_json,
    read_fields,
    reply,
    type_of,
)
from malmoi.serving.languages import maybe_match, name_of
from malmoi.serving.limits import RefusedError, shown
from malmoi.serving.models import ServedModel
from malmoi.serving.service import Caller, Service
from malmoi.serving.texts import translate_texts

MOST_TEXTS = 50
MOST_BYTES = 128 * 1024
NO_LIMIT = 10**12
"""What stands for a quota where there is none."""
REGIONS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}
"""Targets that clients know with a region alone."""


class TranslateBody(BaseModel):
    """`POST /v2/translate`"""

    text: list[str] = Field(min_length=1, max_length=MOST_TEXTS)
    target_lang: str = Field(max_length=100)
    source_lang: str | None = Field(default=None, max_length=100)
    split_sentences: Literal["0", "1", "nonewlines"] = "1"
    tag_handling: Literal["html", "xml"] | None = None
    formality: str | None = None
    glossary_id: str | None = None
    style_id: str | None = None


class Translation(BaseModel):
    detected_source_language: str
    text: str
    billed_characters: int


class Translations(BaseModel):
    translations: list[Translation]


class Language(BaseModel):
    language: str
    name: str
    supports_formality: bool


class Usage(BaseModel):
    character_count: int
    character_limit: int


class Fault(BaseModel):
    message: str


FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault} for status in (400, 403, 404, 408, 413, 415, 429, 456, 500, 503)
}


class DeepL:
    """The routes."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/v2", tags=["DeepL"], responses=FAULTS)
        add = router.add_api_route
        translate = body_of(TranslateBody, forms=True)
        add("/translate", self.translate, methods=["POST"], response_model=Translations, openapi_extra=translate)
        kinds = {"name": "type", "in": "query", "schema": {"type": "string", "enum": ["source", "target"]}}
        languages = {"parameters": [kinds]}
        add("/languages", self.languages, methods=["GET"], response_model=list[Language], openapi_extra=languages)
        add("/languages", self.languages, methods=["POST"], include_in_schema=False)
        for method in ("GET", "POST"):
            add("/usage", self.usage, methods=[method], response_model=Usage, operation_id=f"usage_{method.lower()}")
        return router

    async def translate(self, request: Request) -> JSONResponse:
        """Translate some texts."""
        fields, is_form = await read_fields(request)
        caller = await self.service.caller_of(request, fields.get("auth_key"))
        if is_form and isinstance(fields.get("text"), str):
            fields["text"] = [fields["text"]]
        body = check(TranslateBody, fields, is_form=is_form)
        check_served(body)
        if sum(len(text.encode()) for text in body.text) > MOST_BYTES:
            raise RefusedError(413, "text_too_long", f"all texts together may have {MOST_BYTES} bytes at most")
        self.service.check_texts(body.text)
        codes = [await self.source_of(caller, text, body) for text in body.text]
        async with self.service.charged(caller, body.text):
            outputs = await self.outputs(caller, codes, body)
        rows = zip(codes, outputs, body.text, strict=True)
        table = [
            {"detected_source_language": shown_code(code), "text": output, "billed_characters": len(text)}
            for code, output, text in rows
        ]
        return reply({"translations": table})

    async def outputs(self, caller: Caller, codes: list[str], body: TranslateBody) -> list[str]:
        """Translations in the order of the texts, model by model."""
        models = [self.model_for(code, body) for code in codes]
        outputs = [""] * len(codes)
        for model in dict.fromkeys(models):
            places = [place for place, one in enumerate(models) if one is model]
            found = await translate_texts(
                self.service,
                caller,
                model,
                [body.text[place] for place in places],
                {},
                is_html=body.tag_handling == "html",
                at_lines=body.split_sentences == "1",
                is_whole=body.split_sentences == "0",
            )
            for place, output in zip(places, found, strict=True):
                outputs[place] = output.text
        return outputs

    async def source_of(self, caller: Caller, text: str, body: TranslateBody) -> str:
        """The language of a text: as the client says, or the served one that it most looks like."""
        models = self.service.models
        if body.source_lang:
            return maybe_match(body.source_lang, models.sources) or unknown("source_lang", body.source_lang)
        able = [code for code in models.sources if models.maybe_for(code, body.target_lang) is not None]
        if len(able) < 2:
            return able[0] if able else unknown("target_lang", body.target_lang)
        ranked = await self.service.rank(caller, text)
        return next(code for code, _ in ranked if code in able)

    def model_for(self, source: str, body: TranslateBody) -> ServedModel:
        found = self.service.models.maybe_for(source, body.target_lang)
        return found or unknown("target_lang", body.target_lang)

    async def languages(self, request: Request) -> JSONResponse:
        """Languages of sources, or of targets; the type stands in the address or, as one client sends it, in a body."""
        await self.service.caller_of(request)
        kind = request.query_params.get("type") or await type_in_body(request) or "source"
        if kind not in ("source", "target"):
            raise RefusedError(400, "bad_request", "type must be source or target")
        models = self.service.models
        codes = models.sources if kind == "source" else models.targets
        shown_codes = [
            (name, code)
            for code in codes
            for name in (REGIONS.get(code, (shown_code(code),)) if kind == "target" else (shown_code(code),))
        ]
        table = [{"language": name, "name": name_of(name), "supports_formality": False} for name, _ in shown_codes]
        return reply(table)

    async def usage(self, request: Request) -> JSONResponse:
        """What a client has used this month, and what it may use."""
        client = (await self.service.caller_of(request)).maybe_client
        if client is None:
            return reply({"character_count": 0, "character_limit": NO_LIMIT})
        limit = NO_LIMIT if client.maybe_characters is None else client.maybe_characters
        return reply({"character_count": client.used, "character_limit": limit})


def check_served(body: TranslateBody) -> None:
    """Refuse what would silently not be done."""
    if body.tag_handling == "xml":
        raise RefusedError(400, "not_served", "tag_handling: html is served, xml is not")
    if body.glossary_id or body.style_id:
        raise RefusedError(400, "not_served", "glossaries and style rules are not served")
    if body.formality in ("more", "less"):
        raise RefusedError(400, "not_served", "formality: these models know one form; leave it out, or prefer one")


def unknown(name: str, value: str) -> Any:
    raise RefusedError(400, "bad_language", f"Value for '{name}' not supported: {shown(value)}")


def shown_code(code: str) -> str:
    """A code as DeepL's clients write it."""
    return code.upper()


async def type_in_body(request: Request) -> str | None:
    """The type in the body of a GET, where there is one."""
    body, kind = await request.body(), type_of(request)
    fields = parse_json(body) if body and kind == JSON_TYPE else parse_form(body) if body and kind == FORM_TYPE else {}
    value = fields.get("type")
    return value if isinstance(value, str) else None
