"""A service that is hurt all the time, and must answer all that it accepts.

    python benchmarks/soak_serve.py --minutes 60 --out benchmarks/results/soak-serve.md
    python benchmarks/soak_serve.py --minutes 3 --idle 200

`malmoi serve` with the golden model of the tests, asked by honest clients of all three interfaces all the time. Beside
them, without end: clients that vanish in the middle of an answer or of a stream, bodies of 100 MB, writers of a byte a
second, random bytes, bodies that are no JSON, and connections (`--idle`, 1,000) that are opened and left. What must
hold: no status of 5xx but 503 with `Retry-After`; a body of 100 MB is answered with 413 or cut off, and nobody is
turned away for the name of the host, or nothing behind that would be tried; every request of an honest client is
answered, with the text that the model says; the memory of the service in the last tenth of the time is at most a tenth
above that in the second tenth; it ends with status 0 after SIGTERM. Traffic goes to 127.0.0.1 alone. Linux only. The
exit status is 1 where anything failed.
"""

import argparse
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from command import table
from peers.machine import describe

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "golden" / "model"
NUMBERS, ADJECTIVES, NOUNS, VERBS = (
    ("one", "two", "three", "four"),
    ("red", "white", "small", "old", "happy"),
    ("horse", "dog", "cat", "bird"),
    ("plays", "sleeps", "runs"),
)


