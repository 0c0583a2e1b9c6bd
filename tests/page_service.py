"""A stand-in for the service behind the page: the same routes, with answers that a test can foresee and steer.

In: nothing. Out: a server on loopback that translates word by word, keeps what it was asked, and fails when told to.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from malmoi.serving.page_files import page_files, page_policy

WORDS = {"two": "두", "small": "작은", "dogs": "개가", "sleep": "잡니다", "the": "그", "and": "그리고"}
ARABIC = {"two": "كلبان", "small": "صغيران", "dogs": "هنا", "sleep": "ينامان"}
PROBABILITIES = (0.97, 0.71, 0.42, 0.13)
KEY = "a key of the tests"
LIMIT = 300


def model(name: str, source: str, target: str, names: tuple[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "source": source,
        "target": target,
        "source_name": names[0],
        "target_name": names[1],
        "architecture": "transformer",
        "attention": True,
        "parameters": 2_600_000,
        "explain": True,
        "examples": ["two small dogs"],
    }


MODELS = [
    model("en-ko", "en", "ko", ("English", "Korean")),
    model("ko-en", "ko", "en", ("Korean", "English")),
    model("en-ar", "en", "ar", ("English", "Arabic")),
]


def run_rows(scale: float, until: int) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    for step in range(50, until + 1, 50):
        place = {"step": step, "epoch": 1, "target_tokens": 4000 * step, "seconds": step / 2}
        rows.append({**place, "loss": scale * 8 / (1 + step / 100), "nll": scale * 7 / (1 + step / 100), "lr": 0.001})
        if step % 100 == 0:
            rows.append({**place, "valid_loss": scale * 6 / (1 + step / 100), "valid_bleu": 40 - 400 / step / scale})
    return rows


def spans(text: str, offset: int) -> list[dict[str, Any]]:
    return [
        {"text": one[0], "start": one.start() + offset, "end": one.end() + offset} for one in re.finditer(r"\S+", text)
    ]


def sentence(name: str, source: str, source_start: int, start: int, prefix: str) -> dict[str, Any]:
    table = ARABIC if name == "en-ar" else WORDS
    kept = prefix.split()
    target = " ".join([*kept, *(table.get(one.lower(), one.upper()) for one in source.split()[len(kept) :])])
    words = [
        {**span, "probability": PROBABILITIES[place % 4], "log_prob": -0.1}
        for place, span in enumerate(spans(target, start))
    ]
    return {
        "source": source,
        "source_start": source_start,
        "target": target,
        "target_start": start,
        "score": -0.25,
        "words": words,
        "source_words": spans(source, source_start),
        "alignment": [[place, place] for place in range(min(len(words), len(source.split())))],
        "alternatives": [{"text": target, "score": -0.25}, {"text": f"{target} 요", "score": -0.75}],
    }


def answer(body: dict[str, Any]) -> dict[str, Any]:
    sentences: list[dict[str, Any]] = []
    text = ""
    for place, found in enumerate(re.finditer(r"[^.\s][^.]*\.?", body["text"])):
        text += " " if place else ""
        one = sentence(body["model"], found[0].rstrip(), found.start(), len(text), body.get("prefix", ""))
        sentences.append(one)
        text += one["target"]
    return {"text": text, "sentences": sentences, "notes": []}


class Service(ThreadingHTTPServer):
    """What a test may read and set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[tuple[int, dict[str, str]]] = []
        """Statuses and headers of the next answers of `/api`."""
        self.gate = threading.Event()
        """Closed, a stream stops after its first part: every one, or those of one text."""
        self.held: str | None = None
        self.gate.set()
        self.key_required = False
        self.models = MODELS
        self.choices: list[tuple[str, str]] = []
        """Words that could stand at a place, with prefixes; else what the stand-in makes up."""
        self.notes: list[str] = []
        self.finished = True
        self.explanation = "<!doctype html><title>an explanation</title>"
        self.files = page_files()
        self.left_out = 0
        self.runs = {"first": (run_rows(1.0, 1000), "finished", 128), "second": (run_rows(1.2, 600), "running", 256)}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.asked if asked == path]


class Handler(BaseHTTPRequestHandler):
    server: Service

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def send(self, content: bytes, media_type: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": media_type,
            "Content-Security-Policy": page_policy(),
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(json.dumps(value).encode(), "application/json", status, headers)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = address.path.removeprefix("/")
        if path == "api/models":
            limits = {"characters": LIMIT, "alternatives": 5}
            offer = {"models": self.server.models, "limits": limits, "runs": True}
            self.send_json({**offer, "key_required": self.server.key_required})
        elif path == "api/runs":
            entries = [self.run_entry(name) for name in self.server.runs]
            self.send_json({"runs": entries, "left_out": self.server.left_out})
        elif path.startswith("api/runs/"):
            rows, status, width = self.server.runs[path.rpartition("/")[2]]
            after = int(parse_qs(address.query)["after"][0])
            config = {"model": {"architecture": "transformer", "width": width}, "training": {"lr": 0.001}}
            self.send_json({"rows": [row for row in rows if row["step"] > after], "config": config, "status": status})
        elif path in self.server.files:
            file = self.server.files[path]
            self.send(file.content, file.media_type)
        else:
            self.send_json({"error": {"code": "not_found", "message": "nothing here"}}, 404)

    def run_entry(self, name: str) -> dict[str, Any]:
        rows, status, _ = self.server.runs[name]
        best = {"valid_bleu": max(row.get("valid_bleu", 0) for row in rows)}
        entry = {"name": name, "status": status, "step": rows[-1]["step"], "updated": 1_796_000_000, "best": best}
        return {**entry, "parameters": 2_600_000}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if self.server.faults:
            status, headers = self.server.faults.pop(0)
            self.send_json({"error": {"code": "fault", "message": "a fault of the tests"}}, status, headers)
        elif self.server.key_required and self.headers["Authorization"] != f"Bearer {KEY}":
            self.send_json({"error": {"code": "key", "message": "no such key"}}, 401)
        elif self.path == "/api/stream":
            whole = answer(body)
            sentences = [{**one, "finished": self.server.finished} for one in whole["sentences"]]
            self.stream(body["text"], {**whole, "sentences": sentences, "notes": self.server.notes})
        elif self.path == "/api/next":
            self.send_json({"words": self.choices(body)})
        elif self.path == "/api/explain":
            self.send(self.server.explanation.encode(), "text/html; charset=utf-8")
        else:
            self.send_json({"error": {"code": "not_found", "message": "nothing here"}}, 404)

    def choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if self.server.choices:
            return [{"text": text, "probability": 0.2, "prefix": prefix} for text, prefix in self.server.choices]
        place = len(body["prefix"].split())
        said = sentence(body["model"], body["text"], 0, 0, body["prefix"])["target"].split()[place]
        return [
            {"text": text, "probability": probability, "prefix": f"{body['prefix']} {text}".strip()}
            for text, probability in ((said, 0.5), ("다른", 0.3), ("모든", 0.001))
        ]

    def stream(self, text: str, whole: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for place, one in enumerate(whole["sentences"]):
            gap = " " if place else ""
            self.event("partial", {"sentence": place, "gap": gap, "text": one["target"].split(" ")[0]})
            if self.server.held in (None, text):
                self.server.gate.wait(20)
            self.event("sentence", {"sentence": place, "gap": gap, **one})
        self.event("done", whole)

    def event(self, name: str, value: Any) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def serve_page() -> Iterator[Service]:
    """The stand-in while a test needs it."""
    service = Service()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.gate.set()
        service.shutdown()
        service.server_close()
        thread.join()
