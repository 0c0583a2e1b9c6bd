"""Native code of training in bf16: what it reads and writes is rounded, what it sums is not."""

import pytest
import torch
from tests.native_toys import attention_both_ways, inputs, native, native_code, run
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch import Tensor

from malmoi.config.training import TrainingConfig
from malmoi.models.kernels import attend_cross
from malmoi.training.consistency import consistent_loss
from malmoi.training.loss import fused_loss, smoothed_loss
from malmoi.training.objective import model_with_loss

HALF = torch.bfloat16
ROUNDING = 2.0**-8
"""Between two neighbours of bf16, at most, relative to them."""


def rounded(tensor: Tensor) -> Tensor:
    return tensor.detach().to(HALF).float().requires_grad_()


def distance(found: Tensor, wanted: Tensor) -> float:
    """Of all numbers together, relative to those wanted."""
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk_rows", [0, 1, 37])
@pytest.mark.parametrize(("classes", "width"), [(11, 7), (16, 16), (33, 128), (1000, 25)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("type_of_states", [torch.float32, HALF])
def test_the_loss_equals_the_formula_in_float64(
    num_threads: int, chunk_rows: int, classes: int, width: int, bias: bool, type_of_states: torch.dtype
) -> None:
    """Of numbers that bf16 holds, the sums are those of fp32; the gradients are rounded once more."""
    hidden, target, lengths, output = inputs(classes, width, bias)
    hidden, output = rounded(hidden), [rounded(one) for one in output]
    given = hidden.detach().to(type_of_states).requires_grad_()
    options: dict[str, object] = {"chunk_rows": chunk_rows, "product_type": HALF, "maybe_native": native(num_threads)}
    found, gradients = run(fused_loss, given, target, lengths, output, **options)
    doubled = [one.detach().double().requires_grad_() for one in (hidden, *output)]
    wanted, right = run(smoothed_loss, doubled[0], target, lengths, doubled[1:])
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=2e-6)
    assert found.nll.item() == pytest.approx(wanted.nll.item(), rel=2e-6)
    for mine, other in zip(gradients, right, strict=True):
        assert distance(mine, other) < 2 * ROUNDING


def test_two_passes_in_bf16_keep_to_torch() -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    found, wanted = (
        consistent_loss(hidden, hidden, target, lengths, *output, 0.1, 5.0, product_type=HALF, maybe_native=maybe)
        for maybe in (native(), None)
    )
    assert found.loss.item() == wanted.loss.item()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", [8, 24])
@pytest.mark.parametrize(
    ("queries", "keys", "kind"),
    [(16, 16, "causal"), (16, 16, "lengths"), (5, 9, "none"), (3, 300, "lengths"), (7, 33, "empty rows")],
)
def test_attention_equals_the_open_formula(num_threads: int, size: int, queries: int, keys: int, kind: str) -> None:
    right, made = attention_both_ways(num_threads, size, queries, keys, kind, HALF)
    for number, (mine, other) in enumerate(zip(made, right, strict=True)):
        rounding, least = (2 * ROUNDING, 1e-4) if number else (ROUNDING, 1e-5)
        torch.testing.assert_close(mine.double(), other, rtol=rounding, atol=least)


def test_queries_of_another_type_than_the_keys_keep_to_torch() -> None:
    query, packed = torch.randn(2, 3, 2, 8), torch.randn(2, 5, 2, 2, 8).to(HALF)
    with pytest.raises(RuntimeError):
        attend_cross(query, packed, None, None, native_code())


def test_a_model_in_bf16_trains_alike_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against fp32 it is as near as torch's own bf16 is."""
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    gradients: list[Tensor] = []
    for precision, maybe_code in (("fp32", None), ("bf16", None), ("bf16", native_code())):
        monkeypatch.setattr("malmoi.training.objective.find_training_code", lambda *_, code=maybe_code: code)
        network = toy_network(dropout=0.2)
        network.bits.reseed(7)
        model = model_with_loss(network, TrainingConfig(precision=precision))
        assert (model.maybe_native is None) == (maybe_code is None)
        model.train()(batch).loss.backward()
        gradients.append(torch.cat([one.grad.flatten() for one in network.parameters() if one.grad is not None]))
    wanted, by_torch, mine = (one.double() for one in gradients)
    assert 0 < distance(mine, wanted) < 1.5 * distance(by_torch, wanted)
