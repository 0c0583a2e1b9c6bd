"""The OpenAPI document of the service: what it says is what is done, tried with inputs that it allows and forbids."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from serving_server import Running, serving

CHECKS = (
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(characters=500) as found:
        yield found


@pytest.fixture(scope="module")
def document(running: Running) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(running.get("/spec").json)


def operations(document: schemathesis.BaseSchema) -> list[tuple[str, str]]:
    return [(one.ok().method.upper(), one.ok().path) for one in document.get_all_operations()]


def test_the_document_holds_all_routes(document: schemathesis.BaseSchema) -> None:
    found = {path for _, path in operations(document)}
    assert {"/translate", "/detect", "/languages", "/frontend/settings", "/health"} <= found
    assert {"/v2/translate", "/v2/languages", "/v2/usage"} <= found
    assert {"/api/models", "/api/translate", "/api/stream", "/api/next", "/api/explain", "/api/runs/{name}"} <= found


def test_what_an_address_must_not_hold_is_said_as_it_is_done(running: Running) -> None:
    document = running.get("/spec").json
    told = {status for path in document["paths"].values() for one in path.values() for status in one["responses"]}
    assert "422" not in told and "400" in document["paths"]["/api/runs/{name}"]["get"]["responses"]
    assert "ValidationError" not in running.get("/spec").body.decode()
    assert running.get("/api/runs/a?after=x").status == 400


def test_heads_are_answered(running: Running) -> None:
    for path in ("/health", "/api/models", "/metrics", "/"):
        head, whole = running.ask("HEAD", path), running.get(path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]


PATHS = (
    ("POST", "/translate"),
    ("POST", "/detect"),
    ("GET", "/languages"),
    ("GET", "/frontend/settings"),
    ("GET", "/health"),
    ("POST", "/v2/translate"),
    ("GET", "/v2/languages"),
    ("GET", "/v2/usage"),
    ("POST", "/v2/usage"),
    ("GET", "/api/models"),
    ("POST", "/api/translate"),
    ("POST", "/api/stream"),
    ("POST", "/api/next"),
    ("POST", "/api/explain"),
    ("GET", "/api/runs"),
    ("GET", "/api/runs/{name}"),
)


TAKES_NOTHING = ("/languages", "/frontend/settings", "/health", "/v2/usage", "/api/models", "/api/runs")
CASES = [(*one, GenerationMode.POSITIVE) for one in PATHS]
CASES += [(*one, GenerationMode.NEGATIVE) for one in PATHS if one[1] not in TAKES_NOTHING]


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_answers_are_those_of_the_document(
    document: schemathesis.BaseSchema, running: Running, method: str, path: str, mode: GenerationMode
) -> None:
    assert set(operations(document)) == set(PATHS)
    strategy = document[path][method].as_strategy(generation_mode=mode)

    @settings(
        max_examples=12,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=running.url, checks=CHECKS)

    ask()
