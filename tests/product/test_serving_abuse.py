"""What people send by mistake or on purpose: never a 500, never a lost worker, and the next request is served."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from malmoi.serving import guard
from malmoi.translate import Translator
from serving_server import GOLDEN, PATIENCE, Running, serving, wait

GOOD = {"q": "one small horse plays.", "source": "en", "target": "ko"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SHAPES = {"/translate": "error", "/v2/translate": "message", "/api/translate": "error", "/detect": "error"}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(body_bytes=20_000, characters=2_000, body_seconds=1.0, idle_seconds=1.0) as found:
        yield found


def check_fault(path: str, reply: Any) -> None:
    """A 4xx in the interface's own shape, without a trace of the program."""
    assert 400 <= reply.status < 500, reply
    assert SHAPES[path] in reply.json
    assert b"Traceback" not in reply.body and b".py" not in reply.body


BROKEN = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"1",
    b"{}",
    b'{"q": NaN}',
    b'{"q": "\\ud83e", "source": "en", "target": "ko"}',
    b'{"text": ["\\ud83e"], "target_lang": "KO"}',
    b'{"model": "en-ko", "text": "\\udd17"}',
    b'{"\\ud800": 1, "q": "x", "source": "en", "target": "ko"}',
    b"\xff\xfe",
    b'{"q": "\xe9"}',
    b"[" * 10_000,
    b'{"a":' * 3_000,
    b'{"q": ' + b"9" * 5_000 + b"}",
    bytes(range(256)) * 20,
)


@pytest.mark.parametrize("path", list(SHAPES))
def test_broken_bodies(running: Running, path: str) -> None:
    """huggingface/transformers#8886 and #43459, openai/tiktoken#82: a lone surrogate. translate-tools/core#67."""
    for body in BROKEN:
        for headers in (JSON, FORM, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}, {}):
            check_fault(path, running.ask("POST", path, body, headers))
    assert running.post("/translate", GOOD).status == 200


WRONG: tuple[Any, ...] = (None, 5, 1.5, True, {}, {"a": "b"}, [1], [None], [["x"]], [{}], ["x", 5])


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_values_of_another_type(running: Running, value: Any) -> None:
    """facebookresearch/metaseq#76, OpenNMT/CTranslate2#50 and #819, AidanWelch/google-translate-api#30."""
    for name in GOOD:
        check_fault("/translate", running.post("/translate", {**GOOD, name: value}))
    if value is not None:
        check_fault("/translate", running.post("/translate", {**GOOD, "format": value}))
        check_fault("/translate", running.post("/translate", {**GOOD, "alternatives": "x" if value == 5 else value}))
    good = {"model": "en-ko", "text": "a"}
    for name in ("model", "text", "prefix", "n_best", "constraints", "options"):
        is_right = (name == "n_best" and value == 5) or (name == "options" and value == {})
        if not is_right:
            check_fault("/api/translate", running.post("/api/translate", {**good, name: value}))
    check_fault("/v2/translate", running.post("/v2/translate", {"text": value, "target_lang": "KO"}))
    check_fault("/v2/translate", running.post("/v2/translate", {"text": ["a"], "target_lang": value}))


def test_empty_and_blank_texts_are_answered(running: Running) -> None:
    """An empty list is accepted and answered with one; of a name that comes twice the last value counts."""
    for text in ("", " ", "\n\t ", "\u3000\u00a0"):
        assert running.post("/translate", {**GOOD, "q": text}).json == {"translatedText": text}
        assert (
            running.post("/v2/translate", {"text": [text], "target_lang": "KO"}).json["translations"][0]["text"] == text
        )
        assert running.post("/api/translate", {"model": "en-ko", "text": text}).json["text"] == text
    assert running.post("/translate", {**GOOD, "q": []}).json == {"translatedText": []}
    mixed = running.post("/translate", {**GOOD, "q": ["", GOOD["q"], "  "]}).json["translatedText"]
    assert mixed[0] == "" and mixed[1] and mixed[2] == "  "
    twice = b'{"q": "", "source": "en", "target": "ko", "q": " "}'
    assert running.ask("POST", "/translate", twice, JSON).json == {"translatedText": " "}


def test_a_proper_pair_of_surrogates_is_one_character(running: Running) -> None:
    body = b'{"q": "\\ud83e\\udd17 one small horse plays.", "source": "en", "target": "ko"}'
    reply = running.ask("POST", "/translate", body, JSON)
    assert reply.status == 200 and reply.json == running.post("/translate", GOOD).json


