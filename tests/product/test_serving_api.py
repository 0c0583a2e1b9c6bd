"""Our own interface over real connections: details, streaming, words that could follow, explanations, runs, numbers."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malmoi.decoding.forced import force
from malmoi.translate import Translator
from serving_server import GOLDEN, Running, serving

TEXT = "🤗 one small horse plays.\n\n  two white dogs sleep."
OUTPUTS = ("작은 말 한 마리가 놉니다.", "하얀 개 두 마리가 잡니다.")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run, one that goes on, a link to a third, and what is no run."""
    folder = tmp_path_factory.mktemp("runs")
    for where, name in ((folder, "done"), (folder, "going"), (folder.parent, "secret")):
        run = where / name
        run.mkdir()
        (run / "config.toml").write_text("[training]\nmax_steps = 20\n")
        rows = [
            {"step": 5, "loss": 2.5},
            {"step": 10, "loss": 2.0},
            {"step": 10, "valid_loss": 2.25, "valid_bleu": 7.5},
            {"step": 15, "valid_loss": 2.5, "valid_bleu": 9.0},
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "metrics.jsonl").write_text(lines + '{"step": 20, "loss": NaN}\n{"step": 25, "lo')
    (folder / "done" / "model").mkdir()
    (folder / "done" / "model" / "config.toml").write_text("")
    (folder / "done" / "model" / "card.json").write_text('{"num_parameters": 7}')
    (folder / "linked").symlink_to(folder.parent / "secret")
    (folder / "other").mkdir()
    return folder


@pytest.fixture(scope="module")
def running(runs: Path) -> Iterator[Running]:
    with serving(runs=runs) as found:
        yield found


def read_events(body: bytes) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in body.decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_models(running: Running) -> None:
    answer = running.get("/api/models").json
    (model,) = answer["models"]
    assert (model["name"], model["source"], model["target_name"]) == ("en-ko", "en", "Korean")
    assert model["attention"] and model["parameters"] == 33568 and model["examples"] == []
    assert answer["limits"]["characters"] == 100_000 and answer["limits"]["alternatives"] == 10
    assert not answer["key_required"] and answer["runs"]


