"""How fast `malmoi serve` answers, against its own engine and against CTranslate2 behind the simplest server.

    python benchmarks/serve.py --size paper-base --out benchmarks/results/serve.md
    python benchmarks/serve.py --size tiny --seconds 5 --rounds 1

The same random weights for all, with a vocabulary of 10,000 words; every output has `--tokens` tokens, as a model of
random weights seldom ends by itself. Short requests hold one sentence, long ones twenty, from 1, 8 and 64 connections
that each ask again as soon as they are answered; then 8 long connections beside 56 short ones. Systems take turns
within one call, each in a process of its own; clients are a process of their own as well, on the same cores. The engine
alone is `Translator.translate`, 256 sentences a call. A cell ends when what was asked in time is answered. Linux only.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command import table
from decoders.material import export, make_model, num_parameters, write_sentences
from peers.machine import describe

HERE = Path(__file__).parent
LOADS = ("short=1", "short=8", "short=64", "long=1", "long=8", "long=64", "long=8+short=56")
QUEUE = "queue_tokens=1000000"


@dataclass
class Measured:
    """What a system did under one load, over all rounds."""

    rates: list[float] = field(default_factory=list[float])
    latencies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    faults: dict[str, int] = field(default_factory=dict[str, int])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def server(words: list[str], port: int) -> Iterator[None]:
    """A server process that listens."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{' '.join(words)} does not start") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def words_of(system: str, models: dict[str, str], port: int, options: argparse.Namespace) -> list[str]:
    """The command of a system."""
    if system.startswith("malmoi"):
        words = [sys.executable, "-m", "malmoi", "serve", f"en-xx={models[system]}", "--port", str(port), "--quiet"]
        return [*words, "--threads", str(options.threads), "--set", QUEUE]
    script = str(HERE / "servers" / "simple.py")
    precision = system.partition("-")[2]
    shares = [str(options.threads), "1"]
    return [sys.executable, script, models[system], str(port), *shares, precision, str(options.tokens)]


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


def make_models(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """A model folder for each system; malmoi's own say how long outputs are, as no client could."""
    models: dict[str, str] = {}
    make_model(folder / "model", options.size, seed=1)
    for precision in ("fp32", "int8"):
        target = folder / f"malmoi-{precision}"
        subprocess.run(["cp", "-r", str(folder / "model"), str(target)], check=True)
        config = (target / "config.toml").read_text(encoding="utf-8")
        for name, value in (("min_length", options.tokens), ("max_length", options.tokens), ("max_length_extra", 100)):
            config = "\n".join(
                f"{name} = {value}" if line.startswith(f"{name} =") else line for line in config.split("\n")
            )
        config = config.replace('precision = "fp32"', f'precision = "{precision}"')
        (target / "config.toml").write_text(config, encoding="utf-8")
        models[f"malmoi-{precision}"] = str(target)
    for precision in ("float32", "int8"):
        models[f"ctranslate2-{precision}"] = str(export(folder / "model", folder, precision)[0])
    return models


Found = dict[tuple[str, str], Measured]


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], Found]:
    """All rounds."""
    models = {name: path for name, path in make_models(options, folder).items() if name in options.systems}
    sentences = folder / "sentences.txt"
    write_sentences(sentences, 2_000, seed=5)
    engine: dict[str, list[float]] = {name: [] for name in models if name.startswith("malmoi")}
    found: Found = {}
    for number in range(options.rounds):
        order = list(models) if number % 2 == 0 else list(models)[::-1]
        for name in order:
            if name in engine:
                engine[name].append(alone(models[name], sentences, options.threads, options.seconds))
            port = free_port()
            with server(words_of(name, models, port, options), port):
                ask(port, 1.0, sentences, ("short=4",))
                for load in (tuple(word.split("+")) for word in options.loads):
                    result = ask(port, options.seconds, sentences, load)
                    one = found.setdefault((name, " + ".join(load)), Measured())
                    total = sum(kind["sentences"] for kind in result["kinds"].values())
                    one.rates.append(total / result["seconds"])
                    for kind, row in result["kinds"].items():
                        one.latencies.setdefault(kind, []).extend(row["latencies"])
                        for status, count in row["faults"].items():
                            one.faults[status] = one.faults.get(status, 0) + count
                    print(f"{name}\t{' + '.join(load)}\t{one.rates[-1]:.1f} sentences/s", file=sys.stderr)
    return engine, found


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def page(options: argparse.Namespace, engine: dict[str, list[float]], found: Found, parameters: int) -> str:
    """The result as Markdown."""
    rows = [["system", "connections", "sentences/s", "of the engine alone", "p50 ms", "p95 ms", "faults"]]
    for name, rates in engine.items():
        rows.append([name, "engine alone, 256 sentences a call", f"{statistics.median(rates):.1f}", "1.00", "", "", ""])
    for (name, load), one in found.items():
        rate = statistics.median(one.rates)
        share = f"{rate / statistics.median(engine[name]):.2f}" if name in engine else ""
        latencies = one.latencies.items()
        middle = ", ".join(f"{kind} {1000 * quantile(values, 0.5):.0f}" for kind, values in latencies)
        late = ", ".join(f"{kind} {1000 * quantile(values, 0.95):.0f}" for kind, values in latencies)
        faults = ", ".join(f"{count} x {status}" for status, count in one.faults.items()) or "none"
        rows.append([name, load, f"{rate:.1f}", share, middle, late, faults])
    facts = describe("python benchmarks/serve.py " + " ".join(sys.argv[1:]), seed=5)
    return "\n".join(
        [
            f"# Serving, {options.size} ({parameters / 1e6:.1f} M parameters)",
            "",
            f"{options.rounds} round(s) of {options.seconds:g} s, {options.threads} thread(s), outputs of "
            f"{options.tokens} tokens, beam 5. Clients run on the same cores.",
            "",
            *(f"* {name}: {value}" for name, value in facts.items()),
            "",
            *table(rows),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "paper-base"), default="paper-base")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument(
        "--systems",
        nargs="+",
        default=["malmoi-fp32", "malmoi-int8", "ctranslate2-float32", "ctranslate2-int8"],
    )
    parser.add_argument("--loads", nargs="+", default=LOADS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        engine, found = measure(options, Path(name))
        text = page(options, engine, found, num_parameters(Path(name) / "model"))
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
