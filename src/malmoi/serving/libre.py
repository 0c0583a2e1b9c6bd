"""The interface that clients of LibreTranslate speak.

In: JSON or forms. Out: JSON; a fault is `{"error": "..."}`. What is not served (files, suggestions) is no route.
"""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from malmoi.serving.bodies import body_of, check, read_fields, reply
from malmoi.serving.languages import maybe_match, name_of
from malmoi.serving.limits import RefusedError, bounded_options, shown
from malmoi.serving.models import ServedModel
from malmoi.serving.service import Caller, Service
from malmoi.serving.texts import Output, translate_texts

AUTO = "auto"


class TranslateBody(BaseModel):
    """`POST /translate`"""

    q: str | list[str]
    source: str = Field(max_length=100)
    target: str = Field(max_length=100)
    format: Literal["text", "html"] = "text"
    alternatives: int = 0
    api_key: str | None = None


class DetectBody(BaseModel):
    """`POST /detect`"""

    q: str
    api_key: str | None = None


class Detected(BaseModel):
    confidence: float
    language: str


class Translated(BaseModel):
    """The answer of `/translate`: lists where `q` is a list; what was not asked for is not there."""

    translatedText: str | list[str]
    detectedLanguage: Detected | list[Detected] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class Fault(BaseModel):
    error: str


FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault} for status in (400, 403, 404, 408, 413, 415, 429, 500, 503)
}


class Libre:
    """The routes."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> APIRouter:
        router = APIRouter(tags=["LibreTranslate"], responses=FAULTS)
        add = router.add_api_route
        translate, detect = body_of(TranslateBody, forms=True), body_of(DetectBody, forms=True)
        add("/translate", self.translate, methods=["POST"], response_model=Translated, openapi_extra=translate)
        add("/detect", self.detect, methods=["POST"], response_model=list[Detected], openapi_extra=detect)
        add("/languages", self.languages, methods=["GET"], response_model=list[Language])
        # One client posts where others get.
        add("/languages", self.languages, methods=["POST"], include_in_schema=False)
        add("/frontend/settings", self.settings, methods=["GET"], response_model=dict[str, Any])
        add("/health", self.health, methods=["GET"], response_model=dict[str, str])
        add("/health", self.health, methods=["HEAD"], include_in_schema=False)
        return router

    async def translate(self, request: Request) -> JSONResponse:
        """Translate one text or a list of them."""
        fields, is_form = await read_fields(request)
        caller = await self.service.caller_of(request, fields.get("api_key"))
        for name in ("q", "source", "target"):
            if fields.get(name) is None:
                raise RefusedError(400, "bad_request", f"Invalid request: missing {name} parameter")
        body = check(TranslateBody, fields, is_form=is_form)
        options = bounded_options({}, self.service.limits, n_best=1 + self.checked_alternatives(body.alternatives))
        texts = body.q if isinstance(body.q, list) else [body.q]
        self.service.check_texts(texts)
        ways = [await self.way(caller, text, body) for text in texts]
        translated = [text for text, (_, _, model) in zip(texts, ways, strict=True) if model is not None]
        async with self.service.charged(caller, translated):
            outputs = await self.outputs(caller, texts, ways, body, options)
        answer: dict[str, Any] = {"translatedText": [output.text for output in outputs]}
        if body.source == AUTO:
            answer["detectedLanguage"] = [{"confidence": share, "language": code} for code, share, _ in ways]
        if body.alternatives:
            answer["alternatives"] = [output.alternatives for output in outputs]
        if not isinstance(body.q, list):
            answer = {name: values[0] for name, values in answer.items()}
        return reply(answer)

    def checked_alternatives(self, wanted: int) -> int:
        most = self.service.limits.alternatives
        if not 0 <= wanted <= most:
            raise RefusedError(400, "bad_option", f"alternatives must be from 0 to {most}")
        return wanted

    async def way(self, caller: Caller, text: str, body: TranslateBody) -> tuple[str, float, ServedModel | None]:
        """The source language of a text, how sure that is, and the model; None where nothing is to be translated."""
        models = self.service.models
        known = list(dict.fromkeys([*models.sources, *models.targets]))
        target = maybe_match(body.target, known)
        if target is None:
            raise RefusedError(400, "bad_language", f"{shown(body.target)} is not supported")
        if body.source == AUTO:
            ranked = await self.service.rank(caller, text)
            able = [(code, share) for code, share in ranked if models.maybe_for(code, target)]
            if ranked and ranked[0][0] == target:
                able = ranked
            if not able:
                raise RefusedError(400, "bad_language", f"{name_of(target)} ({target}) is not available as a target")
            source, share = able[0]
        else:
            found = maybe_match(body.source, known)
            if found is None:
                raise RefusedError(400, "bad_language", f"{shown(body.source)} is not supported")
            source, share = found, 100.0
        model = models.maybe_for(source, target)
        if model is None and source != target:
            raise RefusedError(
                400,
                "bad_language",
                f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})",
            )
        return source, share, model

    async def outputs(
        self,
        caller: Caller,
        texts: list[str],
        ways: list[tuple[str, float, ServedModel | None]],
        body: TranslateBody,
        options: dict[str, Any],
    ) -> list[Output]:
        """Translations in the order of the texts, model by model."""
        outputs = [Output(text, []) for text in texts]
        for model in dict.fromkeys(model for _, _, model in ways if model is not None):
            places = [place for place, (_, _, one) in enumerate(ways) if one is model]
            found = await translate_texts(
                self.service,
                caller,
                model,
                [texts[place] for place in places],
                options,
                is_html=body.format == "html",
                num_alternatives=body.alternatives,
            )
            for place, output in zip(places, found, strict=True):
                outputs[place] = output
        return outputs

    async def detect(self, request: Request) -> JSONResponse:
        """Which served language a text is in."""
        fields, is_form = await read_fields(request)
        caller = await self.service.caller_of(request, fields.get("api_key"))
        if fields.get("q") is None:
            raise RefusedError(400, "bad_request", "Invalid request: missing q parameter")
        body = check(DetectBody, fields, is_form=is_form)
        self.service.check_texts([body.q])
        ranked = await self.service.rank(caller, body.q)
        return reply([{"confidence": share, "language": code} for code, share in ranked])

    async def languages(self) -> JSONResponse:
        """All languages, and into which each can be translated."""
        models = self.service.models
        codes = dict.fromkeys([*models.sources, *models.targets])
        return reply([{"code": code, "name": name_of(code), "targets": models.targets_of(code)} for code in codes])

    async def settings(self) -> JSONResponse:
        """What a front end wants to know."""
        pairs = list(self.service.models.by_pair)
        source, target = pairs[0] if pairs else ("", "")
        return reply(
            {
                "charLimit": self.service.limits.characters,
                "frontendTimeout": 500,
                "apiKeys": self.service.maybe_keys is not None,
                "keyRequired": self.service.maybe_keys is not None,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {
                    "source": {"code": source, "name": name_of(source)},
                    "target": {"code": target, "name": name_of(target)},
                },
            }
        )

    async def health(self) -> JSONResponse:
        """Whether the service serves."""
        return reply({"status": "ok"})