def test_details_stand_where_they_say(running: Running) -> None:
    """Places count UTF-16 code units, as JavaScript does: an emoji is two."""
    body = {"model": "en-ko", "text": TEXT, "n_best": 3, "details": True}
    answer = running.post("/api/translate", body).json
    assert answer["text"] == f"{OUTPUTS[0]}\n\n  {OUTPUTS[1]}"
    source, target = (text.encode("utf-16-le") for text in (TEXT, answer["text"]))

    def at(text: bytes, start: int, end: int) -> str:
        return text[2 * start : 2 * end].decode("utf-16-le")

    for sentence in answer["sentences"]:
        start = sentence["source_start"]
        assert at(source, start, start + len(sentence["source"].encode("utf-16-le")) // 2) == sentence["source"]
        start = sentence["target_start"]
        assert at(target, start, start + len(sentence["target"])) == sentence["target"]
        for word in sentence["source_words"]:
            assert at(source, word["start"], word["end"]) == word["text"]
        for word in sentence["words"]:
            assert at(target, word["start"], word["end"]) == word["text"]
            assert word["probability"] == pytest.approx(math.exp(word["log_prob"]))
        assert " ".join(word["text"] for word in sentence["words"]) == sentence["target"]
        # The end symbol is a token and part of no word.
        of_words = sum(word["log_prob"] for word in sentence["words"])
        of_tokens = sum(token["log_prob"] for token in sentence["tokens"])
        assert of_tokens == pytest.approx(of_words + sentence["tokens"][-1]["log_prob"])
        assert sentence["score"] == pytest.approx(of_tokens)
        assert [target for _, target in sentence["alignment"]] == list(range(len(sentence["words"])))
        assert all(0 <= place < len(sentence["source_words"]) for place, _ in sentence["alignment"])
        assert len(sentence["alternatives"]) == 2
        scores = [sentence["score"], *(one["score"] for one in sentence["alternatives"])]
        assert scores == sorted(scores, reverse=True)
    assert "🤗" in answer["notes"][0]
    assert "words" not in running.post("/api/translate", {**body, "details": False}).json["sentences"][0]


def test_prefix_constraints_and_options(running: Running) -> None:
    body = {"model": "en-ko", "text": "one small horse plays."}
    assert running.post("/api/translate", {**body, "prefix": "하얀"}).json["text"].startswith("하얀 ")
    assert "고양이" in running.post("/api/translate", {**body, "constraints": ["고양이"]}).json["text"]
    sampled = running.post("/api/translate", {**body, "options": {"beam_size": 1, "length_alpha": 0.5}})
    assert sampled.status == 200 and sampled.json["text"] == OUTPUTS[0]


def test_a_stream_ends_with_the_whole_answer(running: Running) -> None:
    body = {"model": "en-ko", "text": TEXT, "details": True}
    reply = running.post("/api/stream", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = read_events(reply.body)
    assert events[-1] == ("done", running.post("/api/translate", body).json)
    sentences = {table["sentence"]: table for name, table in events if name == "sentence"}
    assert [sentences[place]["target"] for place in range(2)] == list(OUTPUTS)
    for number, table in sentences.items():
        assert all(table["target"][word["start"] : word["end"]] == word["text"] for word in table["words"])
        assert table["source_start"] == (0, 29)[number]
    for name, table in events:
        if name == "partial":
            assert table["gap"] == ("", "\n\n  ")[table["sentence"]]
            assert set(table) == {"sentence", "gap", "text"} and "\ufffd" not in table["text"]


def test_bodies_are_of_the_types_that_the_document_names(running: Running) -> None:
    """Whatever else a body says, one of another type is refused, and one of a named type is read."""
    known = {"application/json": b"{}", "application/x-www-form-urlencoded": b"model=en-ko&text=a&language=en"}
    for path, methods in running.get("/spec").json["paths"].items():
        named = methods.get("post", {}).get("requestBody", {}).get("content")
        for kind, body in known.items() if named else ():
            status = running.ask("POST", path, body, {"Content-Type": f"{kind}; charset=utf-8"}).status
            assert (status == 415) == (kind not in named), (path, kind, status)


def test_a_stream_of_nothing_is_done_at_once(running: Running) -> None:
    events = read_events(running.post("/api/stream", {"model": "en-ko", "text": " \n"}).body)
    assert events == [("done", {"text": " \n", "sentences": [], "notes": []})]


def test_words_that_could_follow_have_the_models_own_probabilities(running: Running) -> None:
    source, prefix = "one small horse plays.", "작은"
    body = {"model": "en-ko", "text": source, "prefix": prefix, "count": 4}
    words = running.post("/api/next", body).json["words"]
    assert len(words) == 4 and words[0]["text"] == "말"
    translator = Translator.load(GOLDEN, device="cpu")
    tokenizers = translator.tokenizers
    behind = len(tokenizers.encode_target(prefix))
    for word in words:
        assert word["prefix"] == f"{prefix} {word['text']}"
        ids = tuple(tokenizers.encode_target(word["prefix"]))
        (forced,) = force(translator.scorer, [(*tokenizers.encode_source(source), 1)], [ids], translator.decoding)
        wanted = math.exp(sum(forced.log_probs[behind:]))
        assert word["probability"] == pytest.approx(wanted, rel=1e-3)
        rest = running.post("/api/translate", {"model": "en-ko", "text": source, "prefix": word["prefix"]}).json
        assert rest["text"].startswith(word["prefix"])
    probabilities = [word["probability"] for word in words]
    assert probabilities == sorted(probabilities, reverse=True)
    first = running.post("/api/next", {**body, "prefix": ""}).json["words"]
    assert first[0]["text"] == first[0]["prefix"] == "작은"
    assert running.post("/api/next", {**body, "text": " "}).json == {"words": []}


def test_the_page_of_an_explanation(running: Running) -> None:
    reply = running.post("/api/explain", {"model": "en-ko", "text": "one small horse plays.", "language": "ko"})
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    assert b"<script" in reply.body and "작은".encode() in reply.body
    # Opened by itself it runs nothing: the page of the service lets its script and style through, in a frame.
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    assert running.post("/api/explain", {"model": "en-ko", "text": "x" * 1001}).status == 400
    assert running.post("/api/explain", {"model": "en-ko", "text": ""}).json["error"]["code"] == "cannot_explain"
    assert running.post("/api/explain", {"model": "en-ko", "text": "a", "language": "de"}).status == 400


def test_runs(running: Running) -> None:
    found = {one["name"]: one for one in running.get("/api/runs").json["runs"]}
    assert set(found) == {"done", "going"}
    assert (found["done"]["status"], found["going"]["status"]) == ("finished", "running")
    assert found["done"]["best"] == {"loss": 2.25, "bleu": 9.0}
    assert (found["done"]["step"], found["done"]["parameters"], found["going"]["parameters"]) == (20, 7, None)
    run = running.get("/api/runs/going?after=10").json
    assert run["rows"] == [{"step": 15, "valid_loss": 2.5, "valid_bleu": 9.0}, {"step": 20, "loss": None}]
    assert run["config"] == {"training": {"max_steps": 20}}
    assert len(running.get("/api/runs/going").json["rows"]) == 5


@pytest.mark.parametrize(
    "name",
    ["secret", "linked", "..", "../secret", "%2e%2e%2fsecret", "..%2Fsecret", "%00", "other", "done%2F", "x" * 300],
)
def test_the_name_of_a_run_leads_nowhere_else(running: Running, name: str) -> None:
    reply = running.get(f"/api/runs/{name}")
    assert reply.status in (400, 404) and b"max_steps" not in reply.body
    assert set(reply.json["error"]) == {"code", "message"}


@pytest.mark.parametrize("name", ["", "../golden", "/etc", "en-ko/", "EN-KO", "\u0000", "x" * 101])
def test_the_name_of_a_model_leads_nowhere_else(running: Running, name: str) -> None:
    reply = running.post("/api/translate", {"model": name, "text": "a"})
    assert reply.status in (400, 404) and reply.json["error"]["code"] in ("no_such_model", "bad_request")


def test_the_page_is_served_under_its_policy(running: Running) -> None:
    front = running.get("/")
    assert front.status == 200 and front.headers["content-type"] == "text/html; charset=utf-8"
    policy = front.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert front.headers["x-content-type-options"] == "nosniff"
    again = running.get("/", **{"If-None-Match": front.headers["etag"]})
    assert again.status == 304 and again.body == b""
    sources = re.findall(rb'(?:src|href)="([^":]+)"', front.body)
    assert sources
    for source in sources:
        assert running.get(f"/{source.decode().lstrip('./')}").status == 200
    for wrong in ("/no.js", "/../app.py", "/%2e%2e/app.py", "/page_files.py", "/vendor/"):
        assert running.get(wrong).status == 404


def test_numbers_for_prometheus(running: Running) -> None:
    running.post("/translate", {"q": "one small horse plays.", "source": "en", "target": "ko"})
    reply = running.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().split("\n")
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}
    assert values['malmoi_loads_total{model="en-ko"}'] == 1
    assert values['malmoi_sentences_total{model="en-ko"}'] >= 1
    assert values['malmoi_waiting_tokens{model="en-ko"}'] == 0
    assert values['malmoi_requests_total{route="/translate",status="200"}'] >= 1
    assert not any("secret" in line for line in lines)
