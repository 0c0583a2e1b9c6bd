"""How fast `malmoi serve` answers, against its own engine, CTranslate2 behind the simplest server, and LibreTranslate.

    python benchmarks/serve.py --size paper-base --out benchmarks/results/serve.md
    python benchmarks/serve.py --size tiny --seconds 5 --rounds 1

The same random weights for all, with a vocabulary of 10,000 words; every output has `--tokens` tokens, as a model of
random weights seldom ends by itself. Short requests hold one sentence, long ones twenty, from 1, 8 and 64 connections
that each ask again as soon as they are answered; then 8 long connections beside 56 short ones. Systems take turns
within one call, each in a process of its own; clients are a process of their own as well, on the same cores. The engine
alone is `Translator.translate`, 256 sentences a call. A cell ends when what was asked in time is answered. Linux only.

LibreTranslate is its own program in an environment of its own (`servers/libre.py` says what is set for it). A system
that cannot be installed or started is reported with the reason. Before it is measured each system is asked for the same
few sentences; the page says which of them gave the same answers, and how many words answers had.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from command import table
from decoders.material import export, make_model, num_parameters, write_sentences
from peers.environment import UnavailableError
from peers.machine import describe
from servers import libre

HERE = Path(__file__).parent
SYSTEMS = ("malmoi-fp32", "malmoi-int8", "ctranslate2-float32", "ctranslate2-int8", "libretranslate")
LIBRE_PRECISION = "int8"
LOADS = ("short=1", "short=8", "short=64", "long=1", "long=8", "long=64", "long=8+short=56")
QUEUE = "queue_tokens=1000000"
PORT = "PORT"
COMPARED = 20
"""Sentences whose answers are compared."""
PATIENCE = 300
"""Seconds in which a server must listen."""


@dataclass(frozen=True)
class Service:
    """How a system is started."""

    model: str
    words: list[str]
    """Its command, with `PORT` where the port goes."""
    surroundings: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class Measured:
    """What a system did under one load, over all rounds."""

    rates: list[float] = field(default_factory=list[float])
    latencies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    faults: dict[str, int] = field(default_factory=dict[str, int])
    num_sentences: int = 0
    num_words: int = 0


@dataclass
class Found:
    """All of a comparison."""

    engine: dict[str, list[float]]
    """Rates of malmoi's engine without a server."""
    served: dict[tuple[str, str], Measured] = field(default_factory=dict[tuple[str, str], Measured])
    """By system and load."""
    answers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Of the first round, to the same few sentences."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def server(service: Service, port: int, folder: Path) -> Generator[None]:
    """A server process that listens; `UnavailableError` with its last words where it does not."""
    words = [str(port) if word == PORT else word for word in service.words]
    log = folder / "server.log"
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, cwd=folder, env=os.environ | service.surroundings)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                maybe_code = process.poll()
                if maybe_code is not None or time.monotonic() > end:
                    spoken = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
                    last = (spoken or ["nothing"])[-1][:300]
                    fate = f"did not listen in {PATIENCE} s" if maybe_code is None else f"ended with {maybe_code}"
                    raise UnavailableError(f"does not start: it {fate}; its last words: {last}") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int, texts: list[str]) -> list[str]:
    """What a server answers to one request; `UnavailableError` where that is no translation."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps({"q": texts, "source": "en", "target": "xx"})
    try:
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"does not answer: {error!r}") from None
    finally:
        connection.close()
    outputs: list[str] = json.loads(answer)["translatedText"] if response.status == 200 else []
    if len(outputs) != len(texts) or not all(outputs):
        raise UnavailableError(f"does not translate, but answers with {response.status}: {answer[:300]!r}")
    return outputs


def ask(port: int, seconds: float, sentences: Path, load: tuple[str, ...]) -> dict[str, Any]:
    script = str(HERE / "servers" / "clients.py")
    words = [sys.executable, script, str(port), str(seconds), str(sentences), *load]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def alone(model: str, sentences: Path, threads: int, seconds: float) -> float:
    """Sentences a second of the engine without a server: calls of 256 sentences until the time is over."""
    code = (
        "import sys, time, malmoi\n"
        "model, path, threads, seconds = sys.argv[1:]\n"
        "translator = malmoi.load(model, threads=int(threads))\n"
        "lines = open(path, encoding='utf-8').read().splitlines()\n"
        "translator.translate(lines[:8])\n"
        "began, done = time.monotonic(), 0\n"
        "while time.monotonic() - began < float(seconds):\n"
        "    start = done % (len(lines) - 256)\n"
        "    translator.translate(lines[start : start + 256])\n"
        "    done += 256\n"
        "print(done / (time.monotonic() - began))\n"
    )
    words = [sys.executable, "-c", code, model, str(sentences), str(threads), str(seconds)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def malmoi_copy(model: Path, precision: str, tokens: int) -> Path:
    """The model with settings that say how long outputs are, as no client could."""
    target = model.with_name(f"malmoi-{precision}")
    subprocess.run(["cp", "-r", str(model), str(target)], check=True)
    config = (target / "config.toml").read_text(encoding="utf-8")
    for name, value in (("min_length", tokens), ("max_length", tokens), ("max_length_extra", 100)):
        config = "\n".join(f"{name} = {value}" if line.startswith(f"{name} =") else line for line in config.split("\n"))
    config = config.replace('precision = "fp32"', f'precision = "{precision}"')
    (target / "config.toml").write_text(config, encoding="utf-8")
    return target


def make_service(name: str, model: Path, options: argparse.Namespace) -> Service:
    """A system with its own copy of the model; `UnavailableError` where it cannot be had."""
    system, _, precision = name.partition("-")
    folder, threads = model.parent, options.threads
    if system == "malmoi":
        copy = malmoi_copy(model, precision, options.tokens)
        words = [sys.executable, "-m", "malmoi", "serve", f"en-xx={copy}", "--port", PORT, "--quiet"]
        return Service(str(copy), [*words, "--threads", str(threads), "--set", QUEUE])
    if system == "ctranslate2":
        copy, _ = export(model, folder, precision)
        script = str(HERE / "servers" / "simple.py")
        return Service(
            str(copy), [sys.executable, script, str(copy), PORT, str(threads), "1", precision, str(options.tokens)]
        )
    copy, _ = export(model, folder, LIBRE_PRECISION)
    one = libre.prepare(copy, folder / "libretranslate", options.environments)
    surroundings = one.surroundings(threads, LIBRE_PRECISION)
    return Service(str(copy), one.command(PORT, threads, options.tokens), surroundings)


def make_services(options: argparse.Namespace, folder: Path, found: Found) -> dict[str, Service]:
    """All systems that can be had."""
    make_model(folder / "model", options.size, seed=1)
    services: dict[str, Service] = {}
    for name in options.systems:
        try:
            services[name] = make_service(name, folder / "model", options)
        except UnavailableError as reason:
            found.left_out[name] = str(reason).removeprefix(f"{name}: ")
    return services


def measure(options: argparse.Namespace, folder: Path) -> Found:
    """All rounds."""
    found = Found({name: [] for name in options.systems if name.startswith("malmoi")})
    services = make_services(options, folder, found)
    sentences = folder / "sentences.txt"
    write_sentences(sentences, 2_000, seed=5)
    for number in range(options.rounds):
        order = list(services) if number % 2 == 0 else list(services)[::-1]
        for name in order:
            if name in found.engine:
                found.engine[name].append(alone(services[name].model, sentences, options.threads, options.seconds))
            try:
                turn(name, services[name], sentences, options, found)
            except UnavailableError as reason:
                found.left_out[name] = str(reason).removeprefix(f"{name}: ")
                print(f"{name}\t{reason}", file=sys.stderr)
    return found


def turn(name: str, service: Service, sentences: Path, options: argparse.Namespace, found: Found) -> None:
    """All loads on one system, in a process of its own."""
    port = free_port()
    with server(service, port, sentences.parent):
        texts = sentences.read_text(encoding="utf-8").splitlines()[:COMPARED]
        found.answers.setdefault(name, answers(port, texts))
        ask(port, 1.0, sentences, ("short=4",))
        for load in (tuple(word.split("+")) for word in options.loads):
            result = ask(port, options.seconds, sentences, load)
            one = found.served.setdefault((name, " + ".join(load)), Measured())
            total = sum(kind["sentences"] for kind in result["kinds"].values())
            one.rates.append(total / result["seconds"])
            one.num_sentences += total
            for kind, row in result["kinds"].items():
                one.num_words += row["words"]
                one.latencies.setdefault(kind, []).extend(row["latencies"])
                for status, count in row["faults"].items():
                    one.faults[status] = one.faults.get(status, 0) + count
            print(f"{name}\t{' + '.join(load)}\t{one.rates[-1]:.1f} sentences/s", file=sys.stderr)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def rows_of(found: Found) -> list[list[str]]:
    """The table."""
    rows = [["system", "connections", "sentences/s", "of the engine alone", "p50 ms", "p95 ms", "words each", "faults"]]
    for name, rates in found.engine.items():
        if rates:
            speed = f"{statistics.median(rates):.1f}"
            rows.append([name, "engine alone, 256 sentences a call", speed, "1.00", "", "", "", ""])
    for (name, load), one in found.served.items():
        rate = statistics.median(one.rates)
        share = f"{rate / statistics.median(found.engine[name]):.2f}" if name in found.engine else ""
        latencies = one.latencies.items()
        middle = ", ".join(f"{kind} {1000 * quantile(values, 0.5):.0f}" for kind, values in latencies)
        late = ", ".join(f"{kind} {1000 * quantile(values, 0.95):.0f}" for kind, values in latencies)
        length = f"{one.num_words / one.num_sentences:.1f}" if one.num_sentences else ""
        faults = ", ".join(f"{count} x {status}" for status, count in one.faults.items()) or "none"
        rows.append([name, load, f"{rate:.1f}", share, middle, late, length, faults])
    return rows


def alike(answers: dict[str, list[str]]) -> list[str]:
    """For each system how many of its answers are word for word those of each one before it."""
    names = list(answers)
    lines: list[str] = []
    for place, name in enumerate(names[1:], 1):
        counts = {
            other: sum(one == its for one, its in zip(answers[name], answers[other], strict=True))
            for other in names[:place]
        }
        lines.append(f"* {name}: " + ", ".join(f"{count} as {other}" for other, count in counts.items()))
    return lines


def page(options: argparse.Namespace, found: Found, parameters: int) -> str:
    """The result as Markdown."""
    facts = describe("python benchmarks/serve.py " + " ".join(sys.argv[1:]), seed=5)
    lines = [
        f"# Serving, {options.size} ({parameters / 1e6:.1f} M parameters)",
        "",
        f"{options.rounds} round(s) of {options.seconds:g} s, {options.threads} thread(s), outputs of "
        f"{options.tokens} tokens, beam 5. Clients run on the same cores.",
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
        "",
        *table(rows_of(found)),
        "",
    ]
    if "libretranslate" in found.answers:
        lines += [f"libretranslate: {libre.describe(LIBRE_PRECISION, options.threads, options.tokens)}.", ""]
    if len(found.answers) > 1:
        different = len({one for answers in found.answers.values() for one in answers})
        lines += [f"Of {COMPARED} answers, word for word the same (of {different} different ones in all, since random "]
        lines[-1] += "weights repeat themselves: this shows that all do the same work, not that their numbers agree):"
        lines += ["", *alike(found.answers), ""]
    if found.left_out:
        lines += ["Not measured:", "", *(f"* {name}: {reason}" for name, reason in found.left_out.items()), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "paper-base"), default="paper-base")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument(
        "--systems", nargs="+", metavar="NAME", choices=SYSTEMS, default=SYSTEMS, help=", ".join(SYSTEMS)
    )
    parser.add_argument("--loads", nargs="+", default=LOADS)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "malmoi-benchmarks")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        found = measure(options, Path(name))
        text = page(options, found, num_parameters(Path(name) / "model"))
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
