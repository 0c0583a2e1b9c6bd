"""Which parameters move, how, and what their average is."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.training_toys import toy_network

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.optimizer import (
    Adam,
    WeightAverage,
    freeze_parameters,
    trainable_parameters,
)

ROOT = Path(__file__).parents[3]


def test_adam_follows_the_paper_by_hand() -> None:
    """Kingma and Ba (2015), algorithm 1, with the betas and epsilon of Vaswani et al. (2017), 5.3."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = Adam({"x": parameter}, TrainingConfig())
    value, first, second = parameter.detach().clone(), torch.zeros(2), torch.zeros(2)
    for step in range(1, 4):
        gradient = torch.tensor([0.5 * step, -1.0], dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step(0.1 * step)
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        value -= 0.1 * step * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
    assert torch.allclose(parameter.detach(), value, rtol=1e-10)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_it_moves_as_that_of_torch_does(kind: Literal["adam", "adamw"]) -> None:
    """Step by step in float64; some have no gradient in one step; stored and put back in between."""
    network = toy_network().double()
    theirs = copy.deepcopy(network)
    parameters = trainable_parameters(network)
    config = TrainingConfig(optimizer=kind, weight_decay=0.1)
    optimizer = Adam(parameters, config)
    matrices = [parameter for parameter in theirs.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in theirs.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    reference = (torch.optim.Adam if kind == "adam" else torch.optim.AdamW)(
        groups, betas=(config.beta1, config.beta2), eps=config.epsilon, foreach=False
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 9):
        optimizer.clear_gradients()
        reference.zero_grad()
        for (name, mine), other in zip(parameters.items(), theirs.parameters(), strict=True):
            if step == 3 and name.endswith("bias"):
                continue
            mine.grad = torch.randn(mine.shape, generator=generator, dtype=mine.dtype)
            other.grad = mine.grad.clone()
        for group in reference.param_groups:
            group["lr"] = 0.01 / step
        optimizer.step(0.01 / step)
        reference.step()
        if step == 5:
            stored = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
            optimizer = Adam(parameters, config)
            assert optimizer.restore(stored) == []
        for mine, other in zip(parameters.values(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-13, atol=1e-15)


def test_a_store_that_lacks_a_parameter_is_told() -> None:
    parameters = trainable_parameters(toy_network())
    optimizer = Adam(parameters, TrainingConfig())
    assert optimizer.restore({}) == []
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.1)
    lacking = "decoder.layers.0.cross_attention.query.weight"
    stored = {key: value for key, value in optimizer.tensors().items() if not key.endswith(f"/{lacking}")}
    assert optimizer.restore(stored) == [lacking]


def test_what_never_had_a_gradient_is_not_taken_for_frozen() -> None:
    """It goes on as one that begins to move."""
    moved, still = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    first = Adam({"moved": moved, "still": still}, TrainingConfig())
    assert first.tensors() == {}
    moved.grad = torch.ones(3)
    first.step(0.1)
    again = Adam({"moved": moved, "still": still}, TrainingConfig())
    assert again.restore(first.tensors()) == []
    assert again.moments["still"]["step"].item() == 0
    assert Adam({"moved": moved, "frozen before": still}, TrainingConfig()).restore(first.tensors()) == [
        "frozen before"
    ]


def test_no_compiler_is_loaded() -> None:
    """`torch.optim` loads one when an optimiser is made, which takes longer than many an update."""
    code = """if True:
        import sys
        from tests.training_toys import toy_batch, toy_network, toy_pairs
        from malmoi.config.training import TrainingConfig
        from malmoi.training.objective import ModelWithLoss
        from malmoi.training.optimizer import Adam, WeightAverage, trainable_parameters
        from malmoi.training.step import Updater
        network = toy_network()
        parameters = trainable_parameters(network)
        updater = Updater(ModelWithLoss(network, 0.1), parameters, Adam(parameters, TrainingConfig()), clip_norm=0.1)
        updater.update(toy_batch(toy_pairs([3, 4])), 0.01, (1, 1))
        WeightAverage(parameters, 0.9).update(1)
        sys.exit("torch._dynamo" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_decay_leaves_out_biases_and_norms(kind: str) -> None:
    network = toy_network()
    parameters = trainable_parameters(network)
    optimizer = Adam(parameters, TrainingConfig(optimizer=kind, weight_decay=0.1))
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    moved = {name for name, parameter in parameters.items() if not torch.equal(parameter, before[name])}
    assert moved == {name for name, parameter in parameters.items() if parameter.dim() > 1}


def test_adamw_decays_by_the_rate_alone() -> None:
    """Loshchilov and Hutter (2019), algorithm 2: without a gradient a weight shrinks by 1 - rate * decay."""
    parameter = torch.nn.Parameter(torch.full((2, 2), 3.0))
    optimizer = Adam({"x": parameter}, TrainingConfig(optimizer="adamw", weight_decay=0.5))
    parameter.grad = torch.zeros(2, 2)
    optimizer.step(0.1)
    assert torch.allclose(parameter.detach(), torch.full((2, 2), 3.0 * 0.95))


def test_freezing_by_prefix() -> None:
    network = toy_network()
    frozen = freeze_parameters(network, ["encoder"])
    assert frozen and all(name.startswith("encoder") for name in frozen)
    assert not any(name.startswith("encoder") for name in trainable_parameters(network))


def test_a_tied_parameter_is_frozen_by_any_of_its_names() -> None:
    network = toy_network()
    assert "source_embedding.weight" not in dict(network.named_parameters())
    freeze_parameters(network, ["source_embedding"])
    assert not network.target_embedding.weight.requires_grad


def test_a_prefix_that_fits_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="'encodr'; did you mean encoder"):
        freeze_parameters(toy_network(), ["encodr"])


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter to train"):
        freeze_parameters(toy_network(), ["encoder", "decoder", "target_embedding"])


def test_average_by_hand_and_back() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage({"x": parameter}, 0.5)
    wanted = 1.0
    for step, value in enumerate([2.0, 5.0, -3.0], start=1):
        parameter.data.fill_(value)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * value
    assert average.tensors["x"].item() == pytest.approx(wanted, rel=1e-6)
    with average.in_place():
        assert parameter.item() == average.tensors["x"].item()
    assert parameter.item() == -3.0
