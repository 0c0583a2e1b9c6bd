"""The serving benchmark: LibreTranslate gets the same weights, words and lengths; who cannot run is on the page."""

import argparse
import json
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
NAMES = ["<unk>", "</s>", "w0", "w10", "w1", "<s>"]
OWN = ("command", "decoders", "peers", "serve", "servers")


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks are scripts: what they import lies beside them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]


def make_copy(folder: Path) -> Path:
    folder.mkdir()
    (folder / "shared_vocabulary.json").write_text(json.dumps(NAMES), encoding="utf-8")
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


def test_a_package_has_the_weights_and_the_words_of_the_copy(tmp_path: Path) -> None:
    import sentencepiece
    from servers.libre import write_package

    package = tmp_path / "package"
    write_package(make_copy(tmp_path / "copy"), tmp_path, package, ("en", "xx"))
    assert (package / "model" / "model.bin").read_bytes() == b"weights"
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    pieces = processor.encode("w1 w10 w0", out_type=str)
    names = json.loads((package / "model" / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert [NAMES[names.index(piece)] for piece in pieces] == ["w1", "w10", "w0"]
    assert processor.decode_pieces(pieces) == "w1 w10 w0"
    assert [names.index(control) for control in ("<unk>", "</s>", "<s>")] == [0, 1, 5]
    told = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    assert (told["from_code"], told["to_code"]) == ("en", "xx")


def test_it_finds_enough_packages_to_look_for_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from servers import libre

    def installed(name: str, requirements: tuple[str, ...], folder: Path, *, torch: bool) -> str:
        assert name == "libretranslate" and not torch and folder == tmp_path / "environments"
        assert all("==" in one for one in requirements) and f"libretranslate=={libre.VERSION}" in requirements
        return str(tmp_path / "environment" / "bin" / "python")

    monkeypatch.setattr(libre, "python_of", installed)
    monkeypatch.setattr(libre, "run", lambda command, name: Path(command[-1]).mkdir())
    one = libre.prepare(make_copy(tmp_path / "copy"), tmp_path / "home", tmp_path / "environments")
    surroundings = one.surroundings(2, "int8")
    packages = list(Path(surroundings["ARGOS_PACKAGES_DIR"]).iterdir())
    assert len(packages) == 2 and all((package / "spacy").is_dir() for package in packages)
    assert surroundings["ARGOS_BEAM_SIZE"] == "5" and surroundings["ARGOS_COMPUTE_TYPE"] == "int8"
    assert all(str(tmp_path) in surroundings[f"XDG_{kind}_HOME"] for kind in ("DATA", "CONFIG", "CACHE"))
    command = one.command("PORT", 2, 16)
    assert command[command.index(str(libre.HELD)) + 1] == "16" and command[command.index("--port") + 1] == "PORT"


def test_outputs_are_held_to_a_length_and_nothing_else_changes() -> None:
    pytest.importorskip("ctranslate2")
    from servers.held import held

    class Translator:
        def translate_batch(self, *rows: Any, **options: Any) -> Any:
            return rows, options

    rows, options = held(Translator, 7)().translate_batch([["a"]], beam_size=4, max_decoding_length=256)
    assert rows == ([["a"]],)
    assert options == {"beam_size": 4, "min_decoding_length": 7, "max_decoding_length": 7}


def test_an_environment_without_torch_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import environment

    commands: list[list[str]] = []

    def run(command: list[str], name: str) -> None:
        commands.append(command)
        (tmp_path / name / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "bin" / "python").touch()

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment.os, "name", "posix")
    for _ in range(2):
        assert environment.python_of("peer", ("a==1",), tmp_path, torch=False) == str(tmp_path / "peer/bin/python")
    assert [command[-1] for command in commands] == [str(tmp_path / "peer"), "a==1"]
    assert not any("torch" in word or "numpy" in word for command in commands for word in command)


@pytest.mark.parametrize(
    ("code", "patience", "reason"),
    [
        ("raise SystemExit('there is no model')", 300, "ended with 1; its last words: there is no model"),
        ("import time; time.sleep(300)", 0, "did not listen in 0 s; its last words: nothing"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, patience: int, reason: str
) -> None:
    import serve

    monkeypatch.setattr(serve, "PATIENCE", patience)
    service = serve.Service("", [sys.executable, "-c", code])
    with pytest.raises(serve.UnavailableError, match=reason), serve.server(service, serve.free_port(), tmp_path):
        pass


@contextmanager
def answering(status: int, outputs: list[str]) -> Generator[int]:
    """The port of a server that always says the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"translatedText": outputs}).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield one.server_port
        finally:
            one.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "outputs", "is_good"), [(200, ["x"], True), (200, [""], False), (400, [], False)])
def test_only_a_translation_is_an_answer(status: int, outputs: list[str], is_good: bool) -> None:
    from peers.environment import UnavailableError
    from serve import answers

    told = nullcontext() if is_good else pytest.raises(UnavailableError, match=f"answers with {status}")
    with answering(status, outputs) as port, told:
        assert answers(port, ["text"]) == outputs


def test_who_cannot_run_is_on_the_page_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import serve

    def prepare(copy: Path, home: Path, environments: Path) -> None:
        raise serve.UnavailableError("libretranslate: no such package")

    def ask(port: int, seconds: float, sentences: Path, load: tuple[str, ...]) -> dict[str, Any]:
        kinds = {"short": {"latencies": [0.1], "sentences": 4, "words": 64, "faults": {}}}
        return {"seconds": 2.0, "kinds": kinds}

    monkeypatch.setattr(serve.libre, "prepare", prepare)
    monkeypatch.setattr(serve, "make_model", lambda folder, size, seed: folder.mkdir())
    monkeypatch.setattr(serve, "export", lambda model, folder, kind: (folder / kind, ""))
    waiting = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    make = serve.make_service

    def make_service(name: str, model: Path, options: argparse.Namespace) -> Any:
        service = make(name, model, options)
        return serve.Service(service.model, [sys.executable, "-c", waiting, serve.PORT])

    monkeypatch.setattr(serve, "make_service", make_service)
    monkeypatch.setattr(serve, "answers", lambda port, texts: ["x"] * len(texts))
    monkeypatch.setattr(serve, "ask", ask)
    systems = ["ctranslate2-int8", "libretranslate", "ctranslate2-float32"]
    options = argparse.Namespace(
        size="tiny",
        systems=systems,
        tokens=16,
        threads=2,
        rounds=2,
        seconds=1.0,
        loads=["short=1"],
        environments=tmp_path,
    )
    text = serve.page(options, serve.measure(options, tmp_path), 2_000_000)
    assert "* libretranslate: no such package" in text
    assert "| ctranslate2-int8 | short=1 | 2.0 |  | short 100 | short 100 | 16.0 | none |" in text
    assert "* ctranslate2-float32: 20 as ctranslate2-int8" in text
    assert "(of 1 different ones in all" in text


def test_the_clients_count_the_words_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from servers import clients

    ticks = count()
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    with answering(200, ["one two  three"]) as port:
        one = clients.Clients("short", port, ["a", "b"])
        one.run(0, 3.0)
    assert (one.num_sentences, one.num_words, one.latencies) == (2, 6, [1.0, 1.0])