class Soak:
    """The service, those who ask it, and what became of them."""

    def __init__(self, port: int, expected: dict[str, str], until: float) -> None:
        self.port, self.expected, self.until = port, expected, until
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def fail(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def forever(self, action: Callable[[random.Random], None], seed: int) -> None:
        """One client until the time is over."""
        draw = random.Random(seed)
        while time.monotonic() < self.until:
            action(draw)

    def ask(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=200)
        try:
            value = json.dumps(body).encode()
            connection.request("POST", path, value, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read(), dict(response.getheaders())
        finally:
            connection.close()

    def honest(self, draw: random.Random) -> None:
        """A request that must be answered, rightly; 429 and 503 with a time to come again are answers."""
        sources = draw.choices(list(self.expected), k=draw.choice((1, 1, 1, 3, 30)))
        text, wanted = " ".join(sources), " ".join(self.expected[one] for one in sources)
        kind = draw.choice(("libre", "deepl", "api", "html", "stream"))
        requests: dict[str, tuple[str, Any]] = {
            "libre": ("/translate", {"q": text, "source": "en", "target": "ko"}),
            "deepl": ("/v2/translate", {"text": [text], "target_lang": "KO"}),
            "api": ("/api/translate", {"model": "en-ko", "text": text, "details": True}),
            "html": ("/translate", {"q": f"<p>{text}</p>", "source": "en", "target": "ko", "format": "html"}),
            "stream": ("/api/stream", {"model": "en-ko", "text": text}),
        }
        path, body = requests[kind]
        try:
            status, answer, headers = self.ask(path, body)
        except (OSError, HTTPException) as error:
            self.fail(f"{kind}: no answer ({type(error).__name__})")
            return
        self.count(f"honest {status}")
        if status in (429, 503) and "retry-after" in {name.lower() for name in headers}:
            return
        if status != 200:
            self.fail(f"{kind}: {status}")
        elif wanted not in answer.decode() and json.dumps(wanted)[1:-1] not in answer.decode():
            self.fail(f"{kind}: another text")

    def vanishing(self, draw: random.Random) -> None:
        """Asks for much and leaves."""
        path, name = draw.choice((("/api/translate", "text"), ("/api/stream", "text")))
        body = json.dumps({"model": "en-ko", name: " ".join(draw.choices(list(self.expected), k=200))}).encode()
        self.raw(post(path, body), patience=draw.random() * 0.3, reads=False)
        self.count("vanished")

    def huge(self, draw: random.Random) -> None:
        """100 MB, with its length or without."""
        path = draw.choice(("/translate", "/v2/translate", "/api/translate"))
        if draw.random() < 0.5:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n".encode()
            status = self.raw(head + b"x" * 1_000_000, patience=10)
        else:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            status = self.raw(head + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 1_600, patience=10)
        self.count(f"huge {status}")
        if status not in ("413", "none"):
            self.fail(f"{status} for a body of 100 MB")
        time.sleep(0.2)

    def slow(self, draw: random.Random) -> None:
        """A byte a second, of a head or of a body."""
        begin = post("/translate", b"x" * 200)[: draw.choice((20, -150))]
        with socket.socket() as client:
            client.settimeout(60)
            try:
                client.connect(("127.0.0.1", self.port))
                client.sendall(begin)
                while time.monotonic() < self.until:
                    time.sleep(1)
                    client.sendall(b"x")
            except OSError:
                self.count("slow ended")

    def noise(self, draw: random.Random) -> None:
        """Bytes that are no HTTP, and bodies that are no JSON."""
        data = draw.randbytes(draw.randint(1, 3_000))
        if draw.random() < 0.5:
            data = post(draw.choice(("/translate", "/v2/translate", "/api/next", "/detect")), data)
        status = self.raw(data, patience=1)
        self.count(f"noise {status}")

    def raw(self, data: bytes, *, patience: float, reads: bool = True) -> str:
        """The status that some bytes are answered with; a connection that is closed has none."""
        with socket.socket() as client:
            client.settimeout(max(patience, 0.01))
            try:
                client.connect(("127.0.0.1", self.port))
                client.sendall(data)
            except OSError:
                pass
            try:
                if not reads:
                    time.sleep(patience)
                    return "none"
                answer = client.recv(100)
            except OSError:
                return "none"
        status = answer[9:12].decode("ascii", "replace")
        # 421: turned away at the door, so that nothing behind it was tried.
        if status.startswith("5") or status == "421":
            self.fail(f"{status} for {data[:40]!r}")
        return status or "none"


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def idle(port: int, number: int, until: float) -> None:
    """Connections that are opened and left; those that the service closes are opened again."""
    held: list[socket.socket] = []
    while time.monotonic() < until:
        while len(held) < number:
            try:
                held.append(socket.create_connection(("127.0.0.1", port), 5))
            except OSError:
                break
        time.sleep(5)
        for one in held:
            one.close()
        held.clear()


def memory_of(process: int) -> float:
    """Resident megabytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def start() -> "tuple[subprocess.Popen[str], int]":
    words = [sys.executable, "-m", "malmoi", "serve", f"en-ko={MODEL}", "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("serving on http://"):
            threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
            return process, int(line.rpartition(":")[2])
    raise SystemExit("the service does not start")


def run(options: argparse.Namespace) -> tuple[Soak, list[float], int]:
    """All of it: what happened, the memory over time, and the status of the service."""
    import malmoi

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8_192)), hard))
    sources = [f"{a} {b} {c} {d}." for a in NUMBERS for b in ADJECTIVES for c in NOUNS for d in VERBS]
    outputs = malmoi.load(MODEL, device="cpu").translate(sources)
    process, port = start()
    until = time.monotonic() + 60 * options.minutes
    soak = Soak(port, {source: one.text for source, one in zip(sources, outputs, strict=True)}, until)
    kinds = [soak.honest] * options.honest + [soak.vanishing, soak.huge, soak.slow, soak.slow, soak.noise]
    threads = [threading.Thread(target=soak.forever, args=(kind, seed)) for seed, kind in enumerate(kinds)]
    threads.append(threading.Thread(target=idle, args=(port, options.idle, until)))
    for thread in threads:
        thread.start()
    memory: list[float] = []
    while time.monotonic() < until and process.poll() is None:
        memory.append(memory_of(process.pid))
        time.sleep(1)
    for thread in threads:
        thread.join()
    process.send_signal(signal.SIGTERM)
    return soak, memory, process.wait(120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--honest", type=int, default=8)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    soak, memory, status = run(options)
    tenth = max(1, len(memory) // 10)
    early, late = max(memory[tenth : 2 * tenth] or memory), max(memory[-tenth:])
    if late > 1.1 * early:
        soak.fail(f"memory grew from {early:.0f} to {late:.0f} MB")
    if status:
        soak.fail(f"the service ended with status {status}")
    facts = describe("python benchmarks/soak_serve.py " + " ".join(sys.argv[1:]), seed=0)
    lines = [
        f"# A service under faults for {options.minutes:g} minutes",
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
        f"* memory in the second tenth of the time, in the last tenth, at most: {early:.0f}, {late:.0f}, "
        f"{max(memory):.0f} MB",
        f"* what must not be: {'; '.join(sorted(set(soak.faults))) or 'nothing'} ({len(soak.faults)})",
        "",
        *table([["what", "how often"], *([name, str(count)] for name, count in sorted(soak.counts.items()))]),
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
