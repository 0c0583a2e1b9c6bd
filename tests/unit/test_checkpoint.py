"""Model folders: complete or absent, told apart from what is damaged, dangerous or foreign; and their averages."""

import json
import os
import pickle
import re
import resource
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from malmoi import checkpoint
from malmoi.checkpoint import average_models, find_model, load_model, refuse_pickle, save_model
from malmoi.config.model import Cell, ModelConfig, RnnAttention, RnnConfig
from malmoi.errors import CheckpointError
from malmoi.files import write_atomically
from malmoi.models.build import build_model
from malmoi.text.tokenizer import Tokenizers
from stored_models import SMALL, make, save, small_tokenizers

RNNS: list[tuple[RnnAttention, Cell]] = [("none", "lstm"), ("additive", "gru"), ("dot", "gru")]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return small_tokenizers()


@pytest.mark.parametrize(
    "model",
    [SMALL, SMALL.model_copy(update={"tying": "none", "output_bias": True}), RnnConfig(width=4, hidden=6)],
    ids=["tied", "untied", "rnn"],
)
def test_a_model_comes_back(model: ModelConfig, tokenizers: Tokenizers, tmp_path: Path) -> None:
    network = save(tmp_path / "m", tokenizers, model)
    loaded = load_model(tmp_path / "m")
    assert loaded.config.model == model and loaded.config.decoding.beam_size == 3
    assert loaded.card["steps"] == 1 and loaded.card["weights_type"] == "float32"
    assert loaded.card["num_parameters"] == sum(parameter.numel() for parameter in network.parameters())
    assert not loaded.network.training
    assert loaded.tokenizers.source.encode("abc") == tokenizers.source.encode("abc")
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)
    assert (loaded.network.source_embedding is loaded.network.target_embedding) == (model.tying == "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_tied_weights_are_stored_once(tokenizers: Tokenizers, tmp_path: Path) -> None:
    save(tmp_path / "m", tokenizers)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert "target_embedding.weight" in stored and "source_embedding.weight" not in stored


def test_weights_keep_their_type_on_disk(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """facebookresearch/fairseq#1079, OpenNMT/OpenNMT-py#2346: and they are computed with in the type asked for."""
    for dtype in (torch.bfloat16, torch.float16):
        config, network = make(tokenizers)
        save_model(tmp_path / "m", config, network.to(dtype), tokenizers, {})
        assert {tensor.dtype for tensor in load_file(tmp_path / "m" / "model.safetensors").values()} == {dtype}
        assert load_model(tmp_path / "m").network.output_weight_VD.dtype == torch.float32
        loaded = load_model(tmp_path / "m", dtype=None)
        assert loaded.network.output_weight_VD.dtype == dtype
        assert loaded.card["weights_type"] == str(dtype).removeprefix("torch.")


def test_saving_again_replaces_the_old_model(tokenizers: Tokenizers, tmp_path: Path) -> None:
    save(tmp_path / "m", tokenizers, seed=1)
    (tmp_path / "m" / "stray").write_text("of the old one")
    network = save(tmp_path / "m", tokenizers, seed=2)
    assert torch.equal(load_model(tmp_path / "m").network.output_weight_VD, network.output_weight_VD)
    assert not (tmp_path / "m" / "stray").exists()


def test_a_full_disk_leaves_the_old_model(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#688, pytorch/pytorch#10577, rwth-i6/returnn#1829,
    facebookresearch/fairseq#2684.
    """
    large = SMALL.model_copy(update={"feed_forward": 2000})
    network = save(tmp_path / "m", tokenizers, large)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="unchanged"):
            save(tmp_path / "m", tokenizers, large, seed=2)
        with pytest.raises(CheckpointError, match="unchanged"):
            write_atomically(tmp_path / "m" / "card.json", b" " * 30_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(load_model(tmp_path / "m").network.output_weight_VD, network.output_weight_VD)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tokenizers: Tokenizers, tmp_path: Path) -> None:
    network = save(tmp_path / "m", tokenizers)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="cannot be written"):
            save(tmp_path / "m", tokenizers, seed=2)
    finally:
        tmp_path.chmod(0o700)
    assert torch.equal(load_model(tmp_path / "m").network.output_weight_VD, network.output_weight_VD)


class Killed(BaseException):
    """Stands for kill -9: nothing that handles errors may catch it."""


@pytest.mark.parametrize("fatal_call", range(1, 8))
def test_a_kill_at_any_moment_leaves_a_model(
    tokenizers: Tokenizers, tmp_path: Path, fatal_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the n-th change to the folders: what is loaded is the old model or the new one, whole."""
    old = save(tmp_path / "m", tokenizers, seed=1)
    calls = 0

    def fatal(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal_call:
                raise Killed
            return do(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fatal(Path.rename))
        patch.setattr(Path, "mkdir", fatal(Path.mkdir))
        patch.setattr(shutil, "rmtree", fatal(shutil.rmtree))
        patch.setattr(checkpoint, "save_file", fatal(checkpoint.save_file))
        with pytest.raises(Killed):
            for seed in (2, 2):
                save(tmp_path / "m", tokenizers, seed=seed)
    new = make(tokenizers, seed=2)[1]
    weight = load_model(tmp_path / "m").network.output_weight_VD
    assert torch.equal(weight, old.output_weight_VD) or torch.equal(weight, new.output_weight_VD)
    save(tmp_path / "m", tokenizers, seed=3)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_damaged_and_missing_files_are_named(tokenizers: Tokenizers, tmp_path: Path) -> None:
    save(tmp_path / "m", tokenizers)
    weights = tmp_path / "m" / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:4], b"", b"\x00" * 100):
        weights.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
            load_model(tmp_path / "m")
    weights.write_bytes(whole)
    (tmp_path / "m" / "card.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"card\.json"):
        load_model(tmp_path / "m")
    for card in ("[]", "[" * 100_000, '{"max_source_tokens": "x"}', '{"sentences": [{}]}', '{"data": "x"}'):
        (tmp_path / "m" / "card.json").write_text(card)
        with pytest.raises(CheckpointError, match=r"card\.json"):
            load_model(tmp_path / "m")
    for name in ("card.json", "config.toml", "tokenizer/tokenizer.json", "model.safetensors"):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "m", copy)
        (copy / name).unlink()
        with pytest.raises(CheckpointError, match=str(Path(name).name).replace(".", r"\.")):
            load_model(copy)
    with pytest.raises(CheckpointError, match="no such model"):
        load_model(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="holds neither"):
        find_model(Path("/"))
    with pytest.raises(CheckpointError, match="this is a file"):
        load_model(tmp_path / "m" / "card.json")


def test_what_does_not_fit_is_refused(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """OpenNMT/OpenNMT-py#723, #758, facebookresearch/fairseq#4660: the id count is that of the embedding's rows."""
    config, network = make(tokenizers)
    folder = tmp_path / "m"
    fewer = build_model(SMALL, tokenizers.source.size - 1, tokenizers.target.size - 1)
    save_model(folder, config, fewer, tokenizers, {})
    with pytest.raises(CheckpointError, match=r"target_embedding\.weight has the shape .* target ids|target ids"):
        load_model(folder)
    weights = checkpoint.untie(network.state_dict(), SMALL)
    more = {**weights, "encoder.extra": torch.zeros(1)}
    save_model(folder, config, more, tokenizers, {})
    with pytest.raises(CheckpointError, match=r"encoder\.extra is not part"):
        load_model(folder)
    less = {name: tensor for name, tensor in weights.items() if name != "decoder.layers.0.cross_attention.query.bias"}
    save_model(folder, config, less, tokenizers, {})
    with pytest.raises(CheckpointError, match=r"query\.bias is missing"):
        load_model(folder)
    bad = {**weights, "target_embedding.weight": torch.full_like(weights["target_embedding.weight"], torch.nan)}
    save_model(folder, config, bad, tokenizers, {})
    with pytest.raises(CheckpointError, match="not finite"):
        load_model(folder)
    save_model(folder, config, network, tokenizers, {})
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("shared_vocabulary = true", "shared_vocabulary = false"))
    with pytest.raises(CheckpointError, match="shared_vocabulary"):
        load_model(folder)
    (folder / "config.toml").write_text(text.replace("width = 8", "widht = 8"))
    with pytest.raises(CheckpointError, match="widht"):
        load_model(folder)


LEARNED = SMALL.model_copy(update={"positions": "learned"})
HOSTILE: list[tuple[ModelConfig, str, str]] = [
    (SMALL, "width = 800000", "self_attention.input.weight has the shape (24, 8) instead of (2400000, 800000)"),
    (SMALL, "feed_forward = 1000000", "inner.weight has the shape (8, 8) instead of (1000000, 8)"),
    (SMALL, "encoder_layers = 1000", "model.encoder_layers is 1000"),
    (SMALL, "decoder_layers = 30", "decoder.layers.1.self_attention.input.weight is missing"),
    (LEARNED, "max_positions = 1000000", "source_positions.embedding.weight has the shape (1024, 8) instead of (1000"),
    (LEARNED, "max_positions = 1023", "source_positions.embedding.weight has the shape (1024, 8) instead of (1023, 8)"),
    (
        SMALL.model_copy(update={"positions": "relative"}),
        "relative_distance = 1000000",
        "self_attention.positions.key has the shape (33, 4) instead of (2000001, 4)",
    ),
    (RnnConfig(width=4, hidden=6), "hidden = 900000", "weight_hh_l0 has the shape (9, 3) instead of (1350000, 450000)"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits its own address space")
@pytest.mark.parametrize(("model", "setting", "message"), HOSTILE, ids=[setting for _, setting, _ in HOSTILE])
def test_settings_beyond_the_weights_are_refused_before_memory_is_taken(
    model: ModelConfig, setting: str, message: str, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    save(tmp_path / "m", tokenizers, model)
    place = tmp_path / "m" / "config.toml"
    place.write_text(re.sub(rf"(?m)^{setting.split()[0]} = .*$", setting, place.read_text()))
    assert setting in place.read_text()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=re.escape(message)):
            load_model(tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    "model",
    [
        SMALL,
        SMALL.model_copy(update={"positions": "learned", "tying": "none", "output_bias": True}),
        SMALL.model_copy(update={"positions": "rotary", "norm": "rms"}),
        SMALL.model_copy(update={"positions": "relative"}),
        *[RnnConfig(width=4, hidden=6, attention=attention, cell=cell) for attention, cell in RNNS],
    ],
    ids=["tied", "learned", "rotary", "relative", "rnn-none-lstm", "rnn-additive-gru", "rnn-dot-gru"],
)
def test_a_loaded_model_computes_what_the_saved_one_did(
    model: ModelConfig, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    """No value is left over from how the model was made, no start values are drawn, and it can be trained on."""
    network = save(tmp_path / "m", tokenizers, model, seed=5).eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("malmoi.models.build.initialize", lambda *_: pytest.fail("start values were drawn"))
        loaded = load_model(tmp_path / "m").network
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        # Later changes of the file are not changes of the model.
        file.write(bytes(file.seek(0, 2) - file.seek(0)))
    source_BS, target_BT = torch.tensor([[2, 3, 1]]), torch.tensor([[tokenizers.target.size, 2]])
    mine, theirs = (one(source_BS, torch.tensor([3]), target_BT) for one in (loaded, network))
    assert torch.equal(mine, theirs)
    assert loaded.training is False and all(parameter.requires_grad for parameter in loaded.parameters())
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        assert not tensor.is_meta and tensor.is_contiguous()
    loaded.train()(source_BS, torch.tensor([3]), target_BT).sum().backward()


class Canary:
    """Unpickling it makes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.place),)


def test_pickles_are_refused_by_name(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """ecmwf/anemoi-core#1416, NVIDIA-NeMo/Automodel#3240, voicepaw/so-vits-svc-fork#193: and nothing of them runs."""
    place = tmp_path / "ran"
    save(tmp_path / "m", tokenizers)
    for protocol in range(6):
        data = pickle.dumps(Canary(place), protocol)
        for name in ("model.pt", "model.pkl", "pytorch_model.bin"):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(CheckpointError, match=rf"{name}: refused"):
                load_model(tmp_path / name)
        (tmp_path / "m" / "model.safetensors").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: (refused|damaged)"):
            load_model(tmp_path / "m")
    torch.save({"weights": Canary(place)}, tmp_path / "plain-name")
    with pytest.raises(CheckpointError, match="plain-name: refused"):
        load_model(tmp_path / "plain-name")
    folder = tmp_path / "foreign"
    folder.mkdir()
    shutil.copy(tmp_path / "plain-name", folder / "weights")
    for paths in ([folder], [tmp_path / "m", folder]):
        with pytest.raises(CheckpointError, match="refused"):
            average_models(paths[::-1], tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("data.pkl", "x")
    with pytest.raises(CheckpointError, match="archive: refused"):
        refuse_pickle(tmp_path / "archive")
    assert not place.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_weights_are_never_taken_for_a_pickle(tmp_path: Path, protocol: int) -> None:
    """A header whose length begins with the two bytes of a pickle is still a header, and only with its brace."""
    length = 0x80 + (protocol << 8)
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(length)
    whole = length.to_bytes(8, "little") + header + b"\x00\x00\x80\x3f"
    assert whole.startswith(bytes([0x80, protocol]))
    path = tmp_path / "w.safetensors"
    path.write_bytes(whole)
    refuse_pickle(path)
    assert checkpoint.load_weights(path)["x"].tolist() == [1.0]
    path.write_bytes(whole[:8] + b" " + whole[9:])
    with pytest.raises(CheckpointError, match="refused"):
        refuse_pickle(path)


def test_weights_can_be_read_by_whoever_can_read_the_rest(tokenizers: Tokenizers, tmp_path: Path) -> None:
    save(tmp_path / "model", tokenizers, seed=1)
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir() if path.is_file()}) == 1


def test_a_run_folder_stands_for_its_model(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """The finished model, else the best checkpoint by the run's own metric, else the last one."""
    run = tmp_path / "run"
    for step in (100, 200, 300):
        save(run / "checkpoints" / f"step-{step:08}", tokenizers, seed=step)
    (run / "checkpoints" / ".tmp-step-00000400").mkdir()
    save_file({"x": torch.zeros(1)}, run / "checkpoints" / ".tmp-step-00000400" / "model.safetensors")
    assert find_model(run).name == "step-00000300"
    rows = [{"step": 100, "valid_loss": 2.0, "valid_bleu": 9.0}, {"step": 200, "valid_loss": 1.0, "valid_bleu": 8.0}]
    cut = '{"step": 300, "valid_lo'
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + cut)
    assert find_model(run).name == "step-00000200"
    (run / "config.toml").write_text('[training]\nmetrics = ["bleu"]\nbest_metric = "bleu"\n')
    assert find_model(run).name == "step-00000100"
    save(run / "model", tokenizers, seed=7)
    assert load_model(run).card["steps"] == 7
    with pytest.raises(CheckpointError, match="holds neither"):
        load_model(tmp_path)


def test_one_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two" and [one.name for one in tmp_path.iterdir()] == ["f"]
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_atomically(tmp_path / "no" / "folder", b"")
