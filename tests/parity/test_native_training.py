"""The loss in native code: equal to the formula, to torch's own way, and to itself; never where it does not fit."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch import Tensor

from engine_library import folder_with_library, native_library
from malmoi.config.training import TrainingConfig
from malmoi.native.training import OutputLayer, find_output_layer
from malmoi.training.loss import LossSum, fused_loss, smoothed_loss
from malmoi.training.objective import ModelWithLoss, model_with_loss


def native(num_threads: int = 1) -> OutputLayer:
    native_library()
    found = find_output_layer(num_threads, folder_with_library())
    assert found is not None
    return found


def inputs(classes: int, width: int, bias: bool, rows: int = 150) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Hidden states of fp32, targets, lengths, weight and perhaps bias, with gradients wanted."""
    generator = torch.Generator().manual_seed(classes)
    hidden_BTD = torch.randn(rows // 5, 7, width, generator=generator).requires_grad_()
    target_BT = torch.randint(classes, (rows // 5, 7), generator=generator)
    lengths_B = torch.randint(1, 8, (rows // 5,), generator=generator)
    output = [torch.randn(classes, width, generator=generator), torch.randn(classes, generator=generator)]
    return hidden_BTD, target_BT, lengths_B, [one.requires_grad_() for one in output[: 1 + bias]]


def run(
    way: Callable[..., LossSum], hidden: Tensor, target: Tensor, lengths: Tensor, output: list[Tensor], **more: object
):
    """The sums and all gradients."""
    bias = output[1] if len(output) > 1 else None
    result = way(hidden, target, lengths, output[0], bias, 0.1, **more)
    return result, torch.autograd.grad(2 * result.loss, [hidden, *output])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk_rows", [0, 1, 37])
@pytest.mark.parametrize(("classes", "width"), [(11, 6), (16, 16), (33, 128), (1000, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_equals_the_formula_in_float64(
    num_threads: int, chunk_rows: int, classes: int, width: int, bias: bool
) -> None:
    hidden, target, lengths, output = inputs(classes, width, bias)
    found, gradients = run(
        fused_loss, hidden, target, lengths, output, chunk_rows=chunk_rows, maybe_native=native(num_threads)
    )
    doubled = [one.detach().double().requires_grad_() for one in (hidden, *output)]
    wanted, right = run(smoothed_loss, doubled[0], target, lengths, doubled[1:])
    assert found.num_tokens == wanted.num_tokens
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-6)
    assert found.nll.item() == pytest.approx(wanted.nll.item(), rel=1e-6)
    for mine, other in zip(gradients, right, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-5)


def test_it_says_the_same_again_to_the_last_bit() -> None:
    hidden, target, lengths, output = inputs(1000, 24, True)
    first, again = (
        run(fused_loss, hidden, target, lengths, output, maybe_native=native(threads)) for threads in (1, 1)
    )
    assert first[0].loss.item() == again[0].loss.item()
    assert all(torch.equal(one, other) for one, other in zip(first[1], again[1], strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_makes_the_loss_none(bad: float) -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    with torch.no_grad():
        output[0][5, 3] = bad
    assert not math.isfinite(run(fused_loss, hidden, target, lengths, output, maybe_native=native())[0].loss.item())


def test_a_target_outside_the_classes_is_refused() -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    target[0, 0] = 33
    with pytest.raises(IndexError, match="33 classes"):
        run(fused_loss, hidden, target, lengths, output, maybe_native=native())


def test_other_types_keep_to_torch() -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    doubled = [one.detach().double().requires_grad_() for one in (hidden, *output)]
    with_it, _ = run(fused_loss, doubled[0], target, lengths, doubled[1:], maybe_native=native())
    without, _ = run(fused_loss, doubled[0], target, lengths, doubled[1:])
    assert with_it.loss.item() == without.loss.item()


def test_a_model_trains_alike_with_it() -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    gradients: list[list[Tensor]] = []
    for maybe_native in (None, native()):
        network = toy_network(dropout=0.2)
        network.bits.reseed(7)
        result = ModelWithLoss(network, 0.1, maybe_native=maybe_native).train()(batch)
        result.loss.backward()
        gradients.append([one.grad for one in network.parameters() if one.grad is not None])
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_only_fp32_on_a_processor_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder_with_library() / "elsewhere"))
    assert model_with_loss(toy_network(), TrainingConfig()).maybe_native is None
    monkeypatch.setattr("malmoi.training.objective.find_output_layer", lambda threads: native(threads))
    assert model_with_loss(toy_network(), TrainingConfig()).maybe_native is not None
    assert model_with_loss(toy_network().double(), TrainingConfig()).maybe_native is None
    assert model_with_loss(toy_network(), TrainingConfig(precision="bf16")).maybe_native is None
