"""Native code of training: equal to the formula, to torch's own way, and to itself; never where it does not fit."""

import copy
import itertools
import math

import pytest
import torch
from tests.native_toys import attention_both_ways, inputs, native, native_code, run
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch import Tensor, nn

from engine_library import folder_with_library, native_library
from malmoi.config.training import TrainingConfig
from malmoi.models.attention import SelfAttention, length_mask
from malmoi.models.blocks import Residual
from malmoi.models.dropout import Dropout, RandomBits
from malmoi.models.kernels import NATIVE_TYPES, add_and_norm, attend_cross, attend_self
from malmoi.models.transformer import use_native_code
from malmoi.training.consistency import consistent_loss, plain_consistent_loss
from malmoi.training.loss import LossSum, fused_loss, smoothed_loss
from malmoi.training.objective import ModelWithLoss, model_with_loss

SIDES = ((5, 9), (7, 33), (3, 300))
"""Queries that ask keys of another sequence."""


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


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("kind", NATIVE_TYPES)
def test_it_says_the_same_again_to_the_last_bit(num_threads: int, kind: torch.dtype) -> None:
    hidden, target, lengths, output = inputs(1000, 24, True)
    options: dict[str, object] = {"product_type": kind}
    first, again = (
        run(fused_loss, hidden, target, lengths, output, maybe_native=native(num_threads), **options) for _ in range(2)
    )
    assert first[0].loss.item() == again[0].loss.item()
    assert all(torch.equal(one, other) for one, other in zip(first[1], again[1], strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("kind", NATIVE_TYPES)
def test_what_is_no_number_makes_the_loss_none(bad: float, kind: torch.dtype) -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    with torch.no_grad():
        output[0][5, 3] = bad
    found, _ = run(fused_loss, hidden, target, lengths, output, product_type=kind, maybe_native=native())
    # The sum of nll comes from native code alone.
    assert not math.isfinite(found.loss.item()) and not math.isfinite(found.nll.item())


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk_rows", [0, 1, 37])
@pytest.mark.parametrize(("classes", "width", "bias"), [(11, 6, True), (16, 16, False), (1000, 24, True)])
@pytest.mark.parametrize("consistency", [0.0, 5.0])
def test_two_passes_equal_the_formula_in_float64(
    num_threads: int, chunk_rows: int, classes: int, width: int, bias: bool, consistency: float
) -> None:
    hidden, target, lengths, output = inputs(classes, width, bias)
    noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    passes = [hidden, (hidden + 0.3 * noise).detach().requires_grad_()]
    more: dict[str, object] = {"chunk_rows": chunk_rows, "maybe_native": native(num_threads)}
    results: list[tuple[LossSum, tuple[Tensor, ...]]] = []
    for way, tensors, options in (
        (consistent_loss, [*passes, *output], more),
        (plain_consistent_loss, [one.detach().double().requires_grad_() for one in (*passes, *output)], {}),
    ):
        maybe_bias = tensors[3] if bias else None
        result = way(*tensors[:2], target, lengths, tensors[2], maybe_bias, 0.1, consistency, **options)
        results.append((result, torch.autograd.grad(2 * result.loss, tensors)))
    (found, gradients), (wanted, right) = results
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-5)
    assert found.nll.item() == pytest.approx(wanted.nll.item(), rel=1e-6)
    for mine, other in zip(gradients, right, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_number_in_one_of_two_passes_makes_the_loss_none(bad: float, place: int) -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    passes = [hidden.detach().clone(), hidden.detach().clone()]
    passes[place][0, 0, 3] = bad
    found = consistent_loss(*passes, target, lengths, *output, 0.1, 5.0, maybe_native=native())
    assert not found.loss.isfinite() and not found.nll.isfinite()


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


@pytest.mark.parametrize("consistency", [0.0, 5.0])
def test_a_model_trains_alike_with_it(consistency: float) -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    gradients: list[list[Tensor]] = []
    for maybe_native in (None, native()):
        network = toy_network(dropout=0.2)
        network.bits.reseed(7)
        result = ModelWithLoss(network, 0.1, consistency=consistency, maybe_native=maybe_native).train()(batch)
        result.loss.backward()
        gradients.append([one.grad for one in network.parameters() if one.grad is not None])
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_only_weights_of_fp32_on_a_processor_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder_with_library() / "elsewhere"))
    assert model_with_loss(toy_network(), TrainingConfig()).maybe_native is None
    monkeypatch.setattr("malmoi.training.objective.find_training_code", native_code)
    assert model_with_loss(toy_network(), TrainingConfig()).maybe_native is not None
    assert model_with_loss(toy_network().double(), TrainingConfig()).maybe_native is None
    assert model_with_loss(toy_network(), TrainingConfig(precision="bf16")).maybe_native is not None


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", [8, 24, 32])
@pytest.mark.parametrize(
    ("queries", "keys", "kind"),
    [
        *itertools.product((1, 16), (0,), ("none", "lengths", "causal", "empty rows")),
        *((queries, keys, kind) for queries, keys in SIDES for kind in ("none", "lengths", "empty rows")),
    ],
)
def test_attention_equals_the_open_formula(num_threads: int, size: int, queries: int, keys: int, kind: str) -> None:
    """Both ways in where places look at themselves (no keys given), and every gradient, against float64."""
    right, made = attention_both_ways(num_threads, size, queries, keys or queries, kind, torch.float32)
    for number, (mine, other) in enumerate(zip(made, right, strict=True)):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4 if number else 1e-5, atol=1e-5)


