"""Stored models as translators: `malmoi.load`, and what the package itself imports."""

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import malmoi
from copying import LINES, make_tokenizers, texts_of
from malmoi.checkpoint import save_model
from malmoi.config.decoding import DecodingConfig, Precision
from malmoi.config.model import TransformerConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.errors import CheckpointError, ConfigError
from malmoi.models.build import build_model


def store_model(
    folder: Path, lines: Sequence[str] = LINES, seed: int = 1, precision: Precision = "fp32", **card: Any
) -> Path:
    tokenizers = make_tokenizers("characters", lines)
    size = tokenizers.target.size
    model = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=16)
    config = StoredConfig(
        text=TextConfig(tokenizer="characters"),
        model=model,
        decoding=DecodingConfig(beam_size=2, max_length=10, precision=precision),
    )
    save_model(folder, config, build_model(model, size, size, seed=seed), tokenizers, dict(card))
    return folder


def test_a_stored_model_translates(tmp_path: Path) -> None:
    first = store_model(tmp_path / "first", max_source_tokens=6)
    translator = malmoi.load(first)
    assert translator.decoding.beam_size == 2
    assert translator.max_source_tokens == 6
    found = translator.translate(LINES)
    assert texts_of(malmoi.load(str(first)).translate(LINES)) == texts_of(found)
    second = store_model(tmp_path / "second", seed=2)
    twice = malmoi.load([first, first]).translate(LINES)
    assert texts_of(twice) == texts_of(found)
    mixed = malmoi.load([first, second]).translate(LINES)
    assert [one.score for one in mixed] != [one.score for one in found]
    assert all(one.score is not None and math.isfinite(one.score) for one in mixed)


def test_models_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    first = store_model(tmp_path / "first")
    # The same characters, so the same size, but other ids.
    other = store_model(tmp_path / "other", lines=[*LINES[:4], "kato. felu, gasi!!!!!!!!!!"])
    with pytest.raises(CheckpointError, match="vocabulary is not that of"):
        malmoi.load([first, other])
    with pytest.raises(ConfigError, match="no model"):
        malmoi.load([])
    with pytest.raises(ConfigError, match="cuda"):
        if torch.cuda.is_available():
            raise ConfigError("cuda is there")
        malmoi.load(first, device="cuda")


def test_importing_the_package_imports_nothing() -> None:
    code = (
        "import sys, malmoi; roots = {name.partition('.')[0] for name in sys.modules}; "
        "assert not roots & {'torch', 'numpy', 'pydantic', 'sentencepiece', 'sacrebleu', 'importlib_metadata'}, roots; "
        "assert [name for name in sys.modules if name.startswith('malmoi')] == ['malmoi']; "
        "assert malmoi.__version__.count('.') == 2; assert callable(malmoi.load)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_that_stores_int8_can_be_read_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native code a call may still ask for fp32."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no library"))
    plain = malmoi.load(store_model(tmp_path / "plain"))
    stored = malmoi.load(store_model(tmp_path / "stored", precision="int8"))
    with pytest.raises(ConfigError, match="doctor --build"):
        stored.translate(LINES)
    expected = texts_of(plain.translate(LINES))
    assert texts_of(stored.translate(LINES, options={"precision": "fp32"})) == expected