@pytest.mark.parametrize(
    "options",
    [
        {"n_best": 10_000},
        {"n_best": 0},
        {"n_best": -1},
        {"options": {"beam_size": 100_000}},
        {"options": {"beam_size": 0}},
        {"options": {"beam_size": 1.5}},
        {"options": {"max_length": 10**9}},
        {"options": {"max_length": -5}},
        {"options": {"length_alpha": 1e308}},
        {"options": {"no_such": 1}},
        {"constraints": ["x"] * 17},
        {"constraints": [""]},
        {"prefix": "x" * 1_500},
    ],
    ids=str,
)
def test_options_are_bounded(running: Running, options: dict[str, Any]) -> None:
    """LibreTranslate/LibreTranslate#978."""
    check_fault("/api/translate", running.post("/api/translate", {"model": "en-ko", "text": "hi", **options}))
    assert running.get("/health").status == 200


@pytest.mark.parametrize("count", [10_000, -1, 10**30])
def test_alternatives_are_bounded(running: Running, count: int) -> None:
    check_fault("/translate", running.post("/translate", {**GOOD, "alternatives": count}))


def test_texts_are_bounded(running: Running) -> None:
    fault = running.post("/translate", {**GOOD, "q": "x" * 2_001})
    assert fault.status == 400 and fault.json == {"error": "request (2001) exceeds text limit (2000)"}
    assert (
        running.post("/api/translate", {"model": "en-ko", "text": "x" * 2_001}).json["error"]["code"] == "text_too_long"
    )
    assert running.post("/translate", {**GOOD, "q": [""] * 257}).status == 400


def test_scores_are_numbers_where_nothing_is_likely(running: Running) -> None:
    """pytorch/serve#1304, sgl-project/sglang#4097: what the model finds impossible has a finite score."""
    body = {"model": "en-ko", "text": "one small horse plays.", "details": True, "n_best": 5}
    for more in ({"prefix": "<0x0A> ☃ zzz"}, {"constraints": ["☃☃☃"]}, {"text": ""}, {"text": "☃☃☃"}):
        reply = running.post("/api/translate", {**body, **more})
        assert reply.status == 200, more
        for sentence in reply.json["sentences"]:
            assert sentence["score"] is None or sentence["score"] > -1e6