def test_masked_places_have_no_weight_at_all() -> None:
    """What stands in them never matters, to the last bit; nor do neighbours."""
    code, generator = native_code(), torch.Generator().manual_seed(1)
    packed = torch.randn(6, 9, 3, 2, 8, generator=generator)
    lengths_B = torch.tensor([9, 4, 1, 3, 9, 2])
    mask = length_mask(lengths_B, 9, torch.float32)
    first = attend_self(packed, mask.added, mask.kept, code)
    other = packed.clone()
    for row, length in enumerate(lengths_B.tolist()):
        other[row, length:] = 1e4
    again = attend_self(other, mask.added, mask.kept, code)
    alone = attend_self(packed[3:4], length_mask(lengths_B[3:4], 9, torch.float32).added, None, code)
    for row, length in enumerate(lengths_B.tolist()):
        assert torch.equal(first[row, :length], again[row, :length])
    assert torch.equal(alone[0, :3], first[3, :3])


def test_attention_hides_nothing_that_is_no_number() -> None:
    packed = torch.randn(2, 5, 3, 2, 8)
    packed[1, 2, 1, 0, 3] = math.nan
    found = attend_self(packed, None, None, native_code())
    assert found[1, :, :8].isnan().all()
    assert found[0].isfinite().all()


def test_a_model_with_native_attention_trains_alike() -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    gradients: list[list[Tensor]] = []
    for maybe_code in (None, native_code()):
        network = toy_network(dropout=0.2)
        if maybe_code is not None:
            use_native_code(network, maybe_code)
        network.bits.reseed(7)
        ModelWithLoss(network, 0.1).train()(batch).loss.backward()
        gradients.append([one.grad for one in network.parameters() if one.grad is not None])
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_a_copy_of_a_model_uses_the_same_code_and_works_alone() -> None:
    network = toy_network()
    use_native_code(network, native_code())
    model = ModelWithLoss(network, 0.1, maybe_native=native())
    copied, batch = copy.deepcopy(model), toy_batch(toy_pairs([2, 5, 9, 1]))
    assert all(one.maybe_code is not None for one in copied.modules() if isinstance(one, SelfAttention))
    wanted = model(batch).loss.item()
    # What is laid out belongs to one of them: neither frees the other's.
    assert copy.copy(model.maybe_native) is not model.maybe_native is not copied.maybe_native
    del model
    assert copied(batch).loss.item() == wanted


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 24), (700, 128)])
@pytest.mark.parametrize("kind", NATIVE_TYPES)
def test_residual_sum_and_norm_equal_those_of_torch(
    num_threads: int, probability: float, rows: int, width: int, kind: torch.dtype
) -> None:
    """The very same elements are dropped; every gradient is as in float64. A sublayer may have said bf16."""
    generator = torch.Generator().manual_seed(rows)
    norm = nn.LayerNorm(width)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width, generator=generator))
        norm.bias.copy_(torch.randn(width, generator=generator))
    states, sublayer, toward = (torch.randn(rows, width, generator=generator) for _ in range(3))
    sublayer, bits = sublayer.to(kind), RandomBits(1)
    residual = Residual(norm, "post", Dropout(probability, bits)).train()
    results: list[list[Tensor]] = []
    for maybe_code in (None, native_code(num_threads)):
        residual.double() if maybe_code is None else residual.float()
        residual.maybe_code = maybe_code
        pair = [(one.double() if maybe_code is None else one).clone().requires_grad_() for one in (states, sublayer)]
        bits.reseed(5)
        found = residual.after(pair[0], pair[1])
        assert ("NativeResidual" in str(found.grad_fn)) == (maybe_code is not None)
        wanted = [*pair, norm.weight, norm.bias]
        results.append([found, *torch.autograd.grad((found * toward.to(found.dtype)).sum(), wanted)])
    assert [one.dtype for one in results[1]] == [torch.float32, torch.float32, kind, torch.float32, torch.float32]
    for other, mine in zip(*results, strict=True):
        rounding = 2.0**-8 if mine.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(mine.double(), other, rtol=rounding, atol=2e-5)


