"""What lies beside an export speaks as the model does: its tokenisers, its ranking, its command line."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.checkpoint import load_model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.scoring import Scoring
from malmoi.export import standalone
from malmoi.export.folder import export_ctranslate2
from malmoi.text.ids import END_ID
from malmoi.text.lines import read_lines
from malmoi.text.tokenizer import Tokenizers, train_tokenizers
from malmoi.translate import Translator

pytest.importorskip("ctranslate2", reason="copies for CTranslate2 need the extra ct2")

GOLDEN = Path(__file__).parents[2] / "golden"
LINES = [
    "one two  three \u2581 \ud55c\uad6d\uc5b4 caf\u00e9",
    "\x1a0 </s> <unk> <0x0A> tab\there",
    "a \u2585 b \u3000 c",
]
KINDS = ("bpe", "unigram", "characters", "bytes", "words")


@pytest.fixture(scope="module", params=KINDS)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizers, Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    config = TextConfig(tokenizer=request.param, shared_vocabulary=False, vocabulary_size=320)
    tokenizers = train_tokenizers(config, LINES, LINES[::-1], seed=1)
    seen = {index for row in tokenizers.source.encode_batch(LINES) for index in row}
    unseen = tuple(index for index in tokenizers.source.fallback_ids() if index not in seen)
    tokenizers = Tokenizers(tokenizers.source, tokenizers.target, False, unseen)
    tokenizers.save(folder)
    manifest = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return tokenizers, *(standalone.Side(folder, manifest, side) for side in ("source", "target"))


LETTERS = "one two\u2581\u2585\x1a012e\u0301\ud55c\u1112\u1161\u11ab\n\r\0\t\u00a0\u3000<>/s\u00e9\ud800\U0001f600"
TEXTS = st.text(st.sampled_from(LETTERS))


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_texts_become_the_same_ids(sides: tuple[Tokenizers, Any, Any], text: str) -> None:
    tokenizers, source, _ = sides
    assert source.encode(text) == tokenizers.encode_source(text)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ids_become_the_same_texts(sides: tuple[Tokenizers, Any, Any], data: st.DataObject) -> None:
    tokenizers, _, target = sides
    ids = data.draw(st.lists(st.integers(0, tokenizers.target.size - 1), max_size=12))
    assert target.decode(ids) == tokenizers.target.decode(ids)


def test_it_needs_nothing_of_malmoi() -> None:
    tree = ast.parse(Path(standalone.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used = {name.split(".")[0] for name in names}
    assert used - set(sys.stdlib_module_names) == {"ctranslate2", "sentencepiece"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stored model, exported."""
    out = tmp_path_factory.mktemp("export") / "copy"
    export_ctranslate2(load_model(GOLDEN / "model"), out, "float32")
    return out


def test_the_folder_translates_by_itself(exported: Path) -> None:
    """Line for line, blank ones and characters that training never saw included."""
    lines = [*read_lines(GOLDEN / "lines.source"), "", " \u3000", "\u4e00"]
    wanted = [one.text for one in Translator.load(GOLDEN / "model", device="cpu").translate(lines)]
    result = subprocess.run(
        [sys.executable, str(exported / "translate.py")],
        input="".join(f"{line}\r\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    assert result.stdout.decode().split("\n") == [*wanted, ""]


def test_no_line_gives_no_line(exported: Path) -> None:
    command = [sys.executable, str(exported / "translate.py")]
    assert subprocess.run(command, input=b"", capture_output=True, check=True).stdout == b""
    assert subprocess.run(command, input=b"\n\n", capture_output=True, check=True).stdout == b"\n\n"


@pytest.mark.parametrize("beam_size", [1, 4])
def test_greedy_and_beam_say_what_the_model_says(exported: Path, beam_size: int) -> None:
    lines = list(read_lines(GOLDEN / "lines.source"))
    translator = Translator.load(GOLDEN / "model", device="cpu")
    wanted = [one.text for one in translator.translate(lines, options={"beam_size": beam_size})]
    assert standalone.Exported(exported, intra_threads=1).translate(lines, beam_size=beam_size) == wanted


@pytest.mark.parametrize("kind", ["wu", "divide", "none"])
def test_outputs_are_ranked_by_the_formula_of_the_model(exported: Path, kind: str) -> None:
    copy = standalone.Exported(exported, intra_threads=1)
    copy.settings.update(length_penalty=kind, length_alpha=0.7)
    config = DecodingConfig.model_validate({"length_penalty": kind, "length_alpha": 0.7})
    for total, length in ((-3.0, 1), (-3.0, 4), (-8.5, 20)):
        wanted = Scoring.from_config(config).score(np.array([total]), np.array([length]))[0]
        given_score = total if kind == "none" else total / length
        assert copy.rank(given_score, length) == pytest.approx(wanted)


def test_what_may_not_come_out_is_named(exported: Path) -> None:
    """Unknown, and the bytes that would break a line."""
    stored = json.loads((exported / "decoding.json").read_text(encoding="utf-8"))
    assert set(stored["suppress"]) == {"<unk>", "<0x0A>", "<0x0D>", "<0x00>"}
    readme = (exported / "README.md").read_text(encoding="utf-8")
    assert "`<0x0A>`" in readme and "shared-pieces.model" in readme


def test_a_sentence_beyond_the_positions_is_told_and_leaves_the_others_alone(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OpenNMT/CTranslate2#1646."""
    copy = standalone.Exported(exported, intra_threads=1)
    line = next(iter(read_lines(GOLDEN / "lines.source")))
    (alone,) = copy.translate([line])
    copy.settings["max_positions"] = len(copy.encode(line)) + 1
    assert copy.translate([line, f"{line} {line}"]) == [alone, ""]
    assert "sentence 2: " in capsys.readouterr().err


def test_the_end_symbol_is_added_over_there(exported: Path) -> None:
    copy = standalone.Exported(exported, intra_threads=1)
    assert END_ID not in [copy.target_ids[token] for token in copy.encode("one small dog runs.")]
    assert json.loads((exported / "config.json").read_text(encoding="utf-8"))["add_source_eos"] is True
