"""Who is answered, what is kept to ourselves, and how the service ends: keys, names, the log, signals."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malmoi.commands.serve import ServeRequest, check_address, prepare
from malmoi.errors import ConfigError, MalmoiError
from malmoi.log import add_log_file, get_logger
from malmoi.serving.keys import Keys
from serving_server import GOLDEN, PATIENCE, Running, serving, wait

GOOD = {"q": "one small horse plays.", "source": "en", "target": "ko"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SHAPES = {"/translate": "error", "/v2/translate": "message", "/api/translate": "error", "/detect": "error"}


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
