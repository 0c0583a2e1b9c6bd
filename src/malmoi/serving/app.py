"""The whole service as one ASGI application, made from its parts; nothing is kept outside of it.

In: models, limits, keys and folders. Out: an application for a server, and the `Service` behind it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from malmoi.serving.api import Api
from malmoi.serving.bodies import refusal, reply
from malmoi.serving.deepl import DeepL
from malmoi.serving.guard import Guard, internal
from malmoi.serving.libre import Libre
from malmoi.serving.limits import RefusedError
from malmoi.serving.page_files import PageFile, page_files, page_policy
from malmoi.serving.service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(service: Service) -> ASGIApp:
    """All routes behind their guard."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        service.close()

    app = FastAPI(
        title="malmoi",
        version=version("malmoi"),
        description="Translation over HTTP: LibreTranslate's interface, DeepL's second version, and one of our own.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_exception_handler(RefusedError, say_refusal)
    app.add_exception_handler(Exception, say_failure)
    app.add_exception_handler(HTTPException, say_http_fault)
    app.add_exception_handler(RequestValidationError, say_bad_address)
    app.include_router(Libre(service).routes())
    app.include_router(DeepL(service).routes())
    app.include_router(Api(service).routes())
    add_own_routes(app, service)
    guarded = Guard(app, service.limits, service.metrics, service.presence)
    if service.limits.cors:
        # Outside of the guard, so that a page may read its refusals too.
        return CORSMiddleware(
            guarded,
            allow_origins=list(service.limits.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    return guarded


def add_own_routes(app: FastAPI, service: Service) -> None:
    """The document of all routes, the numbers, and the page."""

    async def spec() -> JSONResponse:
        return reply(document_of(app))

    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.as_text(), media_type=METRICS_TYPE)

    app.add_api_route("/spec", spec, methods=["GET"], include_in_schema=False)
    app.add_api_route("/metrics", metrics, methods=["GET", "HEAD"], include_in_schema=False)
    policy = page_policy()
    for path, file in page_files().items():
        app.add_api_route(f"/{path}", answer_with(file, policy), methods=["GET", "HEAD"], include_in_schema=False)


def document_of(app: FastAPI) -> dict[str, Any]:
    """What the service offers, without the framework's own answer to a bad address: ours is 400."""
    document = app.openapi()
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    return document


def answer_with(file: PageFile, policy: str) -> Callable[[Request], Awaitable[Response]]:
    """The route of a file of the page."""

    async def page(request: Request) -> Response:
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": policy}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    return page


async def say_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return refusal(request.url.path, error)


async def say_failure(request: Request, error: Exception) -> Response:
    """A fault of our own; the guard writes it to the log."""
    del error
    return refusal(request.url.path, internal())


async def say_bad_address(request: Request, error: Exception) -> Response:
    """A part of the address that is not what it must be."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    return refusal(request.url.path, RefusedError(400, "bad_request", f"{fault['loc'][-1]}: {fault['msg']}"))


async def say_http_fault(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: routes and methods that are not there."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such route here", 405: "this route does not know this method"}
    message = words.get(error.status_code, str(error.detail))
    response = refusal(request.url.path, RefusedError(error.status_code, "no_such_route", message))
    response.headers.update(dict(error.headers or {}))
    return response
