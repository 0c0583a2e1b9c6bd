"""What a request costs its key, and how long it may take: all of it counts, once, and only what is answered."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from malmoi.decoding.batch import SearchBatch
from malmoi.serving.keys import Keys
from malmoi.serving.models import ServedModel
from malmoi.serving.tickets import Ticket
from malmoi.serving.waiting import Leash
from serving_server import Running, send, serving, wait

TEXT = "one small horse plays."
REQUESTS: dict[str, dict[str, Any]] = {
    "/translate": {"q": TEXT, "source": "en", "target": "ko"},
    "/v2/translate": {"text": [TEXT], "target_lang": "KO"},
    "/api/translate": {"model": "en-ko", "text": TEXT},
    "/api/next": {"model": "en-ko", "text": TEXT},
}


class Meter:
    """A service that asks for a key, and what was counted for it."""

    def __init__(self, running: Running, place: Path, key: str) -> None:
        self.running = running
        self.place = place
        self.headers = {"Authorization": f"Bearer {key}"}

    @property
    def used(self) -> int:
        keys = Keys(self.place)
        (client,) = keys.clients()
        keys.close()
        return client.used

    def post(self, path: str, **more: Any) -> Any:
        return self.running.post(path, {**REQUESTS[path], **more}, **self.headers)


@contextmanager
def metered(folder: Path, quota: int = 1_000, **settings: Any) -> Iterator[Meter]:
    place = folder / "keys.sqlite"
    keys = Keys(place)
    key = keys.add("a", quota)
    keys.close()
    with serving(keys=place, **settings) as running:
        running.service.models.by_name["en-ko"].load()
        yield Meter(running, place, key)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that come to no end but that of their time."""

    def step(_: SearchBatch) -> dict[int, Any]:
        time.sleep(0.01)
        return {}

    monkeypatch.setattr(SearchBatch, "step", step)


def test_all_that_the_model_is_given_counts(tmp_path: Path) -> None:
    with metered(tmp_path) as meter:
        for path, more, cost in (
            ("/api/translate", {"prefix": "하얀", "constraints": ["고양이", "개"]}, len(TEXT) + 2 + 3 + 1),
            ("/api/next", {"prefix": "작은"}, len(TEXT) + 2),
            ("/translate", {"q": [TEXT, " "]}, len(TEXT) + 1),
            ("/translate", {"source": "ko"}, 0),
            ("/v2/translate", {"text": ["<b>a</b>"], "tag_handling": "html"}, 8),
        ):
            before = meter.used
            assert meter.post(path, **more).status == 200
            assert meter.used - before == cost, (path, more)
        reply = meter.post("/api/translate", prefix="하" * 900)
        assert reply.status == 429 and "quota" in reply.json["error"]["code"]


def test_what_is_refused_costs_nothing(tmp_path: Path) -> None:
    with metered(tmp_path, sentence_characters=50) as meter:
        for path, more in (
            ("/api/translate", {"options": {"min_length": 900, "max_length": 10}}),
            ("/api/translate", {"text": "x" * 60, "prefix": "x"}),
            ("/api/next", {"text": "x" * 60}),
            ("/v2/translate", {"text": ["x" * 60], "split_sentences": "0"}),
        ):
            assert meter.post(path, **more).status == 400, more
        assert meter.used == 0


@pytest.mark.parametrize("path", list(REQUESTS))
def test_an_answer_that_is_not_there_in_time_costs_nothing(tmp_path: Path, endless: None, path: str) -> None:
    with metered(tmp_path, deadline=0.3) as meter:
        assert meter.post(path).status == 503
        wait(lambda: meter.used == 0)


def test_a_fault_of_our_own_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SearchBatch) -> None:
        raise ValueError

    monkeypatch.setattr(SearchBatch, "step", fail)
    with metered(tmp_path) as meter:
        for path in REQUESTS:
            assert meter.post(path).status == 500
        reply = meter.running.post("/api/explain", REQUESTS["/api/next"], **meter.headers)
        assert reply.status == 500 and meter.used == 0