def test_a_large_body_is_refused_while_it_comes_in(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        for _ in range(6):
            client.sendall(chunk)
        assert client.recv(1000).startswith(b"HTTP/1.1 413")
    declared = {"Content-Length": str(10**9), **JSON}
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
        head = "".join(f"{name}: {value}\r\n" for name, value in declared.items())
        client.sendall(f"POST /translate HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 413")


def write_all_then_read(running: Running, head: str, size: int) -> bytes:
    """As most clients do, through buffers that hold far less than the body."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", running.port))
        client.sendall(f"{head} HTTP/1.1\r\nHost: localhost\r\n".encode())
        client.sendall(f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // 2**16):
            client.sendall(b"x" * 2**16)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_who_writes_all_before_reading_sees_the_refusal(running: Running) -> None:
    for path, end in (("/translate", b'"}'), ("/v2/translate", b'"}'), ("/api/translate", b'"}}')):
        answer = write_all_then_read(running, f"POST {path}", 2**23)
        assert answer.startswith(b"HTTP/1.1 413 ") and answer.endswith(end), path
    with serving(body_bytes=2**24) as other:
        for head, status in (("POST /nothing", 404), ("PUT /translate", 405)):
            assert write_all_then_read(other, head, 2**23).startswith(f"HTTP/1.1 {status} ".encode()), head


def test_of_a_body_that_is_not_wanted_so_much_is_read(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_DISCARDED", 2**20)
    with pytest.raises(ConnectionError):
        write_all_then_read(running, "POST /translate", 2**26)
    monkeypatch.undo()
    # However slowly it comes, no longer than any body may take.
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
        assert b"".join(iter(lambda: client.recv(65_536), b"")).startswith(b"HTTP/1.1 413")
    wait(lambda: not running.service.presence.num_active)


def test_who_asks_before_writing_is_not_told_to_write(running: Running) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
        client.sendall(head)
        assert b"".join(iter(lambda: client.recv(65_536), b"")).startswith(b"HTTP/1.1 413")


def test_slow_writers_and_silent_connections_are_let_go(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
    for begin in (b"", b"POST /trans", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
            client.sendall(begin)
            assert client.recv(1000) == b""


def test_bytes_that_are_no_http(running: Running) -> None:
    for line in (b"\x00\x01\x02\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"A" * 100_000 + b"\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
            try:
                client.sendall(line)
                reply = client.recv(1000)
            except ConnectionError:
                reply = b""
            assert reply == b"" or reply.startswith(b"HTTP/1.1 4")
    assert running.post("/translate", GOOD).status == 200


@pytest.mark.parametrize(
    ("method", "path", "shape"),
    [
        ("GET", "/nothing", "error"),
        ("POST", "/suggest", "error"),
        ("POST", "/translate_file", "error"),
        ("GET", "/v2/glossaries", "message"),
        ("POST", "/v2/document", "message"),
        ("GET", "/api", "error"),
        ("GET", "/api/nothing", "error"),
        ("GET", "/%00", "error"),
        ("GET", "//", "error"),
    ],
)
def test_unknown_routes_are_404_in_their_own_shape(running: Running, method: str, path: str, shape: str) -> None:
    reply = running.ask(method, path)
    assert reply.status == 404 and list(reply.json) == [shape]
    assert isinstance(reply.json[shape], dict) == path.startswith("/api")


def test_another_method_is_405_and_says_which_one(running: Running) -> None:
    reply = running.get("/translate")
    assert reply.status == 405 and reply.headers["allow"] == "POST" and "error" in reply.json


def test_20_first_requests_load_a_model_once() -> None:
    """OpenNMT/OpenNMT-py#928."""
    alone = Translator.load(GOLDEN, device="cpu").translate([GOOD["q"]])[0].text
    with serving() as running, ThreadPoolExecutor(20) as threads:
        start = threading.Barrier(20)

        def ask(_: int) -> Any:
            start.wait(PATIENCE)
            return running.post("/translate", GOOD).json

        assert list(threads.map(ask, range(20))) == [{"translatedText": alone}] * 20
        assert b'malmoi_loads_total{model="en-ko"} 1\n' in running.get("/metrics").body


def test_short_requests_do_not_wait_for_a_long_one() -> None:
    """OpenNMT/OpenNMT-py#2001: a hundred sentences, then 20 of one word and a look at the service's health."""
    with serving(batch_tokens=400) as running, ThreadPoolExecutor(21) as threads:
        running.post("/translate", GOOD)
        body = {**GOOD, "q": " ".join(["two white dogs sleep."] * 100)}
        ends: list[str] = []

        def ask(name: str, value: dict[str, str]) -> int:
            status = running.post("/translate", value).status
            ends.append(name)
            return status

        long = threads.submit(ask, "long", body)
        batcher = running.service.models.by_name["en-ko"].load().batcher
        wait(lambda: batcher.num_live > 0)
        short = [threads.submit(ask, "short", {**GOOD, "q": "dogs"}) for _ in range(20)]
        assert running.get("/health").json == {"status": "ok"}
        assert [one.result() for one in short] == [200] * 20 and long.result() == 200
        assert ends[-1] == "long"


def test_work_for_a_client_that_has_left_stops() -> None:
    with serving(batch_tokens=400) as running:
        running.post("/translate", GOOD)
        batcher = running.service.models.by_name["en-ko"].load().batcher
        body = json.dumps({**GOOD, "q": " ".join(["two white dogs sleep."] * 100)}).encode()
        for path in ("/translate", "/api/stream"):
            value = (
                body
                if path == "/translate"
                else json.dumps({"model": "en-ko", "text": " ".join(["two white dogs sleep."] * 100)}).encode()
            )
            with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as client:
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(value)}"
                )
                client.sendall(head.encode() + b"\r\n\r\n" + value)
                wait(lambda: batcher.num_live > 0)
            wait(lambda: not batcher.num_live and not batcher.num_waiting)
        assert b"malmoi_left_sentences_total" in running.get("/metrics").body
        assert running.post("/translate", GOOD).status == 200


def test_a_full_queue_says_when_to_come_again() -> None:
    with serving(queue_tokens=1, batch_tokens=400) as running, ThreadPoolExecutor(2) as threads:
        running.post("/translate", GOOD)
        long = threads.submit(running.post, "/translate", {**GOOD, "q": " ".join(["two white dogs sleep."] * 100)})
        batcher = running.service.models.by_name["en-ko"].load().batcher
        wait(lambda: batcher.waiting_tokens > 0)
        for path, body in (("/translate", GOOD), ("/v2/translate", {"text": ["a"], "target_lang": "KO"})):
            reply = running.post(path, body)
            assert reply.status == 429 and int(reply.headers["retry-after"]) >= 1 and SHAPES[path] in reply.json
        assert long.result().status == 200
