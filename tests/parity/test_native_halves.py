"""Native code of training in bf16: what it reads and writes is rounded, what it sums is not."""

import math

import pytest
import torch
from tests.native_toys import inputs, masks, native, native_code, run
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch import Tensor, nn

from malmoi.config.training import TrainingConfig
from malmoi.models.attention import Mask, attend
from malmoi.models.blocks import Residual
from malmoi.models.dropout import Dropout, RandomBits
from malmoi.models.interface import Trace
from malmoi.models.kernels import attend_cross, attend_self
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


@pytest.mark.parametrize("num_threads", [1, 2])
def test_it_says_the_same_again_to_the_last_bit(num_threads: int) -> None:
    hidden, target, lengths, output = inputs(1000, 24, True)
    options: dict[str, object] = {"product_type": HALF}
    first, again = (
        run(fused_loss, hidden, target, lengths, output, maybe_native=native(num_threads), **options) for _ in range(2)
    )
    assert first[0].loss.item() == again[0].loss.item()
    assert all(torch.equal(one, other) for one, other in zip(first[1], again[1], strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_makes_the_loss_none(bad: float) -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    with torch.no_grad():
        output[0][5, 3] = bad
    found, _ = run(fused_loss, hidden, target, lengths, output, product_type=HALF, maybe_native=native())
    assert not math.isfinite(found.loss.item()) and not math.isfinite(found.nll.item())


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
    generator, batch, heads, code = torch.Generator().manual_seed(keys), 37, 3, native_code(num_threads)
    mask = masks(kind, batch, queries, keys)
    query = torch.randn(batch, queries, heads, size, generator=generator).to(HALF).requires_grad_()
    packed = torch.randn(batch, keys, 2, heads, size, generator=generator).to(HALF).requires_grad_()
    found = attend_cross(query, packed, mask.added, mask.kept, code)
    toward = torch.randn(found.shape, generator=generator).to(HALF)
    # The kept of a mask makes fp32 of it.
    gradients = torch.autograd.grad((found * toward).sum(), [query, packed])
    doubled = [one.detach().double().requires_grad_() for one in (query, packed)]
    key, value = (one.transpose(1, 2) for one in doubled[1].unbind(2))
    wide = Mask(*(None if one is None else one.double() for one in (mask.added, mask.kept)))
    wanted = attend(doubled[0].transpose(1, 2), key, value, wide, trace=Trace()).transpose(1, 2).flatten(2)
    right = torch.autograd.grad((wanted * toward).sum(), doubled)
    torch.testing.assert_close(found.double(), wanted, rtol=ROUNDING, atol=1e-5)
    for mine, other in zip(gradients, right, strict=True):
        assert mine.dtype == HALF
        torch.testing.assert_close(mine.double(), other, rtol=2 * ROUNDING, atol=1e-4)
    if queries == keys:
        whole = torch.cat([query[:, :, None], packed], dim=2).detach().requires_grad_()
        alone = attend_self(whole, mask.added, mask.kept, code)
        assert torch.equal(alone, found)
        (made,) = torch.autograd.grad((alone * toward).sum(), [whole])
        assert torch.equal(made, torch.cat([gradients[0][:, :, None], gradients[1]], dim=2))


def test_queries_of_another_type_than_the_keys_keep_to_torch() -> None:
    query, packed = torch.randn(2, 3, 2, 8), torch.randn(2, 5, 2, 2, 8).to(HALF)
    with pytest.raises(RuntimeError):
        attend_cross(query, packed, None, None, native_code())


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 24), (700, 128)])
def test_a_sublayer_in_bf16_joins_a_residual_sum_of_fp32(
    num_threads: int, probability: float, rows: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    norm = nn.LayerNorm(width)
    states, sublayer, toward = (torch.randn(rows, width, generator=generator) for _ in range(3))
    sublayer, bits = sublayer.to(HALF), RandomBits(1)
    residual = Residual(norm, "post", Dropout(probability, bits)).train()
    results: list[list[Tensor]] = []
    for maybe_code in (None, native_code(num_threads)):
        residual.double() if maybe_code is None else residual.float()
        residual.maybe_code = maybe_code
        kinds = (torch.float64, torch.float64) if maybe_code is None else (torch.float32, HALF)
        pair = [one.to(kind).requires_grad_() for one, kind in zip((states, sublayer), kinds, strict=True)]
        bits.reseed(5)
        found = residual.after(pair[0], pair[1])
        assert ("NativeResidual" in str(found.grad_fn)) == (maybe_code is not None)
        wanted = [*pair, norm.weight, norm.bias]
        results.append([found, *torch.autograd.grad((found * toward.to(found.dtype)).sum(), wanted)])
    assert [one.dtype for one in results[1]] == [torch.float32, torch.float32, HALF, torch.float32, torch.float32]
    for place, (other, mine) in enumerate(zip(*results, strict=True)):
        rtol = 1e-4 if place != 2 else ROUNDING
        torch.testing.assert_close(mine.double(), other, rtol=rtol, atol=2e-5)


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
