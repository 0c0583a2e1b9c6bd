"""`malmoi export` from the shell: what it prints, what it leaves, what it refuses."""

import json
from pathlib import Path

import pytest
from tests.product_toys import run_malmoi

pytest.importorskip("ctranslate2", reason="copies for CTranslate2 need the extra ct2")

STORED_MODEL = Path(__file__).parents[1] / "golden" / "model"


def test_a_run_becomes_a_folder_that_proves_itself(toy: Path, tmp_path: Path) -> None:
    words = ("export", toy / "run", "--to", "ctranslate2", "--out", "copy", "--quantization", "float16", "--json")
    found = json.loads(run_malmoi(*words, cwd=tmp_path).stdout)
    assert found["format"] == "ctranslate2"
    assert found["number_type"] == "float16"
    assert found["float32"]["largest_difference"] <= found["float32"]["tolerance"] == 1e-4
    assert found["quality"]["num_sentences"] == 5
    stored = json.loads((tmp_path / "copy" / "verification.json").read_text(encoding="utf-8"))
    assert stored["float32"] == found["float32"]
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        "README.md",
        "config.json",
        "decoding.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer",
        "translate.py",
        "verification.json",
    }
    again = run_malmoi("export", toy / "run", "--to", "ctranslate2", "--out", "copy", cwd=tmp_path, status=2)
    assert b"copy: is there already" in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_it_says_in_words_what_was_compared(tmp_path: Path) -> None:
    result = run_malmoi("export", STORED_MODEL, "--to", "ctranslate2", "--out", "new/copy", cwd=tmp_path)
    first, second, *_, last = result.stdout.decode().splitlines()
    assert "score the same within" in first
    assert "greedy outputs are the same" in second
    assert last.split() == ["written", str(Path("new/copy"))]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--to", "onnx"), 2, "--to onnx: must be one of ctranslate2"),
        (("--to", "ctranslate2", "--quantization", "int4"), 2, "--quantization int4: must be one of"),
    ],
)
def test_what_cannot_work_is_refused(words: tuple[str, ...], status: int, message: str, tmp_path: Path) -> None:
    result = run_malmoi("export", STORED_MODEL, *words, "--out", "copy", cwd=tmp_path, status=status)
    assert message in result.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_recurrent_models_are_refused_before_they_are_read(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    settings = '[text]\ntokenizer = "bytes"\n[model]\narchitecture = "rnn"\n[decoding]\n'
    (model / "config.toml").write_text(settings, encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"never read")
    result = run_malmoi("export", model, "--to", "ctranslate2", "--out", "copy", cwd=tmp_path, status=2)
    assert b"CTranslate2 has no recurrent decoders" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
