"""From checkpoints to the finished model: what is averaged, what is left out, and where it is computed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from malmoi.checkpoint import load_model, save_model
from malmoi.commands import finish as finish_module
from malmoi.commands.finish import finish
from malmoi.commands.folder import RunFolder
from malmoi.commands.material import Material, Validation
from malmoi.commands.plan import ORDINARY_FACTS
from malmoi.config.model import TransformerConfig
from malmoi.config.run import RunConfig, StoredConfig
from malmoi.config.text import TextConfig
from malmoi.config.training import TrainingConfig
from malmoi.errors import CheckpointError
from malmoi.evaluation.references import References
from malmoi.models.build import build_model
from malmoi.text.tokenizer import Tokenizers, train_tokenizers
from malmoi.training.checkpoints import Checkpoint

LINES = ["bano dori felu gasi", "hemo jipu kato", "luni bano"]
TEXT = TextConfig(tokenizer="words")
MODEL = TransformerConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=16)
LOSSES = {10: 3.0, 20: 1.0, 30: 2.0}
NAMES = [f"step-{step:08d}" for step in LOSSES]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return train_tokenizers(TEXT, LINES, LINES, seed=1)


class Run:
    """A run folder with three checkpoints, the second of which did best; the average never does better."""

    def __init__(self, path: Path, tokenizers: Tokenizers, average: int) -> None:
        training = TrainingConfig(device="cpu", average=average, keep_last=3)
        self.config = RunConfig(text=TEXT, model=MODEL, training=training)
        self.folder = RunFolder(path)
        self.material = Material(tokenizers, (), (), Validation(LINES, References.from_sets([LINES])), ORDINARY_FACTS)
        stored = StoredConfig(text=TEXT, model=MODEL, decoding=self.config.decoding)
        for step, name in zip(LOSSES, NAMES, strict=True):
            network = build_model(MODEL, tokenizers.source.size, tokenizers.target.size, seed=step)
            save_model(self.folder.checkpoints / name, stored, network, tokenizers, {"steps": step})

    def damage(self, *steps: int) -> None:
        for step in steps:
            (self.folder.checkpoints / f"step-{step:08d}" / "model.safetensors").write_bytes(b"\x10")

    def finish(self) -> str:
        """What the finished model is made of, by its card."""
        checkpoints = [
            Checkpoint(step, name, {"loss": loss}) for (step, loss), name in zip(LOSSES.items(), NAMES, strict=True)
        ]
        finish(self.folder, self.config, self.material, checkpoints, {})
        return str(json.loads((self.folder.model / "card.json").read_bytes())["weights"])


@pytest.fixture(autouse=True)
def short_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards that need no stores of training data."""
    monkeypatch.setattr(finish_module, "make_card", lambda chosen, *_: {"weights": chosen.name})


def take_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the average win, whatever random networks are worth."""
    monkeypatch.setattr(finish_module, "choose", lambda candidates, _: candidates[-1])


def test_the_last_checkpoints_are_averaged(
    tmp_path: Path, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_last(monkeypatch)
    run = Run(tmp_path, tokenizers, average=2)
    assert run.finish() == "mean of 2 checkpoints, step-00000020 to step-00000030"
    parts = [load_model(run.folder.checkpoints / name).network.state_dict() for name in NAMES[1:]]
    for key, value in load_model(run.folder.model).network.state_dict().items():
        assert torch.allclose(value, (parts[0][key] + parts[1][key]) / 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoints", "model"]


@pytest.mark.parametrize("average", [0, 1])
def test_without_averaging_the_best_one_is_taken(tmp_path: Path, tokenizers: Tokenizers, average: int) -> None:
    assert Run(tmp_path, tokenizers, average).finish() == "step-00000020"


@pytest.mark.parametrize(
    ("damaged", "made_of"),
    [
        ((30,), "mean of 2 checkpoints, step-00000010 to step-00000020"),
        ((20,), "mean of 2 checkpoints, step-00000010 to step-00000030"),
        ((10, 30), "step-00000020"),
        ((10, 20), "step-00000030"),
    ],
)
def test_damaged_checkpoints_are_named_and_left_out(
    damaged: tuple[int, ...],
    made_of: str,
    tmp_path: Path,
    tokenizers: Tokenizers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    take_last(monkeypatch)
    run = Run(tmp_path, tokenizers, average=3)
    run.damage(*damaged)
    with caplog.at_level("WARNING", logger="malmoi"):
        assert run.finish() == made_of
    assert all(f"step-{step:08d}" in caplog.text for step in damaged)
    assert caplog.text.count("is left out") == len(damaged)


def test_without_one_sound_checkpoint_there_is_no_model(tmp_path: Path, tokenizers: Tokenizers) -> None:
    run = Run(tmp_path, tokenizers, average=3)
    run.damage(*LOSSES)
    with pytest.raises(CheckpointError, match="none of these checkpoints"):
        run.finish()
    assert not run.folder.model.exists()


def test_models_are_measured_on_the_device_of_the_run(
    tmp_path: Path, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, tokenizers, average=3)
    devices: list[Any] = []

    def load(path: Path, device: Any = "elsewhere") -> Any:
        devices.append(device)
        return load_model(path)

    there = torch.device("cuda", 0)
    monkeypatch.setattr(finish_module, "choose_device", lambda _: there)
    monkeypatch.setattr(finish_module, "load_model", load)
    run.finish()
    assert [device for device in devices if device != "elsewhere"] == [there, there]
