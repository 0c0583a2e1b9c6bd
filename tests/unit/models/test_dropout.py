"""Dropout from counted bits: shares, scales, gradients, and the same draws from the same key."""

import copy

import pytest
import torch
from torch import nn

from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.models.build import build_model
from malmoi.models.dropout import Dropout, RandomBits


def test_the_share_and_the_scale_are_exact() -> None:
    """Kept elements are divided by the very probability with which they are kept."""
    dropout = Dropout(0.3, RandomBits(1)).train()
    states = torch.ones(1000, 1001, dtype=torch.float64)
    dropped = dropout(states)
    values = sorted(set(dropped.flatten().tolist()))
    assert values == [0.0, 65536 / round(0.7 * 65536)]
    # Five standard deviations of the share of a million independent draws.
    assert abs((dropped == 0).double().mean().item() - 0.3) < 5 * (0.21 / 1e6) ** 0.5


def test_draws_of_any_size_are_independent_of_the_next() -> None:
    """No element is drawn twice: two draws of odd sizes agree in as many places as chance has it."""
    bits = RandomBits(4)
    first, second = bits.draw(torch.Size([333, 101]), 32768), bits.draw(torch.Size([333, 101]), 32768)
    assert first.shape == (333, 101)
    agreement = (first == second).double().mean().item()
    assert abs(agreement - 0.5) < 5 * (0.25 / first.numel()) ** 0.5


def test_gradients_pass_where_values_passed() -> None:
    bits = RandomBits(2)
    dropout = Dropout(0.5, bits).train()
    states = torch.full((40, 50), 3.0, requires_grad=True)
    residual = torch.ones(40, 50, requires_grad=True)
    dropped = dropout(states)
    dropped.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad, dropped.detach() / 3.0)
    states.grad = None
    summed = dropout.add_to(residual, states)
    summed.sum().backward()
    assert residual.grad is not None
    torch.testing.assert_close(states.grad, (summed.detach() - 1.0) / 3.0)
    assert torch.equal(residual.grad, torch.ones(40, 50))


def test_it_is_off_where_it_should_be() -> None:
    bits = RandomBits(1)
    states = torch.ones(8, 8)
    assert torch.equal(Dropout(0.5, bits).eval()(states), states)
    assert torch.equal(Dropout(0.0, bits).train()(states), states)
    dropout = Dropout(0.5, bits).train()
    with bits.paused():
        assert torch.equal(dropout(states), states)
        assert torch.equal(dropout.add_to(states, states), 2 * states)
    assert not torch.equal(dropout(states), states)


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8, dropout=0.4,
                          attention_dropout=0.4, activation_dropout=0.4),
        RnnConfig(width=8, hidden=8, dropout=0.4, encoder_layers=2, decoder_layers=2),
    ],
    ids=["transformer", "rnn"],
)  # fmt: skip
def test_a_key_decides_all_draws_of_a_model(config: TransformerConfig | RnnConfig) -> None:
    """Whatever torch's own generator does, and for a copy of the model as well."""
    model = build_model(config, 9, 9).train()
    source_BS, lengths_B, target_BT = torch.arange(8).view(2, 4), torch.tensor([4, 2]), torch.arange(6).view(2, 3)

    def hidden(network: nn.Module, *key: int) -> torch.Tensor:
        torch.manual_seed(sum(key))
        model.bits.reseed(*key)
        return network(source_BS, lengths_B, target_BT)

    first = hidden(model, 1, 2, 3)
    assert torch.equal(hidden(model, 1, 2, 3), first)
    assert not torch.equal(hidden(model, 1, 2, 4), first)
    assert not torch.equal(hidden(model, 1, 2), first)
    twin = copy.deepcopy(model)
    twin.bits.reseed(1, 2, 3)
    assert torch.equal(twin(source_BS, lengths_B, target_BT), first)
    before = torch.random.get_rng_state()
    model(source_BS, lengths_B, target_BT)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_dropout_of_the_paper_is_there() -> None:
    """Section 5.4: each sublayer's output, and the sums of embeddings and positions on both sides."""
    config = TransformerConfig(width=8, heads=2, encoder_layers=2, decoder_layers=3, feed_forward=8, dropout=0.1)
    model = build_model(config, 9, 9).train()
    draws: list[torch.Size] = []
    draw = model.bits.draw
    model.bits.draw = lambda shape, kept: (draws.append(shape), draw(shape, kept))[1]  # type: ignore[method-assign]
    model(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([4]), torch.zeros(1, 3, dtype=torch.int64))
    assert draws.count(torch.Size([1, 4, 8])) == 1 + 2 * 2
    assert draws.count(torch.Size([1, 3, 8])) == 1 + 3 * 3
    assert len(draws) == 15
