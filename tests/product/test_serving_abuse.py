"""What people send by mistake or on purpose: never a 500, never a lost worker, and the next request is served."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malmoi.commands.serve import ServeRequest, check_address, prepare
from malmoi.errors import ConfigError, MalmoiError
from malmoi.log import add_log_file, get_logger
from malmoi.serving import guard
from malmoi.serving.keys import Keys
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


def test_keys(tmp_path: Path) -> None:
    place = tmp_path / "keys.sqlite"
    keys = Keys(place)
    key, small = keys.add("a"), keys.add("b", 30)
    keys.close()
    with serving(keys=place) as running:
        assert running.get("/api/models").json["key_required"] and running.get("/health").status == 200
        assert running.get("/frontend/settings").json["keyRequired"]
        for path, body, status in (
            ("/translate", GOOD, 403),
            ("/detect", {"q": "a"}, 403),
            ("/v2/translate", {"text": ["a"], "target_lang": "KO"}, 403),
            ("/api/translate", {"model": "en-ko", "text": "a"}, 401),
            ("/api/next", {"model": "en-ko", "text": "a"}, 401),
            ("/api/explain", {"model": "en-ko", "text": "a"}, 401),
        ):
            for headers in ({}, {"Authorization": "Bearer mm_0_0"}, {"Authorization": "Basic x"}):
                assert running.post(path, body, **headers).status == status
            assert running.post(path, body, Authorization=f"Bearer {key}").status == 200
        assert running.post("/translate", {**GOOD, "api_key": key}).status == 200
        headers = {"Authorization": f"DeepL-Auth-Key {small}"}
        body = {"text": ["x" * 20], "target_lang": "KO"}
        assert running.post("/v2/translate", body, **headers).status == 200
        assert running.get("/v2/usage", **headers).json == {"character_count": 20, "character_limit": 30}
        assert running.post("/v2/translate", body, **headers).status == 456
        assert running.post("/translate", {**GOOD, "api_key": small}).status == 429
        assert running.get("/v2/usage", **headers).json["character_count"] == 20


def test_keys_that_cannot_be_counted_are_asked_for_again(tmp_path: Path) -> None:
    place = tmp_path / "keys.sqlite"
    keys = Keys(place)
    key = keys.add("a")
    keys.close()
    with serving(keys=place) as running:
        other = sqlite3.connect(place, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for path, body in (
            ("/translate", GOOD),
            ("/v2/translate", {"text": ["a"], "target_lang": "KO"}),
            ("/api/translate", {"model": "en-ko", "text": "a"}),
        ):
            reply = running.post(path, body, Authorization=f"Bearer {key}")
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1 and SHAPES[path] in reply.json
        other.close()
        assert running.post("/translate", GOOD, Authorization=f"Bearer {key}").status == 200


def test_a_name_that_is_not_ours_is_not_answered() -> None:
    """A page of a site whose name leads to this machine."""
    with serving(hosts=("localhost", "mt.example.org")) as running:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "::1", ""):
            for path, shape in (
                ("/translate", "error"),
                ("/api/models", "error"),
                ("/v2/usage", "message"),
                ("/", "error"),
            ):
                reply = running.get(path, Host=host)
                assert reply.status == 421 and list(reply.json) == [shape], host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]", "[::1]:80", "mt.Example.org."):
            assert running.get("/health", Host=host).status == 200, host
    for settings in ({}, {"hosts": ("*",)}):
        with serving(**settings) as running:
            assert running.get("/health", Host="evil.example").status == 200


def request_for(**more: Any) -> ServeRequest:
    """Of a model that is not there: whatever else is wrong is told before it is looked for."""
    return replace(ServeRequest(("no/such/model",), "127.0.0.1", 0, False, False, None, None, (), "cpu", 1), **more)


def test_faults_of_the_address_are_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}.*--port"):
            prepare(request_for(port=port))
    for host in ("no.such.host.invalid", "192.0.2.1", "x" * 100, "a..b"):
        with pytest.raises(ConfigError, match=r"cannot listen on .*--host"):
            prepare(request_for(host=host, is_open=True))


def test_a_file_of_keys_is_never_made_by_serving(tmp_path: Path) -> None:
    place = tmp_path / "typo.sqlite"
    with pytest.raises(ConfigError, match="no such file of keys"):
        prepare(request_for(maybe_keys=place))
    assert not place.exists()
    with pytest.raises(ConfigError, match="no such file of keys"):
        prepare(request_for(maybe_keys=tmp_path))
    Keys(place).close()
    handler = add_log_file(tmp_path / "log.txt")
    with pytest.raises(MalmoiError):
        prepare(request_for(maybe_keys=place))
    get_logger().removeHandler(handler)
    handler.close()
    assert "no keys yet" in (tmp_path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [(), ("--open",), ("--set", 'hosts=["mt.example.org"]')], ids=str)
def test_without_keys_only_this_machines_names_are_answered(words: tuple[str, ...]) -> None:
    process, port = start(*words)
    try:
        running = Running(None, None, port)  # type: ignore[arg-type]
        assert running.get("/health").status == 200
        assert running.get("/health", Host="evil.example").status == (200 if "--open" in words else 421)
        assert running.get("/health", Host="mt.example.org").status == (200 if words else 421)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_headers_and_cors() -> None:
    with serving() as running:
        reply = running.get("/languages", Origin="https://example.org")
        assert "access-control-allow-origin" not in reply.headers
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in reply.headers
    with serving(cors=("https://example.org",)) as running:
        reply = running.get("/languages", Origin="https://example.org")
        assert reply.headers["access-control-allow-origin"] == "https://example.org"
        other = running.get("/languages", Origin="https://other.example")
        assert "access-control-allow-origin" not in other.headers
        # What the guard itself refuses is for the page to read too.
        large = running.ask("POST", "/translate", None, {"Origin": "https://example.org", "Content-Length": "99999999"})
        assert large.status == 413 and large.headers["access-control-allow-origin"] == "https://example.org"
        running.service.presence.is_draining = True
        stopping = running.get("/health", Origin="https://example.org")
        assert stopping.status == 503 and stopping.headers["access-control-allow-origin"] == "https://example.org"


def test_a_fault_of_our_own_has_the_shape_of_its_interface(tmp_path: Path) -> None:
    secret = "Xyzzyplugh"

    async def fail(*_: object) -> None:
        raise ValueError(secret)

    handler = add_log_file(tmp_path / "log.txt")
    with serving() as running:
        running.service.caller_of = fail  # type: ignore[method-assign]
        for path, name in (("/translate", "error"), ("/v2/translate", "message"), ("/api/translate", "error")):
            reply = running.post(path, GOOD)
            assert reply.status == 500 and reply.headers["content-type"] == "application/json"
            told = reply.json[name]
            assert "see the log" in (told["message"] if isinstance(told, dict) else told)
    get_logger().removeHandler(handler)
    handler.close()
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert log.count("a request failed with ValueError") == 3 and secret not in log


def test_lines_that_a_model_cannot_take_are_not_told_to_the_log(tmp_path: Path) -> None:
    handler = add_log_file(tmp_path / "log.txt")
    with serving() as running:
        running.post("/translate", {**GOOD, "q": "\u2603\n" * 50})
    get_logger().removeHandler(handler)
    handler.close()
    assert "no character" not in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_the_log_holds_no_text_of_users(tmp_path: Path) -> None:
    secret = "Xyzzyplugh"
    handler = add_log_file(tmp_path / "log.txt")
    with serving() as running:
        for text in (f"{secret} one.", f"{secret}\u0000☃"):
            running.post("/translate", {**GOOD, "q": text, "target": "de" if "☃" in text else "ko"})
            running.post("/api/translate", {"model": secret, "text": text})
            running.post("/api/translate", {"model": "en-ko", "text": text, "constraints": ["☃"], "details": True})
            running.get(f"/{secret}?q={secret}")
        metrics = running.get("/metrics").body.decode()
    get_logger().removeHandler(handler)
    handler.close()
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "loaded from" in log and secret not in log and "☃" not in log and secret not in metrics
    handler = add_log_file(tmp_path / "log.txt")
    with serving(log_text=True) as running:
        running.post("/translate", {**GOOD, "q": f"{secret}\n\u2028x"})
    get_logger().removeHandler(handler)
    handler.close()
    # Whatever a text holds, it stays on its line.
    (line,) = [line for line in (tmp_path / "log.txt").read_bytes().split(b"\n") if secret.encode() in line]
    assert b"\\n\\u2028x" in line


def start(*words: str) -> "tuple[subprocess.Popen[str], int]":
    """`malmoi serve` in a process of its own, and its port."""
    command = [sys.executable, "-m", "malmoi", "serve", f"en-ko={GOLDEN}", "--port", "0", "--json", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["models"] == ["en-ko"] and told["url"].startswith("http://127.0.0.1:")
    return process, int(told["url"].rpartition(":")[2])


def test_a_signal_to_stop_ends_with_all_that_was_accepted_answered() -> None:
    process, port = start("--set", "batch_tokens=400")
    running = Running(None, None, port)  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as threads:
        running.post("/translate", GOOD)
        body = {**GOOD, "q": " ".join(["two white dogs sleep."] * 100)}
        long = [threads.submit(running.post, "/translate", body) for _ in range(3)]
        wait(lambda: b"malmoi_active_requests 4" in running.get("/metrics").body)
        process.send_signal(signal.SIGTERM)
        refused = None
        while refused is None and not all(one.done() for one in long):
            try:
                reply = running.get("/health")
                refused = reply if reply.status == 503 else None
            except OSError:
                break
        answers = [one.result() for one in long]
    assert [one.status for one in answers] == [200] * 3
    assert all(one.json["translatedText"].count("잡니다.") == 100 for one in answers)
    assert refused is None or (refused.json == {"error": "the service is stopping"} and refused.headers["retry-after"])
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org"])
def test_other_addresses_need_keys_unless_it_is_open(host: str, tmp_path: Path) -> None:
    request = ServeRequest(("m",), host, 0, False, False, None, None, (), "cpu", 1)
    with pytest.raises(ConfigError, match="--open"):
        check_address(request)
    check_address(replace(request, is_open=True))
    check_address(replace(request, maybe_keys=tmp_path / "keys.sqlite"))
    with pytest.raises(ConfigError, match="one of them"):
        check_address(replace(request, is_open=True, maybe_keys=tmp_path / "keys.sqlite"))
    for own in ("127.0.0.1", "127.8.9.1", "::1", "localhost"):
        check_address(replace(request, host=own))


def test_what_cannot_be_answered_in_time_to_stop_is_told() -> None:
    process, port = start("--set", "batch_tokens=400", "--set", "drain_seconds=0.1")
    running = Running(None, None, port)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as threads:
        running.post("/translate", GOOD)
        body = {**GOOD, "q": " ".join(["two white dogs sleep."] * 3_000)}
        long = threads.submit(running.post, "/translate", body)
        wait(lambda: b"malmoi_active_requests 2" in running.get("/metrics").body)
        process.send_signal(signal.SIGTERM)
        assert long.result().status == 503
    assert process.wait(PATIENCE) == 0
