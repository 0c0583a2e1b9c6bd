"""The loss is a sum and a count of real target tokens: the fused way equals the plain one and the loops."""

import numpy as np
import pytest
import torch
from tests.reference.smoothing import smoothed_reference
from torch import Tensor

from malmoi.training.loss import LossSum, default_chunk_rows, fused_loss, smoothed_loss

LENGTHS = torch.tensor([7, 3, 1, 5, 4])
CLASSES, WIDTH = 11, 6


def fused_in_chunks(*arguments: object) -> LossSum:
    return fused_loss(*arguments, chunk_rows=3)  # type: ignore[arg-type]


WAYS = pytest.mark.parametrize("way", [smoothed_loss, fused_loss, fused_in_chunks])


def inputs(num_positions: int = 7, bias: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Hidden states, targets, weight, bias in float64, with gradients wanted."""
    generator = torch.Generator().manual_seed(3)
    hidden_BTD = torch.randn(5, num_positions, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    target_BT = torch.randint(CLASSES, (5, num_positions), generator=generator)
    weight_VD = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    bias_V = torch.randn(CLASSES, generator=generator, dtype=torch.float64).requires_grad_() if bias else None
    return hidden_BTD, target_BT, weight_VD, bias_V


@WAYS
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_equal_the_loops(way: object, smoothing: float, bias: bool) -> None:
    """pytorch/pytorch#73205; huggingface/transformers#5919 and #7546: smoothing by the formula, padding left out."""
    hidden_BTD, target_BT, weight_VD, bias_V = inputs(bias=bias)
    result = way(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, smoothing)  # type: ignore[operator]
    result.loss.backward()
    wanted = smoothed_reference(
        hidden_BTD.detach().numpy(),
        target_BT.numpy(),
        LENGTHS.numpy(),
        weight_VD.detach().numpy(),
        None if bias_V is None else bias_V.detach().numpy(),
        smoothing,
    )
    assert result.num_tokens == wanted.num_tokens == 20
    assert result.loss.item() == pytest.approx(wanted.loss, rel=1e-12)
    assert result.nll.item() == pytest.approx(wanted.nll, rel=1e-12)
    assert hidden_BTD.grad is not None and weight_VD.grad is not None
    np.testing.assert_allclose(hidden_BTD.grad.numpy(), wanted.grad_hidden_BTD, atol=1e-12)
    np.testing.assert_allclose(weight_VD.grad.numpy(), wanted.grad_weight_VD, atol=1e-12)
    if bias_V is not None:
        assert bias_V.grad is not None
        np.testing.assert_allclose(bias_V.grad.numpy(), wanted.grad_bias_V, atol=1e-12)


@WAYS
def test_padding_never_matters(way: object) -> None:
    """pytorch/pytorch#73205: the same sentences padded to 50, with other things in the padding."""
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    short = way(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1)  # type: ignore[operator]
    padded_hidden = torch.full((5, 50, WIDTH), 1e4, dtype=torch.float64)
    padded_target = torch.full((5, 50), 1)
    for row, length in enumerate(LENGTHS.tolist()):
        padded_hidden[row, :length] = hidden_BTD[row, :length].detach()
        padded_target[row, :length] = target_BT[row, :length]
    padded_hidden.requires_grad_()
    long = way(padded_hidden, padded_target, LENGTHS, weight_VD, bias_V, 0.1)  # type: ignore[operator]
    assert long.loss.item() == short.loss.item()
    long.loss.backward()
    assert padded_hidden.grad is not None
    assert padded_hidden.grad[:, 7:].abs().max() == 0
    assert padded_hidden.grad[1, 3:].abs().max() == 0
    assert padded_hidden.grad[1, 2].abs().max() > 0


@WAYS
def test_smoothing_zero_is_cross_entropy(way: object) -> None:
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    result = way(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.0)  # type: ignore[operator]
    rows = [
        torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(hidden_BTD[row, :length], weight_VD, bias_V),
            target_BT[row, :length],
            reduction="sum",
        )
        for row, length in enumerate(LENGTHS.tolist())
    ]
    assert result.loss.item() == pytest.approx(sum(rows).item(), rel=1e-12)
    assert result.nll.item() == pytest.approx(result.loss.item(), rel=1e-12)


