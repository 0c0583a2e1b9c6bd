"""The engine reads model folders itself: without torch, the same weights, and nothing that is not as it should be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_library import folder_with_library, native_library
from golden.make import MODEL
from malmoi.checkpoint import save_model, untie
from malmoi.config.decoding import DecodingConfig, Precision
from malmoi.config.model import TransformerConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.device import is_surely_cpu
from malmoi.engine import choose
from malmoi.engine.positions import PositionTable
from malmoi.engine.scorer import EngineScorer, StepsAlone
from malmoi.engine.weights import Sizes, read_weights, shapes
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.models.build import build_model, outline_model, plan_positions
from malmoi.models.positions import RotaryPositions
from malmoi.native.library import library_path
from malmoi.stored import WEIGHTS_FILE, read_stored
from malmoi.text.tokenizer import train_tokenizers
from malmoi.translate import Translator
from reference.models import TRANSFORMERS, small_transformer

TEXTS = ["two small dogs sleep.", "one small cat."]
CONFIGS = {
    **TRANSFORMERS,
    "learned-swiglu-bias": small_transformer(positions="learned", activation="swiglu", output_bias=True, tying="none"),
    "relative-rms-pre": small_transformer(positions="relative", norm="rms", norm_place="pre", tying="target"),
}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is there."""
    library = native_library()
    monkeypatch.setattr(choose, "find_library", lambda: library)


def store(folder: Path, config: TransformerConfig | None = None) -> Path:
    """A small model with random weights."""
    settings = TextConfig(tokenizer="words", vocabulary_size=60, shared_vocabulary=True)
    tokenizers = train_tokenizers(settings, TEXTS, TEXTS, 1)
    config = config or small_transformer()
    network = build_model(config, tokenizers.source.size, tokenizers.target.size, 5).eval()
    save_model(
        folder,
        StoredConfig(text=settings, model=config, decoding=DecodingConfig(max_length=9)),
        network,
        tokenizers,
        {},
    )
    return folder


PROGRAMS = {
    "python": "import malmoi; print(malmoi.load(MODEL).translate([TEXT])[0].text)",
    "int8": "import malmoi; print(malmoi.load(MODEL).translate([TEXT], options={'precision': 'int8'})[0].text)",
    "shell": "sys.argv[1:] = ['translate', MODEL]\nimport io\nsys.stdin = io.TextIOWrapper(io.BytesIO(TEXT.encode()))\n"
    "from malmoi.commands.main import app\ntry:\n    app()\nexcept SystemExit as end:\n    assert not end.code",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_translating_needs_no_torch(program: str, tmp_path: Path) -> None:
    """Which takes most of two seconds to import: a few sentences from the shell are there before that."""
    native_library()
    cache = tmp_path / "malmoi" / "engine"
    cache.mkdir(parents=True)
    shutil.copy(library_path(folder_with_library()), cache)
    code = f"import sys\nMODEL, TEXT = {str(MODEL)!r}, {TEXTS[0]!r}\n{PROGRAMS[program]}\n"
    code += "sys.stderr.write(' '.join({'torch', 'sacrebleu', 'rich', 'matplotlib'} & set(sys.modules)))"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    if is_surely_cpu("auto"):
        assert done.stderr == ""
    assert done.stdout == Translator.load(MODEL, device="cpu").translate([TEXTS[0]])[0].text + "\n"


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_shapes_are_those_of_the_network(name: str) -> None:
    config = CONFIGS[name]
    sizes = Sizes(11, 11) if config.tying == "all" else Sizes(11, 13)
    named = untie(outline_model(config, sizes.source, sizes.target).state_dict(), config)
    assert shapes(config, sizes) == {name: tuple(tensor.shape) for name, tensor in named.items()}


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "relative", "none"])
def test_positions_are_those_of_the_network(positions: str) -> None:
    config = small_transformer(positions=positions, width=12, heads=2, max_positions=7)
    network = build_model(config, 9, 9, seed=2)
    weights = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    table = PositionTable(config, weights, of_source=False)
    plan = plan_positions(config)
    like = torch.zeros(1)
    for num_positions in (3, 7) if positions == "learned" else (3, 300, 5):
        found = table.rows(num_positions)
        match positions:
            case "sinusoidal":
                expected = plan.embedding().table(num_positions, like)  # pyright: ignore[reportOptionalMemberAccess]
            case "rotary":
                rotary = plan.attention()
                assert isinstance(rotary, RotaryPositions)
                expected = rotary.rows.get(num_positions, like, 6, interleaved=False)
            case "learned":
                expected = network.get_parameter("target_positions.embedding.weight")[:num_positions]
            case _:
                assert found is None
                continue
        assert found is not None
        assert found[1] == found[0].ctypes.data
        np.testing.assert_allclose(found[0][:num_positions], expected.detach().numpy(), rtol=0, atol=1e-7)
    if positions == "learned":
        with pytest.raises(DataError, match="8 tokens is longer than the 7 positions"):
            table.rows(8)