def test_residual_sums_that_do_not_fit_keep_to_torch() -> None:
    code, bits = native_code(), RandomBits(1)
    narrow, wide = torch.randn(3, 6), torch.randn(3, 8)
    assert add_and_norm(narrow, narrow, nn.LayerNorm(6), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide.double(), wide.double(), nn.LayerNorm(8), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide, wide, nn.RMSNorm(8), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide.T, wide.T, nn.LayerNorm(3), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide, wide[:1], nn.LayerNorm(8), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide, wide, nn.LayerNorm((3, 8)), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide, wide, nn.LayerNorm(8, elementwise_affine=False), Dropout(0.0, bits), code) is None
    assert add_and_norm(wide, wide, nn.LayerNorm(8).double(), Dropout(0.0, bits), code) is None


def test_a_model_for_another_device_gets_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that got it and moved away ask it for anything."""
    monkeypatch.setattr("malmoi.training.objective.find_training_code", native_code)
    meta = torch.device("meta")
    model = model_with_loss(toy_network(), TrainingConfig(), meta)
    assert model.maybe_native is None
    assert not [one for one in model.network.modules() if getattr(one, "maybe_code", None) is not None]
    wide = torch.randn(3, 8, device=meta)
    assert add_and_norm(wide, wide, nn.LayerNorm(8, device=meta), Dropout(0.0, RandomBits(1)), native_code()) is None
    packed = torch.randn(2, 5, 3, 2, 8, device=meta)
    assert attend_self(packed, None, None, native_code()).shape == (2, 5, 16)


def test_attention_that_does_not_fit_keeps_to_torch() -> None:
    code, packed, query = native_code(), torch.randn(2, 5, 2, 2, 8), torch.randn(2, 3, 2, 8)
    assert torch.equal(attend_cross(query, packed[:, :0], None, None, code), torch.zeros(2, 3, 16))
    same_for_all_keys = torch.zeros(2, 1, 1, 1)
    torch.testing.assert_close(
        attend_cross(query, packed, same_for_all_keys, None, code), attend_cross(query, packed, None, None)
    )
    for shape in ((2, 1, 1, 3), (3, 1, 1, 5), (2, 1, 2, 5)):
        with pytest.raises(RuntimeError):
            attend_cross(query, packed, torch.zeros(shape), None, code)


def test_targets_of_32_bits_keep_to_torch() -> None:
    hidden, target, lengths, output = inputs(33, 16, True)
    found = fused_loss(hidden, target.int(), lengths, *output, 0.1, maybe_native=native())
    assert found.loss.item() == fused_loss(hidden, target.int(), lengths, *output, 0.1).loss.item()
