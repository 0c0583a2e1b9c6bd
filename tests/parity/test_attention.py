"""Every way to compute attention against the loops, over all kinds of masks."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from malmoi.models import attention, kernels
from malmoi.models.attention import Mask, SelfAttention, attend, causal_mask, length_mask
from malmoi.models.dropout import Dropout, RandomBits
from malmoi.models.interface import Trace
from reference.attention import attend_by_loops

GRID = list(itertools.product([False, True], repeat=4))
NAMES = ["-".join(name for name, on in zip(("padded", "causal", "cross", "empty"), case, strict=True) if on) or "plain"
         for case in GRID]  # fmt: skip
BATCH, HEADS, HEAD_SIZE = 3, 2, 4


def draw_case(
    padded: bool, causal: bool, cross: bool, empty: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Mask, Tensor]:
    """Queries, keys and values (B, N, T, H), a mask, and what is allowed (B, T, S)."""
    generator = torch.Generator().manual_seed(7)
    num_queries, num_keys = 5, 7 if cross else 5
    sizes = ((BATCH, HEADS, num_queries, HEAD_SIZE), *[(BATCH, HEADS, num_keys, HEAD_SIZE)] * 2)
    query, key, value = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    lengths = torch.tensor([num_keys, 3 if padded else num_keys, 0 if empty else num_keys])
    mask = length_mask(lengths, num_keys, torch.float64)
    allowed = (torch.arange(num_keys) < lengths[:, None])[:, None].expand(BATCH, num_queries, num_keys)
    if causal:
        future = torch.full((num_queries, num_keys), -math.inf, dtype=torch.float64).triu(1)
        if mask.added is not None:
            mask = Mask(mask.added + future, mask.kept)
        else:
            mask = Mask(future[None, None]) if cross else causal_mask(num_keys, torch.float64, torch.device("cpu"))
        allowed = allowed & (future == 0)
    return (query, key, value), mask, allowed


def run_open(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    return attend(query, key, value, mask, trace=Trace(), name="weights").transpose(1, 2).flatten(2)


def run_chosen(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    return attend(query, key, value, mask).transpose(1, 2).flatten(2)


def run_packed_cross(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    packed = torch.stack([key, value]).permute(1, 3, 0, 2, 4)
    return kernels.attend_cross(query.transpose(1, 2), packed, mask.added, mask.kept)


def run_packed_self(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    packed = torch.stack([query, key, value]).permute(1, 3, 0, 2, 4)
    return kernels.attend_self(packed, mask.added, mask.kept)


@pytest.mark.parametrize("case", GRID, ids=NAMES)
def test_every_way_equals_the_loops(case: tuple[bool, bool, bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients; a sentence without a token gives zeros (pytorch/pytorch#24816, #26098, #119371)."""
    (query, key, value), mask, allowed = draw_case(*case)
    expected = torch.zeros(BATCH, query.size(2), HEADS, HEAD_SIZE, dtype=torch.float64)
    for row, head in itertools.product(range(BATCH), range(HEADS)):
        attended, _ = attend_by_loops(
            query[row, head].numpy(), key[row, head].numpy(), value[row, head].numpy(), allowed[row].numpy()
        )
        expected[row, :, head] = torch.from_numpy(attended)
    ways = [run_open, run_chosen, run_packed_cross] + ([] if case[2] else [run_packed_self])
    gradients: list[tuple[Tensor, ...]] = []
    for way, small_scores in [(way, 1024) for way in ways] + [(run_chosen, 0)]:
        monkeypatch.setattr(attention, "SMALL_SCORES", small_scores)
        inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        result = way(*inputs, mask)
        torch.testing.assert_close(result, expected.flatten(2), rtol=0, atol=1e-12)
        gradients.append(torch.autograd.grad(result.sin().sum(), inputs))
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", GRID, ids=NAMES)
def test_traced_weights_equal_the_loops(case: tuple[bool, bool, bool, bool]) -> None:
    """Exactly 0 on masked places, else what the loops say, in float64 and at low precision as well.

    facebookresearch/fairseq#3575, pytorch/benchmark#794, NVIDIA/apex#1105: the mask must fit every type.
    """
    (query, key, value), mask, allowed = draw_case(*case)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.03)):
        trace = Trace()
        cast = Mask(*(None if part is None else part.to(dtype) for part in (mask.added, mask.kept)))
        attend(query.to(dtype), key.to(dtype), value.to(dtype), cast, trace=trace, name="weights")
        weights = trace.weights["weights"]
        assert bool((weights[~allowed[:, None].expand_as(weights)] == 0.0).all())
        for row, head in itertools.product(range(BATCH), range(HEADS)):
            _, expected = attend_by_loops(
                query[row, head].numpy(), key[row, head].numpy(), value[row, head].numpy(), allowed[row].numpy()
            )
            np.testing.assert_allclose(weights[row, head].double().numpy(), expected, rtol=0, atol=tolerance)


def test_kernels_have_true_gradients() -> None:
    """The hand-written gradients against finite differences."""
    (query, key, value), mask, _ = draw_case(True, False, False, True)
    packed = torch.stack([query, key, value]).permute(1, 3, 0, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kernels.attend_self(x, mask.added, mask.kept), packed)
    asked = query.transpose(1, 2).detach().requires_grad_()
    packed = torch.stack([key, value]).permute(1, 3, 0, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, x: kernels.attend_cross(q, x, mask.added, mask.kept), (asked, packed))


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fused_operation_is_told_what_it_may_leave_out(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix at all where the mask is the causal one or where every place is real."""
    given: list[dict[str, object]] = []

    def fused(*_: Tensor, **options: object) -> Tensor:
        given.append(options)
        return torch.zeros(2, 1, 40, 4)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    causal, full = (
        causal_mask(40, torch.float32, torch.device("cpu")),
        length_mask(torch.tensor([40, 40]), 40, torch.float32),
    )
    layer = SelfAttention(4, 1, None, Dropout(0.0, RandomBits(1)))
    layer(torch.zeros(2, 40, 4), causal if is_causal else full)
    assert given == [{"attn_mask": None, "is_causal": is_causal}]


def test_wrong_masks_are_refused() -> None:
    """A bool or 0/1 mask would only nudge the scores (pytorch/pytorch#90534, #86120)."""
    (query, key, value), mask, allowed = draw_case(True, False, True, False)
    assert mask.added is not None
    for added in (
        allowed[:, None],
        allowed[:, None].long(),
        mask.added[..., :-1],
        mask.added.transpose(2, 3),
        mask.added[0, 0],
        mask.added[:2],
    ):
        with pytest.raises(ValueError, match="0 and minus infinity"):
            attend(query, key, value, Mask(added))
    with pytest.raises(ValueError, match="0 and minus infinity"):
        attend(query, key, value, Mask(None, torch.ones(BATCH, dtype=torch.bool)))


def test_masks_are_made_of_nothing_and_minus_infinity() -> None:
    """M[i][j] is minus infinity where j lies in the future of i, or in the padding; all else is 0."""
    causal = causal_mask(3, torch.float32, torch.device("cpu")).added
    assert causal is not None
    assert causal.tolist() == [[[[0, -math.inf, -math.inf], [0, 0, -math.inf], [0, 0, 0]]]]
    padding = length_mask(torch.tensor([2, 0]), 3, torch.float32)
    assert padding.added is not None and padding.kept is not None
    assert padding.added.tolist() == [[[[0, 0, -math.inf]]], [[[0, 0, 0]]]]
    assert padding.kept.flatten().tolist() == [1, 0]
    assert length_mask(torch.tensor([3, 3]), 3, torch.float32) == Mask()
