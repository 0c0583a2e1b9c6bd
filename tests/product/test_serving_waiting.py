"""Work beside the search: it ends with its time, with its client and with the service, and costs only who gets it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from malmoi.decoding.scorer import ModelScorer
from malmoi.serving import texts
from malmoi.serving.api import Api
from malmoi.serving.keys import Keys
from malmoi.serving.waiting import Leash
from serving_server import GOLDEN, PATIENCE, Running, send, serving, wait

HTML = {"q": "<p>a <b>b</b></p>" * 30, "source": "en", "target": "ko", "format": "html", "alternatives": 2}
EXPLAIN = {"model": "en-ko", "text": "one small horse plays."}


class Gate:
    """Pieces of HTML are put together once it is open; `made` holds them."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.made: list[str] = []
        self.plain = texts.render

    def render(self, *arguments: Any) -> str:
        assert self.is_open.wait(PATIENCE)
        self.made.append(self.plain(*arguments))
        return self.made[-1]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(texts, "render", made.render)
    yield made
    made.is_open.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Explanations that end when the event is set."""
    event = threading.Event()

    def explanation(*_: object) -> str:
        assert event.wait(PATIENCE)
        return "<p>done</p>"

    monkeypatch.setattr(Api, "explanation", explanation)
    yield event
    event.set()


def test_marks_are_put_in_while_the_deadline_allows(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    leashes, make = list[Leash](), Leash.__init__
    monkeypatch.setattr(Leash, "__init__", lambda self, seconds: leashes.append(self) or make(self, seconds))
    with serving() as running, ThreadPoolExecutor(4) as threads:
        slow = [threads.submit(running.post, "/translate", HTML) for _ in range(4)]
        wait(lambda: running.service.finishers.num_inside == 4)
        # Nobody else waits for them.
        assert running.post("/detect", {"q": "one small horse"}).status == 200
        for leash in leashes:
            leash.ends_at = 0.0
        gate.is_open.set()
        assert [one.result().status for one in slow] == [503] * 4
        wait(lambda: not running.service.finishers.num_inside)
        # Two had begun with a piece, and none began with another one.
        assert len(gate.made) <= 2
        assert running.post("/translate", {**HTML, "q": "<b>a</b>"}).status == 200


def test_nothing_is_put_together_for_one_who_has_left(gate: Gate) -> None:
    with serving() as running:
        with send(running, "/translate", HTML):
            wait(lambda: running.service.finishers.num_inside == 1)
        wait(lambda: not running.service.presence.num_active)
        gate.is_open.set()
        wait(lambda: not running.service.finishers.num_inside)
        assert len(gate.made) <= 1


def test_explanations_have_a_deadline(held: threading.Event) -> None:
    with serving(deadline=0.3) as running:
        reply = running.post("/api/explain", EXPLAIN)
        assert reply.status == 503 and reply.json["error"]["code"] == "deadline"
        held.set()
        wait(lambda: not running.service.aside.num_inside)
        assert running.post("/api/explain", EXPLAIN).body == b"<p>done</p>"


def test_nobody_waits_for_an_explanation_of_one_who_has_left(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained: list[str] = []
    explanation = Api.explanation
    monkeypatch.setattr(Api, "explanation", lambda *all_: explained.append("begun") or explanation(*all_))
    with serving() as running:
        clients = [send(running, "/api/explain", EXPLAIN) for _ in range(2)]
        wait(lambda: running.service.aside.num_inside == 2)
        for client in clients:
            client.close()
        # The one that has begun goes on, the one that has not does not begin.
        wait(lambda: not running.service.presence.num_active and running.service.aside.num_inside == 1)
        assert explained == ["begun"]
        held.set()
        wait(lambda: not running.service.aside.num_inside)
        assert explained == ["begun"]


def test_an_explanation_that_has_begun_ends_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    encode, asked = ModelScorer.encode, list[str]()

    def hold(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return encode(*arguments)

    with serving() as running:
        monkeypatch.setattr(ModelScorer, "encode", hold)
        monkeypatch.setattr(ModelScorer, "step_tensor", lambda *_: asked.append("a step"))
        with send(running, "/api/explain", EXPLAIN):
            assert begun.wait(PATIENCE)
        wait(lambda: not running.service.presence.num_active)
        assert running.service.aside.num_inside == 1
        go_on.set()
        wait(lambda: not running.service.aside.num_inside)
        assert asked == []
        monkeypatch.undo()
        assert running.post("/api/explain", EXPLAIN).status == 200


def test_what_is_not_explained_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    key = {"Authorization": f"Bearer {keys.add('a', 1_000)}"}
    keys.close()
    with serving(keys=tmp_path / "keys.sqlite") as running, ThreadPoolExecutor(4) as threads:

        def used() -> int:
            return running.get("/v2/usage", **key).json["character_count"]

        assert running.post("/api/explain", {**EXPLAIN, "text": " \n "}, **key).status == 400
        assert used() == 0
        event = threading.Event()
        monkeypatch.setattr(Api, "explanation", lambda *_: str(event.wait(PATIENCE)))
        waiting = [threads.submit(running.post, "/api/explain", EXPLAIN, **key) for _ in range(4)]
        wait(lambda: running.service.aside.num_inside == 4)
        cost = 4 * len(EXPLAIN["text"])
        assert running.post("/api/explain", EXPLAIN, **key).status == 429
        assert used() == cost
        event.set()
        assert [one.result().status for one in waiting] == [200] * 4
        assert used() == cost


SLOW = """
import time
from malmoi.__main__ import main
from malmoi.serving.api import Api
Api.explanation = lambda *_: time.sleep(1000)
main()
"""


@pytest.mark.parametrize("num_signals", [1, 2])
def test_the_process_ends_while_something_is_explained(num_signals: int) -> None:
    settings = ["--set", f"drain_seconds={0.5 if num_signals == 1 else 1_000}"]
    command = [sys.executable, "-c", SLOW, "serve", f"en-ko={GOLDEN}", "--port", "0", "--json", *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        running = Running(None, None, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2]))  # type: ignore[arg-type]
        with send(running, "/api/explain", EXPLAIN) as client:
            wait(lambda: b"malmoi_active_requests 2" in running.get("/metrics").body)
            for _ in range(num_signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert process.wait(PATIENCE) == 0
            if num_signals == 1:
                answer = b"".join(iter(lambda: client.recv(65_536), b""))
                assert answer.startswith(b"HTTP/1.1 503") and b'"code":"stopping"' in answer
    finally:
        process.kill()
        process.wait()
