"""Copies for CTranslate2: each kind of Transformer is held, a broken copy is seen, and types are what was asked for."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from malmoi.checkpoint import Model, load_model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.forced import force
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import CheckpointError, ConfigError
from malmoi.export import ctranslate2 as format_file
from malmoi.export import folder as folder_file
from malmoi.export import verify as verify_file
from malmoi.export.ctranslate2 import NUM_POSITIONS, Ct2Copy, check_can_hold, check_number_type, number_type
from malmoi.export.folder import VERIFICATION_FILE, bound_of, export_ctranslate2
from malmoi.export.names import Names
from malmoi.export.verify import TOLERANCE
from malmoi.models.build import build_model
from malmoi.text.ids import END_ID
from malmoi.text.lines import read_lines
from malmoi.text.tokenizer import Tokenizers, train_tokenizers

pytest.importorskip("ctranslate2", reason="copies for CTranslate2 need the extra ct2")

STORED_MODEL = Path(__file__).parents[2] / "golden" / "model"
SOURCES = ["one two three four", "five six seven", "one nine </s> <unk>"]
TARGETS = ["a b c d e", "f g h <s> i", "j k"]


@pytest.fixture(autouse=True)
def small_and_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorter sentences than a user's model is asked for."""
    monkeypatch.setattr(folder_file, "USUAL_LENGTH", 30)
    monkeypatch.setattr(verify_file, "MOST_OUTPUT", 30)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_tokenizers(shared: bool) -> Tokenizers:
    return train_tokenizers(TextConfig(tokenizer="words", shared_vocabulary=shared), SOURCES, TARGETS, seed=1)


