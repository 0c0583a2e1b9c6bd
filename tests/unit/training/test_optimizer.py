"""Which parameters move, how, and what their average is."""

import pytest
import torch
from tests.training_toys import toy_network

from malmoi.config import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.optimizer import (
    WeightAverage,
    build_optimizer,
    freeze_parameters,
    set_rate,
    trainable_parameters,
)


def test_adam_follows_the_paper_by_hand() -> None:
    """Kingma and Ba (2015), algorithm 1, with the betas and epsilon of Vaswani et al. (2017), 5.3."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = build_optimizer({"x": parameter}, TrainingConfig())
    value, first, second = parameter.detach().clone(), torch.zeros(2), torch.zeros(2)
    for step in range(1, 4):
        gradient = torch.tensor([0.5 * step, -1.0], dtype=torch.float64)
        parameter.grad = gradient.clone()
        set_rate(optimizer, 0.1 * step)
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        value -= 0.1 * step * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
    assert torch.allclose(parameter.detach(), value, rtol=1e-10)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_decay_leaves_out_biases_and_norms(kind: str) -> None:
    network = toy_network()
    parameters = trainable_parameters(network)
    optimizer = build_optimizer(parameters, TrainingConfig(optimizer=kind, weight_decay=0.1))
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    set_rate(optimizer, 0.1)
    optimizer.step()
    moved = {name for name, parameter in parameters.items() if not torch.equal(parameter, before[name])}
    assert moved == {name for name, parameter in parameters.items() if parameter.dim() > 1}


def test_adamw_decays_by_the_rate_alone() -> None:
    """Loshchilov and Hutter (2019), algorithm 2: without a gradient a weight shrinks by 1 - rate * decay."""
    parameter = torch.nn.Parameter(torch.full((2, 2), 3.0))
    optimizer = build_optimizer({"x": parameter}, TrainingConfig(optimizer="adamw", weight_decay=0.5))
    parameter.grad = torch.zeros(2, 2)
    set_rate(optimizer, 0.1)
    optimizer.step()
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