@WAYS
def test_reported_nll_is_not_smoothed(way: object) -> None:
    """huggingface/transformers#5919: perplexity comes from the unsmoothed value."""
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    plain = way(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.0)  # type: ignore[operator]
    smoothed = way(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.3)  # type: ignore[operator]
    assert smoothed.nll.item() == pytest.approx(plain.nll.item(), rel=1e-12)
    assert abs(smoothed.loss.item() - plain.loss.item()) > 0.01


@WAYS
def test_the_end_symbol_counts_whatever_its_id(way: object) -> None:
    """huggingface/trl#6357; NVIDIA-NeMo/Megatron-Bridge#4660; NVIDIA-NeMo/Automodel#1336.

    Three words and the end are four tokens, also where the padding has the same id as the end.
    """
    hidden_BTD, _, weight_VD, bias_V = inputs()
    for padding in (1, 0, 7):
        target_BT = torch.full((5, 7), padding)
        target_BT[0, :4] = torch.tensor([5, 6, 7, 1])
        result = way(hidden_BTD, target_BT, torch.tensor([4, 0, 0, 0, 0]), weight_VD, bias_V, 0.0)  # type: ignore[operator]
        assert result.num_tokens == 4
        log_probs = torch.log_softmax(torch.nn.functional.linear(hidden_BTD[0, 3], weight_VD, bias_V), dim=-1)
        others = way(hidden_BTD, target_BT, torch.tensor([3, 0, 0, 0, 0]), weight_VD, bias_V, 0.0)  # type: ignore[operator]
        assert result.loss.item() - others.loss.item() == pytest.approx(-log_probs[1].item(), rel=1e-9)


def test_gradient_scales_with_what_comes_from_above() -> None:
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    gradients: list[Tensor] = []
    for scale in (1.0, 0.125):
        weight_VD.grad = None
        (scale * fused_loss(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1).loss).backward()
        assert weight_VD.grad is not None
        gradients.append(weight_VD.grad)
    assert torch.equal(gradients[0] * 0.125, gradients[1])


def test_large_logits_stay_finite_and_nan_is_not_hidden() -> None:
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    big = (hidden_BTD.detach() * 1e4).float()
    result = fused_loss(big, target_BT, LENGTHS, weight_VD.float(), None, 0.1)
    assert bool(result.loss.isfinite())
    big[0, 0, 0] = torch.nan
    assert bool(fused_loss(big, target_BT, LENGTHS, weight_VD.float(), None, 0.1).loss.isnan())
    assert bias_V is not None


def test_no_gradient_is_made_where_none_is_wanted() -> None:
    hidden_BTD, target_BT, weight_VD, bias_V = inputs()
    with torch.no_grad():
        result = fused_loss(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1)
    assert not result.loss.requires_grad
    weight_VD.requires_grad_(False)
    fused_loss(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1).loss.backward()
    assert weight_VD.grad is None and hidden_BTD.grad is not None


def test_bf16_products_follow_fp32() -> None:
    """Bounds: bf16 keeps 8 bits, so a logit is off by 2^-8 of its size at most, and so are sums of its kind."""
    hidden_BTD, target_BT, weight_VD, bias_V = (
        value.detach().float().requires_grad_() if value is not None and value.is_floating_point() else value
        for value in inputs()
    )
    assert hidden_BTD is not None and target_BT is not None and weight_VD is not None
    exact = fused_loss(hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1)
    rounded = fused_loss(
        hidden_BTD, target_BT, LENGTHS, weight_VD, bias_V, 0.1, chunk_rows=4, product_type=torch.bfloat16
    )
    assert rounded.loss.dtype == torch.float32
    assert rounded.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    gradients: list[Tensor] = []
    for result in (exact, rounded):
        weight_VD.grad = None
        result.loss.backward()
        assert weight_VD.grad is not None and weight_VD.grad.dtype == torch.float32
        gradients.append(weight_VD.grad)
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[0].norm()


def test_chunks_fit_the_cache() -> None:
    cpu = torch.device("cpu")
    assert 256 <= default_chunk_rows(10_000, cpu) <= 512
    assert default_chunk_rows(40_000, cpu) < default_chunk_rows(10_000, cpu)
    assert default_chunk_rows(10_000_000, cpu) >= 32
