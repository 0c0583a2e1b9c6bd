"""Bodies of requests, JSON or form, as checked tables; and answers whose shape is that of their interface.

In: a request whose body the guard lets through, and a table's type. Out: the table, or a `RefusedError` of status 400
or 415. In JSON a name that comes twice has its last value, and unknown names are left alone; NaN, infinities, lone
surrogates and other than UTF-8 are refused.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from malmoi.serving.limits import RefusedError, shown

JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"
MOST_FIELDS = 1_000
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Fields = dict[str, Any]
T = TypeVar("T", bound=BaseModel)


async def read_fields(request: Request) -> tuple[Fields, bool]:
    """The fields of a body, and whether they are a form's, whose values are all text."""
    body, kind = await request.body(), type_of(request)
    if kind == JSON_TYPE:
        return parse_json(body), False
    if kind == FORM_TYPE:
        return parse_form(body), True
    raise RefusedError(415, "media_type", f"the body must be {JSON_TYPE} or {FORM_TYPE}")


async def read_json(request: Request) -> Fields:
    """The fields of a body that must be JSON."""
    body = await request.body()
    if type_of(request) != JSON_TYPE:
        raise RefusedError(415, "media_type", f"the body must be {JSON_TYPE}")
    return parse_json(body)


def type_of(request: Request) -> str:
    """The media type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_json(body: bytes) -> Fields:
    """A JSON object; `RefusedError` for anything else."""
    try:
        value: Any = json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
        if SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RefusedError(400, "bad_json", "the text holds half of a surrogate pair, which is no character") from None
    except UnicodeDecodeError:
        raise RefusedError(400, "bad_json", "the body is not UTF-8") from None
    except (ValueError, RecursionError):
        raise RefusedError(400, "bad_json", "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "bad_json", "the body must be one JSON object")
    return cast(Fields, value)


def refuse_constant(name: str) -> float:
    raise ValueError(name)


def parse_form(body: bytes) -> Fields:
    """Fields of a form; one that comes several times is a list."""
    try:
        pairs = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS, encoding="utf-8"
        )
    except ValueError:
        raise RefusedError(400, "bad_form", "the form is not valid UTF-8, or has too many fields") from None
    fields: Fields = {}
    for name, value in pairs:
        plain = value.replace("\r\n", "\n")
        if name not in fields:
            fields[name] = plain
        elif isinstance(fields[name], list):
            fields[name].append(plain)
        else:
            fields[name] = [fields[name], plain]
    return fields


def check(kind: type[T], fields: Mapping[str, Any], *, is_form: bool = False) -> T:
    """Fields as a table; a form's numbers are read from text. `RefusedError` names the first fault."""
    try:
        return kind.model_validate(fields, strict=not is_form)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(shown(str(part)) for part in fault["loc"]) or "the request"
        raise RefusedError(400, "bad_request", f"{place}: {fault['msg']}") from None


def body_of(kind: type[BaseModel], *, forms: bool) -> dict[str, Any]:
    """What the OpenAPI document says of a body."""
    schema = kind.model_json_schema()
    types = (JSON_TYPE, FORM_TYPE) if forms else (JSON_TYPE,)
    return {"requestBody": {"required": True, "content": {one: {"schema": schema} for one in types}}}


def reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """JSON; numbers in it are finite, or this raises."""
    return JSONResponse(content, status, dict(headers) if headers else None)


def refusal(path: str, error: RefusedError) -> JSONResponse:
    """A refusal in the words of the interface that was asked."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    is_deepl, is_ours = (path == part or path.startswith(f"{part}/") for part in ("/v2", "/api"))
    # 456 is DeepL's own, and only our interface knows keys by 401.
    status = error.status
    if status == 456 and not is_deepl:
        status = 429
    if status == 401 and not is_ours:
        status = 403
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if is_deepl:
        return reply({"message": error.message}, status, headers)
    if is_ours:
        return reply({"error": {"code": error.code, "message": error.message}}, status, headers)
    return reply({"error": error.message}, status, headers)