def test_what_is_given_up_when_the_service_stops_costs_nothing(tmp_path: Path, endless: None) -> None:
    with metered(tmp_path, drain_seconds=0.1) as meter, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(meter.post, path) for path in REQUESTS]
        wait(lambda: meter.used == len(REQUESTS) * len(TEXT))
        meter.running.server.handle_exit(signal.SIGTERM, None)
        assert [one.result().status for one in asked] == [503] * len(REQUESTS)
    assert meter.used == 0


def test_who_leaves_pays(tmp_path: Path, endless: None) -> None:
    """What a stream has shown would else be free, and so would all work that nobody waits for."""
    with metered(tmp_path) as meter:
        key = meter.headers["Authorization"].removeprefix("Bearer ")
        with send(meter.running, "/translate", {**REQUESTS["/translate"], "api_key": key}):
            wait(lambda: meter.used == len(TEXT))
        wait(lambda: not meter.running.service.presence.num_active)
        assert meter.used == len(TEXT)


def test_many_at_once_have_no_more_than_there_is(tmp_path: Path, endless: None) -> None:
    with metered(tmp_path, 3 * len(TEXT), drain_seconds=0.1) as meter, ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(meter.post, "/translate") for _ in range(8)]
        wait(lambda: sum(one.done() for one in asked) == 5)
        assert meter.used == 3 * len(TEXT)
        meter.running.server.handle_exit(signal.SIGTERM, None)
        assert sorted(one.result().status for one in asked) == [429] * 5 + [503] * 3
    assert meter.used == 0


def test_a_stream_that_breaks_off_costs_what_it_has_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, told = SearchBatch.step, list[int]()

    def step(batch: SearchBatch) -> dict[int, Any]:
        """The first sentence that is done is the last one."""
        if told:
            time.sleep(0.01)
            return {}
        found = plain(batch)
        told.extend(found)
        return found

    monkeypatch.setattr(SearchBatch, "step", step)
    with metered(tmp_path, deadline=2.0, batch_tokens=1) as meter:
        body = {"model": "en-ko", "text": f"{TEXT}\n\ntwo white dogs sleep."}
        reply = meter.running.post("/api/stream", body, **meter.headers)
        events = [block.split("\n") for block in reply.body.decode().split("\n\n") if block]
        assert [name for name, _ in events if name != "event: partial"] == ["event: sentence", "event: error"]
        assert json.loads(events[-1][1].removeprefix("data: "))["code"] == "deadline"
        assert meter.used == len(TEXT)


def test_a_request_has_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a request needs, its searches end when all else of it does."""
    leashes, tickets = list[Leash](), list[Ticket]()
    make_leash, make_ticket = Leash.__init__, Ticket.__init__

    def leash(self: Leash, seconds: float) -> None:
        make_leash(self, seconds)
        leashes.append(self)

    def ticket(self: Ticket, *arguments: Any, **words: Any) -> None:
        make_ticket(self, *arguments, **words)
        tickets.append(self)

    monkeypatch.setattr(Leash, "__init__", leash)
    monkeypatch.setattr(Ticket, "__init__", ticket)
    requests = [*REQUESTS.items(), ("/api/stream", REQUESTS["/api/next"])]
    requests += [("/translate", {**REQUESTS["/translate"], "q": "<b>a</b> b.", "format": "html"})]
    with serving() as running:
        for path, body in requests:
            leashes.clear()
            tickets.clear()
            assert running.post(path, body).status == 200
            assert len(leashes) == 1 and tickets, path
            assert {one.ends_at for one in tickets} == {leashes[0].ends_at}
            assert len(tickets) == (2 if path == "/api/next" else 1)


def test_the_time_for_loading_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    event, read = threading.Event(), ServedModel.read
    monkeypatch.setattr(ServedModel, "read", lambda self: read(self) if event.wait(60) else None)
    with serving(deadline=0.3) as running:
        reply = running.post("/translate", REQUESTS["/translate"])
        assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
        event.set()
        wait(lambda: running.service.models.by_name["en-ko"].maybe_loaded is not None)