@pytest.mark.parametrize("name", ["learned-swiglu-bias", "relative-rms-pre", "transformer-rotary-post"])
def test_a_folder_gives_what_its_network_gives(name: str, tmp_path: Path, built: None) -> None:
    folder = store(tmp_path / "model", CONFIGS[name])
    translator = Translator.load(folder, device="cpu")
    assert translator.maybe_stored is not None
    assert "members" not in vars(translator.maybe_stored), "no network was loaded"
    assert isinstance(translator.scorer_for(translator.decoding), EngineScorer)
    plain = Translator(translator.scorer, translator.tokenizers, translator.decoding)
    assert isinstance(plain.scorer, ModelScorer)
    assert translator.max_steps == plain.max_steps
    for mine, theirs in zip(translator.translate(TEXTS), plain.translate(TEXTS), strict=True):
        assert mine.text == theirs.text
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)
    # Whole targets are read by the network; its numbers in fp32 are the engine's.
    pairs = [(TEXTS[0], TEXTS[1])]
    assert translator.score(pairs)[0].score == plain.score(pairs)[0].score


def test_another_precision_reads_the_weights_again(tmp_path: Path, built: None) -> None:
    translator = Translator.load(store(tmp_path / "model"), device="cpu")
    kinds: dict[Precision, type] = {"fp32": EngineScorer, "int8": StepsAlone}
    found = {}
    for precision in ("int8", "fp32", "int8"):
        options = translator.resolve({"precision": precision})
        assert type(translator.scorer_for(options)) is kinds[precision]
        found[precision] = translator.translate(TEXTS, options=options)
    assert found["fp32"][0].score == pytest.approx(found["int8"][0].score, abs=0.5)
    assert found["fp32"][0].score != found["int8"][0].score
    with pytest.raises(ConfigError, match="precision"):
        translator.resolve({"precision": "int4"})


def test_an_ensemble_of_folders_is_one_of_engines(tmp_path: Path, built: None) -> None:
    folders = [store(tmp_path / "one"), store(tmp_path / "two", small_transformer(positions="rotary"))]
    translator = Translator.load(folders, device="cpu")
    scorer = translator.scorer_for(translator.decoding)
    assert isinstance(scorer, EnsembleScorer)
    assert choose.allows_threads(scorer)
    plain = Translator(translator.scorer, translator.tokenizers, translator.decoding)
    assert [one.text for one in translator.translate(TEXTS)] == [one.text for one in plain.translate(TEXTS)]


def test_half_precision_is_read_and_more_goes_through_the_network(tmp_path: Path, built: None) -> None:
    """All is computed with in fp32, as everywhere."""
    folder = store(tmp_path / "model")
    weights = load_file(folder / WEIGHTS_FILE)
    size = read_stored(folder).tokenizers.source.size
    config, sizes = small_transformer(), Sizes(size, size)
    for dtype, is_read in ((torch.float16, True), (torch.bfloat16, True), (torch.float64, False)):
        save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / WEIGHTS_FILE)
        assert (read_weights(folder / WEIGHTS_FILE, config, sizes) is not None) == is_read
        translator = Translator.load(folder, device="cpu")
        assert isinstance(translator.scorer_for(translator.decoding), EngineScorer)
        plain = Translator(translator.scorer, translator.tokenizers, translator.decoding)
        for mine, theirs in zip(translator.translate(TEXTS), plain.translate(TEXTS), strict=True):
            assert mine.score == pytest.approx(theirs.score, abs=1e-4)


def test_faults_are_told_when_the_model_is_loaded(tmp_path: Path, built: None) -> None:
    """In the same words as without the engine."""
    folder = store(tmp_path / "model")
    path = folder / WEIGHTS_FILE
    weights = load_file(path)
    name = "decoder.layers.0.feed_forward.inner.weight"
    for value in (float("nan"), float("inf"), -float("inf")):
        save_file({**weights, name: torch.full_like(weights[name], value)}, path)
        with pytest.raises(CheckpointError, match=f"{name} holds values that are not finite"):
            Translator.load(folder, device="cpu")
    save_file({key: value for key, value in weights.items() if key != name}, path)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        Translator.load(folder, device="cpu")
    save_file({**weights, name: weights[name][:, :-1].contiguous()}, path)
    with pytest.raises(CheckpointError, match=f"{name} has the shape"):
        Translator.load(folder, device="cpu")
    save_file(weights, path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        Translator.load(folder, device="cpu")
