"""What is refused before any work: sizes beyond the memory, files that are not there."""

from pathlib import Path

import pytest
import torch

from malmoi.commands import train
from malmoi.commands.translate import check_readable
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.errors import ConfigError, DataError
from malmoi.models.build import build_model, count_parameters


@pytest.mark.parametrize("config", [TransformerConfig(width=16, heads=2), RnnConfig(width=8, hidden=12)])
def test_parameters_are_counted_without_memory_for_them(config: TransformerConfig | RnnConfig) -> None:
    model = build_model(config, 11, 11)
    assert count_parameters(config, 11, 11) == sum(parameter.numel() for parameter in model.parameters())
    assert all(parameter.device == torch.device("cpu") for parameter in model.parameters())
    assert count_parameters(TransformerConfig(width=1_000_000, heads=1), 11, 11) > 10**13


def test_a_model_beyond_the_memory_is_refused_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(model=TransformerConfig(width=64, heads=2))
    num_parameters = count_parameters(config.model, 8000, 8000)
    monkeypatch.setattr(train, "free_memory", lambda: 16 * num_parameters)
    monkeypatch.setattr(train, "choose_device", lambda _: torch.device("cpu"))
    train.check_room(config)
    monkeypatch.setattr(train, "free_memory", lambda: 16 * num_parameters - 1)
    with pytest.raises(ConfigError, match=f"{num_parameters:,} parameters"):
        train.check_room(config)
    monkeypatch.setattr(train, "free_memory", lambda: None)
    train.check_room(config)
    monkeypatch.setattr(train, "free_memory", lambda: 0)
    monkeypatch.setattr(train, "choose_device", lambda _: torch.device("cuda", 0))
    train.check_room(config)


def test_files_to_read(tmp_path: Path) -> None:
    check_readable(None)
    check_readable("-")
    check_readable("/dev/null")
    with pytest.raises(DataError, match="no such file"):
        check_readable(tmp_path / "missing")
    with pytest.raises(DataError, match="this is a folder"):
        check_readable(tmp_path)
