"""Averages of stored models: exact, whole, and never of what does not belong together."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from malmoi.checkpoint import average_models, load_model, save_model
from malmoi.errors import CheckpointError
from malmoi.models.interface import Seq2Seq
from malmoi.text.tokenizer import Tokenizers, train_tokenizers
from stored_models import SMALL, TEXT, make, save, small_tokenizers


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return small_tokenizers()


def constant(network: Seq2Seq, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_an_average_of_ones_twos_and_threes_is_two(tying: str, tokenizers: Tokenizers, tmp_path: Path) -> None:
    """facebookresearch/fairseq#743, #647, #732: tied tensors are counted once, the inputs stay as they are."""
    model = SMALL.model_copy(update={"tying": tying})
    config, network = make(tokenizers, model)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    data = [{"description": "d", "pairs": 1}]
    for value, folder in enumerate(folders, start=1):
        save_model(folder, config, constant(network, value), tokenizers, {"scores": [], "data": data})
    before = [(folder / "model.safetensors").read_bytes() for folder in folders]
    average_models(folders, tmp_path / "mean")
    first = (tmp_path / "mean" / "model.safetensors").read_bytes()
    mean = load_model(tmp_path / "mean")
    assert all(bool((tensor == 2.0).all()) for tensor in mean.network.state_dict().values())
    assert (mean.network.source_embedding is mean.network.target_embedding) == (tying == "all")
    assert mean.card["averaged"] == ["one", "two", "three"]
    assert mean.card["data"] == data and "scores" not in mean.card
    average_models(folders, tmp_path / "mean")
    assert (tmp_path / "mean" / "model.safetensors").read_bytes() == first
    assert [(folder / "model.safetensors").read_bytes() for folder in folders] == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_averages_of_low_precision_are_exact(dtype: torch.dtype, tokenizers: Tokenizers, tmp_path: Path) -> None:
    """facebookresearch/fairseq#1079, OpenNMT/OpenNMT-py#2346: summed wide, stored in the type of the inputs."""
    config, network = make(tokenizers)
    folders = [tmp_path / f"{k}" for k in range(10)]
    values = [torch.tensor(1 + k / 1024).to(dtype) for k in range(10)]
    for value, folder in zip(values, folders, strict=True):
        save_model(folder, config, constant(network.to(dtype), value.item()), tokenizers, {})
    average_models(folders, tmp_path / "mean")
    exact = sum(value.double().item() for value in values) / 10
    for tensor in load_file(tmp_path / "mean" / "model.safetensors").values():
        assert tensor.dtype == dtype
        half_unit = torch.finfo(dtype).eps / 2
        assert bool(((tensor.double() - exact).abs() <= half_unit).all())


def test_integers_are_not_averaged(tokenizers: Tokenizers, tmp_path: Path) -> None:
    config, network = make(tokenizers)
    for count in (1, 2):
        weights = {**constant(network, count), "counter": torch.tensor([count])}
        save_model(tmp_path / str(count), config, weights, tokenizers, {})
    average_models([tmp_path / "1", tmp_path / "2"], tmp_path / "mean")
    stored = load_file(tmp_path / "mean" / "model.safetensors")
    assert stored["counter"].tolist() == [2] and stored["counter"].dtype == torch.int64
    assert bool((stored["target_embedding.weight"] == 1.5).all())


def test_what_cannot_be_averaged_is_refused(tokenizers: Tokenizers, tmp_path: Path) -> None:
    save(tmp_path / "a", tokenizers, seed=1)
    save(tmp_path / "b", tokenizers, seed=2)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(CheckpointError, match="the same model as"):
        average_models([tmp_path / "a", tmp_path / "b", tmp_path / "link"], tmp_path / "out")
    with pytest.raises(CheckpointError, match="one of the models to average"):
        average_models([tmp_path / "a", tmp_path / "b"], tmp_path / "b")
    with pytest.raises(CheckpointError, match="no models"):
        average_models([], tmp_path / "out")
    save(tmp_path / "wide", tokenizers, SMALL.model_copy(update={"width": 16}))
    with pytest.raises(CheckpointError, match="settings"):
        average_models([tmp_path / "a", tmp_path / "wide"], tmp_path / "out")
    save(tmp_path / "other", train_tokenizers(TEXT, ["uvw", "cde"], ["xyz"], seed=1))
    with pytest.raises(CheckpointError, match="vocabulary"):
        average_models([tmp_path / "a", tmp_path / "other"], tmp_path / "out")
    config, network = make(tokenizers)
    save_model(tmp_path / "half", config, network.bfloat16(), tokenizers, {})
    with pytest.raises(CheckpointError, match="types differ"):
        average_models([tmp_path / "half", tmp_path / "a"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_damaged_model_among_those_to_average_is_named(place: int, tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Cut short, not there, of no number, or with a file of settings or vocabulary that cannot be read."""
    folders = [tmp_path / f"step-{k}" for k in range(3)]
    for seed, folder in enumerate(folders, start=1):
        save(folder, tokenizers, seed=seed)
    bad = folders[place]
    whole = {path: path.read_bytes() for path in bad.rglob("*") if path.is_file()}
    weights = load_file(bad / "model.safetensors")
    damage: list[tuple[str, Callable[[Path], object], str]] = [
        ("model.safetensors", lambda path: path.write_bytes(whole[path][:-9]), "damaged"),
        ("model.safetensors", lambda path: path.unlink(), "holds neither"),
        ("model.safetensors", lambda path: save_file({k: t * torch.nan for k, t in weights.items()}, path), "finite"),
        ("config.toml", lambda path: path.write_text("["), "config.toml"),
        ("tokenizer/tokenizer.json", lambda path: path.write_text("{"), "tokenizer.json"),
    ]
    for name, spoil, message in damage:
        spoil(bad / name)
        with pytest.raises(CheckpointError, match=rf"(?s)step-{place}\b.*{message}"):
            average_models(folders, tmp_path / "mean")
        (bad / name).write_bytes(whole[bad / name])
        assert not (tmp_path / "mean").exists()
    average_models(folders, tmp_path / "mean")
