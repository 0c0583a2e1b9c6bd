"""Two passes held together: in chunks as by the formula, with every gradient; without a difference the plain loss."""

import pytest
import torch
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch import Tensor

from malmoi.training.consistency import consistent_loss, plain_consistent_loss
from malmoi.training.loss import LossSum, smoothed_loss
from malmoi.training.objective import ModelWithLoss

LENGTHS = torch.tensor([7, 3, 1, 5, 4])
CLASSES, WIDTH = 11, 6


def inputs(bias: bool = True) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Hidden states of both passes, targets, weight and perhaps bias in float64, with gradients wanted."""
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    target_BT = torch.randint(CLASSES, (5, 7), generator=generator)
    return (
        [noise(5, 7, WIDTH), noise(5, 7, WIDTH)],
        target_BT,
        [noise(CLASSES, WIDTH), *([noise(CLASSES)] if bias else [])],
    )


def gradients(result: LossSum, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(3 * result.loss, tensors))


@pytest.mark.parametrize("chunk_rows", [0, 1, 3, 20])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("consistency", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_equal_the_formula(chunk_rows: int, smoothing: float, consistency: float, bias: bool) -> None:
    hidden, target_BT, output = inputs(bias)
    weight_VD, maybe_bias_V = output[0], output[1] if bias else None
    common = (*hidden, target_BT, LENGTHS, weight_VD, maybe_bias_V, smoothing, consistency)
    found, wanted = consistent_loss(*common, chunk_rows=chunk_rows), plain_consistent_loss(*common)
    assert found.num_tokens == wanted.num_tokens == 20
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-12)
    assert found.nll.item() == pytest.approx(wanted.nll.item(), rel=1e-12)
    tensors = [*hidden, *output]
    for mine, right in zip(gradients(found, tensors), gradients(wanted, tensors), strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-12)


def test_passes_that_agree_have_the_plain_loss() -> None:
    (hidden_BTD, _), target_BT, (weight_VD, bias_V) = inputs()
    common = (target_BT, LENGTHS, weight_VD, bias_V, 0.1)
    same = consistent_loss(hidden_BTD, hidden_BTD, *common, 5.0)
    plain = smoothed_loss(hidden_BTD, *common)
    assert same.loss.item() == pytest.approx(plain.loss.item(), rel=1e-12)
    for mine, right in zip(gradients(same, [hidden_BTD]), gradients(plain, [hidden_BTD]), strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-12)


def test_the_divergence_is_what_torch_calculates() -> None:
    """The formula itself, against `kl_div` in both directions."""
    hidden, target_BT, (weight_VD, bias_V) = inputs()
    common = (*hidden, target_BT, LENGTHS, weight_VD, bias_V, 0.1)
    apart = plain_consistent_loss(*common, 4.0).loss - plain_consistent_loss(*common, 0.0).loss
    real_BT = torch.arange(7)[None, :] < LENGTHS[:, None]
    first, second = ((one[real_BT] @ weight_VD.T + bias_V).log_softmax(-1) for one in hidden)
    there = torch.nn.functional.kl_div(second, first, log_target=True, reduction="sum")
    back = torch.nn.functional.kl_div(first, second, log_target=True, reduction="sum")
    assert apart.item() == pytest.approx((there + back).item(), rel=1e-10)


def test_without_dropout_it_is_the_plain_loss_whatever_the_batch_is_cut_into() -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    network = toy_network(dropout=0.0).double()
    held = ModelWithLoss(network, 0.1, consistency=5.0).train()
    plain = ModelWithLoss(network, 0.1).train()
    whole = held(batch)
    assert whole.loss.item() == pytest.approx(plain(batch).loss.item(), rel=1e-9)
    parts = [held(batch.rows(0, 2)), held(batch.rows(2, 4))]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-9)
    assert whole.num_tokens == batch.num_target_tokens


def test_dropout_differs_between_the_passes_and_validation_knows_nothing_of_them() -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    network = toy_network(dropout=0.5)
    held, plain = ModelWithLoss(network, 0.1, consistency=5.0), ModelWithLoss(network, 0.1)
    network.bits.reseed(1)
    weightless = ModelWithLoss(network, 0.1, consistency=1e-12).train()(batch)
    network.bits.reseed(1)
    assert held.train()(batch).loss.item() > weightless.loss.item() + 0.01
    assert held.eval()(batch).loss.item() == plain.eval()(batch).loss.item()