def make_model(**settings: Any) -> Model:
    """A random model whose every weight is away from its start value: nothing hides behind a zero or a one."""
    shared = settings.get("tying", "all") == "all"
    tokenizers = make_tokenizers(shared)
    sizes = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 1, "feed_forward": 24}
    config = TransformerConfig.model_validate({**sizes, "max_positions": 30, "relative_distance": 3, **settings})
    network = build_model(config, tokenizers.source.size, tokenizers.target.size, seed=1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    text = TextConfig(tokenizer="words", shared_vocabulary=shared)
    stored = StoredConfig(text=text, model=config, decoding=DecodingConfig())
    # Made-up sentences reach as far as training is said to have seen.
    return Model(stored, network.eval(), tokenizers, {"max_source_tokens": 30})


LAYOUTS: dict[str, dict[str, Any]] = {
    "all": {"tying": "all"},
    "target": {"tying": "target", "output_bias": True},
    "none": {"tying": "none", "encoder_layers": 1, "decoder_layers": 2},
}
KINDS: tuple[dict[str, Any], ...] = (
    {"norm": "layer", "activation": "relu"},
    {"norm": "rms", "activation": "swiglu"},
    {"norm": "layer", "activation": "gelu"},
    {"norm": "rms", "activation": "relu", "output_bias": True},
    {"norm": "layer", "activation": "swiglu"},
    {"norm": "rms", "activation": "gelu"},
)
GRID = [
    {"positions": positions, "norm_place": place, **LAYOUTS[layout], **KINDS[(6 * row + 3 * column + number) % 6]}
    for row, positions in enumerate(("sinusoidal", "learned", "rotary", "relative", "none"))
    for column, place in enumerate(("post", "pre"))
    for number, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize("settings", GRID, ids=lambda one: "-".join(str(value) for value in one.values()))
def test_each_kind_of_transformer_is_held(settings: dict[str, Any], tmp_path: Path) -> None:
    """OpenNMT/CTranslate2#118, #120 and #1262; huggingface/transformers#15109."""
    verification = export_ctranslate2(make_model(**settings), tmp_path / "copy", "float32")
    assert verification.proof.num_tokens > 100
    assert verification.proof.largest_difference < TOLERANCE / 4
    assert verification.proof.num_ties == 0


def read_binary(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Arrays of a `model.bin` by name (bfloat16 as uint16), and which name stands for which other."""
    data, place = path.read_bytes(), 0

    def take(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal place
        size = take("H")
        place += size
        return data[place - size : place - 1].decode()

    take("I"), text(), take("I")
    types = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16, 5: np.uint16}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = types[take("B")], take("I")
        arrays[name] = np.frombuffer(data[place : place + size], kind).reshape(shape)
        place += size
    return arrays, {text(): text() for _ in range(take("I"))}


def test_what_is_tied_is_stored_once_and_the_start_symbol_stays_outside(tmp_path: Path) -> None:
    """OpenNMT/CTranslate2#118, #120 and #1262; huggingface/transformers#15109."""
    model = make_model(tying="all")
    embedding = model.network.target_embedding.weight
    with torch.no_grad():
        # Rows of large weights in all directions: this one would win nearly everywhere if it were a class.
        embedding[-1] = 10.0 * embedding[:-1].abs().max(0).values
    export_ctranslate2(model, tmp_path / "copy", "float32")
    arrays, aliases = read_binary(tmp_path / "copy" / "model.bin")
    embeddings = {"decoder/embeddings/weight", "encoder/embeddings_0/weight", "decoder/projection/weight"}
    assert len(embeddings & set(arrays)) == 1 and len(embeddings & set(aliases)) == 2
    assert np.isneginf(arrays["decoder/projection/bias"][-1])
    assert np.isfinite(arrays["decoder/projection/bias"][:-1]).all()


def test_untied_layers_stay_apart(tmp_path: Path) -> None:
    export_ctranslate2(make_model(tying="none"), tmp_path / "copy", "float32")
    arrays, _ = read_binary(tmp_path / "copy" / "model.bin")
    source, target = make_tokenizers(shared=False).source.size, make_tokenizers(shared=False).target.size
    assert arrays["encoder/embeddings_0/weight"].shape == (source, 16)
    assert arrays["decoder/embeddings/weight"].shape == (target + 1, 16)
    assert arrays["decoder/projection/weight"].shape == (target, 16)


def change_spec(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    build_spec = format_file.build_spec

    def build_broken(specs: Any, network: Any) -> Any:
        spec = build_spec(specs, network)
        change(spec)
        return spec

    monkeypatch.setattr(format_file, "build_spec", build_broken)


def nudge(array: Any, *place: int) -> None:
    array[place] += 0.05


BREAKS: dict[str, Callable[[Any], None]] = {
    "a bias of the encoder": lambda spec: nudge(spec.encoder.layer[0].self_attention.linear[0].bias, 0),
    "a bias of the decoder": lambda spec: nudge(spec.decoder.layer[0].ffn.linear_1.bias, 3),
    "a norm": lambda spec: nudge(spec.decoder.layer[0].attention.layer_norm.gamma, 2),
    "the start symbol": lambda spec: nudge(spec.decoder.embeddings.weight, -1, 4),
    "the last position": lambda spec: nudge(spec.encoder.position_encodings.encodings, 29, 4),
    "the output": lambda spec: nudge(spec.decoder.projection.bias, 7),
    "all numbers": lambda spec: spec.decoder.layer[0].ffn.linear_1.bias.fill(np.nan),
}


@pytest.mark.parametrize("part", BREAKS)
def test_a_copy_with_one_broken_tensor_is_not_left(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_spec(monkeypatch, BREAKS[part])
    with pytest.raises(CheckpointError, match=r"not written, since the copy is not the model: .*log-probability"):
        export_ctranslate2(make_model(positions="learned", output_bias=True), tmp_path / "copy", "float32")
    assert not list(tmp_path.iterdir())


def test_a_copy_with_another_tokeniser_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, write = make_model(), folder_file.write_beside
    words = [*SOURCES, *TARGETS, "zero"]
    other = train_tokenizers(TextConfig(tokenizer="words"), words, words, seed=1)

    def write_other(model: Model, *rest: Any) -> None:
        write(Model(model.config, model.network, other, model.card), *rest)

    monkeypatch.setattr(folder_file, "write_beside", write_other)
    model.card["sentences"] = [{"source": "zero one", "text": "a"}]
    with pytest.raises(CheckpointError, match="the source 'zero one' has the ids"):
        export_ctranslate2(model, tmp_path / "copy", "float32")
    assert not list(tmp_path.iterdir())


def test_recurrent_models_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no recurrent decoders.* rnn \(cell lstm, attention dot\)"):
        check_can_hold(RnnConfig(cell="lstm", attention="dot"))
    check_can_hold(TransformerConfig())


def test_types_are_refused_by_name() -> None:
    assert check_number_type("int8") == "int8"
    assert check_number_type(None) is None
    with pytest.raises(ConfigError, match=r"--quantization int4: must be one of float32, .*int8"):
        check_number_type("int4")


@pytest.mark.parametrize(("stored", "name"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float64", "float32")])
def test_a_model_keeps_its_type_unless_another_is_asked_for(stored: str, name: str) -> None:
    """facebookresearch/fairseq#1079; OpenNMT/OpenNMT-py#2346."""
    model = make_model()
    model.network.to(getattr(torch, stored))
    assert number_type(model, None) == name
    assert number_type(model, "int8") == "int8"


def test_half_precision_is_kept_bit_for_bit(tmp_path: Path) -> None:
    """facebookresearch/fairseq#1079; OpenNMT/OpenNMT-py#2346."""
    model = load_model(STORED_MODEL, dtype=None)
    wanted = model.network.target_embedding.weight.detach().view(torch.uint16).numpy()
    kind = number_type(model, None)
    model.network.float()
    export_ctranslate2(model, tmp_path / "half", kind)
    export_ctranslate2(model, tmp_path / "whole", "float32")
    arrays, aliases = read_binary(tmp_path / "half" / "model.bin")
    assert kind == "bfloat16"
    assert np.array_equal(arrays[aliases["encoder/embeddings_0/weight"]], wanted)
    assert {one.dtype for one in arrays.values() if one.ndim} == {np.dtype(np.uint16)}
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.51 * sizes[1]
    stored = json.loads((tmp_path / "half" / VERIFICATION_FILE).read_text(encoding="utf-8"))
    assert stored["number_type"] == "bfloat16"
    assert 0.0 < stored["quality"]["mean_difference"] < stored["quality"]["largest_mean_difference"]


def trained_model() -> Model:
    """The stored model, with a few of its sentences on its card, as a run leaves them."""
    model = load_model(STORED_MODEL)
    lines = zip(*(read_lines(STORED_MODEL.parent / f"lines.{side}") for side in ("source", "target")), strict=True)
    model.card["sentences"] = [{"source": source, "text": target} for source, target in lines]
    return model


@pytest.mark.parametrize("kind", ["int8", "float16", "bfloat16"])
def test_fewer_bits_of_a_trained_model_are_measured_and_close(kind: Any, tmp_path: Path) -> None:
    model = trained_model()
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    verification = export_ctranslate2(model, tmp_path / "copy", kind)
    quality, bound = verification.maybe_quality, bound_of(kind, is_made_up=False)
    assert quality is not None
    assert quality.num_sentences == len(model.card["sentences"])
    assert 0.0 < quality.mean_difference < bound.mean_difference / 2
    assert quality.equal_share == 1.0
    arrays, _ = read_binary(tmp_path / "copy" / "model.bin")
    types = {"int8": np.int8, "float16": np.float16, "bfloat16": np.uint16}
    assert arrays["decoder/layer_0/ffn/linear_0/weight"].dtype == types[kind]
    # Quantisation works in place over there.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())


def test_fewer_bits_that_change_the_model_are_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = folder_file.write_copy

    def write_badly(network: Any, names: Names, kind: Any, folder: Path) -> None:
        if kind != "float32":
            change_spec(monkeypatch, lambda spec: spec.decoder.layer[0].ffn.linear_1.bias.__imul__(50.0))
        write(network, names, kind, folder)

    monkeypatch.setattr(folder_file, "write_copy", write_badly)
    with pytest.raises(CheckpointError, match=r"in fewer bits \d+% of \d+ greedy outputs stay the same"):
        export_ctranslate2(trained_model(), tmp_path / "copy", "int8")
    assert not list(tmp_path.iterdir())


def test_no_folder_is_ever_overwritten(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already"):
        export_ctranslate2(make_model(), tmp_path / "copy", "float32")
    assert (tmp_path / "copy" / "thesis.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_long_sentences_agree_up_to_the_end_of_the_table(positions: str, tmp_path: Path) -> None:
    """OpenNMT/CTranslate2#1646: beyond its table a copy fails, and says so."""
    model = make_model(positions=positions, encoder_layers=1)
    export_ctranslate2(model, tmp_path / "copy", "float32")
    copy = Ct2Copy(tmp_path / "copy", Names.of(model.tokenizers), "float32")
    source = (*([2, 3, 4, 5, 6] * NUM_POSITIONS)[: NUM_POSITIONS - 1], END_ID)
    (ours,) = force(ModelScorer(model.network), [source], [(2, 3, END_ID)])
    assert copy.score([source], [(2, 3, END_ID)])[0] == pytest.approx(ours.log_probs, abs=TOLERANCE)
    if positions == "sinusoidal":
        with pytest.raises(RuntimeError, match=f"positions >= {NUM_POSITIONS}"):
            copy.score([(2, *source)], [(2, 3, END_ID)])
