"""Native code of training, and what it is asked in tests."""

from collections.abc import Callable

import torch
from torch import Tensor

from engine_library import folder_with_library, native_library
from malmoi.models.attention import Mask, attend, causal_mask, length_mask
from malmoi.models.interface import Trace
from malmoi.models.kernels import attend_cross, attend_self
from malmoi.native.training import FEWEST_ROWS, OutputLayer, TrainingCode, find_training_code
from malmoi.training.loss import LossSum


def native_code(num_threads: int = 1) -> TrainingCode:
    native_library()
    found = find_training_code(num_threads, folder_with_library())
    assert found is not None
    return found


def native(num_threads: int = 1) -> OutputLayer:
    return OutputLayer(native_code(num_threads))


def inputs(classes: int, width: int, bias: bool, rows: int = 400) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Hidden states of fp32, targets, lengths, weight (as models begin) and perhaps bias, with gradients wanted.

    So many rows that two threads share those of one chunk.
    """
    generator = torch.Generator().manual_seed(classes)
    hidden_BTD = torch.randn(rows // 5, 7, width, generator=generator).requires_grad_()
    target_BT = torch.randint(classes, (rows // 5, 7), generator=generator)
    lengths_B = torch.randint(1, 8, (rows // 5,), generator=generator)
    weight_VD = torch.randn(classes, width, generator=generator) * width**-0.5
    output = [weight_VD, torch.randn(classes, generator=generator)]
    assert int(lengths_B.sum()) >= 2 * FEWEST_ROWS
    return hidden_BTD, target_BT, lengths_B, [one.requires_grad_() for one in output[: 1 + bias]]


def run(
    way: Callable[..., LossSum], hidden: Tensor, target: Tensor, lengths: Tensor, output: list[Tensor], **more: object
):
    """The sums and all gradients."""
    bias = output[1] if len(output) > 1 else None
    result = way(hidden, target, lengths, output[0], bias, 0.1, **more)
    return result, torch.autograd.grad(2 * result.loss, [hidden, *output])


def masks(kind: str, batch: int, queries: int, keys: int) -> Mask:
    if kind == "causal":
        return causal_mask(queries, torch.float32, torch.device("cpu"))
    lengths_B = torch.arange(batch) % (keys + 1) if kind == "empty rows" else torch.arange(batch) % keys + 1
    return Mask() if kind == "none" else length_mask(lengths_B, keys, torch.float32)


def attention_both_ways(
    num_threads: int, size: int, queries: int, keys: int, kind: str, wanted_type: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Attended states, and gradients of queries and of keys with values: by the open formula in float64, natively.

    Where places look at themselves, the native ways in are both taken, and say the same to the last bit.
    """
    generator, batch, heads, code = torch.Generator().manual_seed(keys), 37, 3, native_code(num_threads)
    mask = masks(kind, batch, queries, keys)
    query = torch.randn(batch, queries, heads, size, generator=generator).to(wanted_type).requires_grad_()
    packed = torch.randn(batch, keys, 2, heads, size, generator=generator).to(wanted_type).requires_grad_()
    found = attend_cross(query, packed, mask.added, mask.kept, code)
    toward = torch.randn(found.shape, generator=generator).to(wanted_type)
    made = [found, *torch.autograd.grad((found * toward).sum(), [query, packed])]
    assert [one.dtype for one in made[1:]] == [wanted_type, wanted_type]
    doubled = [one.detach().double().requires_grad_() for one in (query, packed)]
    key, value = (one.transpose(1, 2) for one in doubled[1].unbind(2))
    wide = Mask(*(None if one is None else one.double() for one in (mask.added, mask.kept)))
    right = attend(doubled[0].transpose(1, 2), key, value, wide, trace=Trace()).transpose(1, 2).flatten(2)
    if queries == keys:
        whole = torch.cat([query[:, :, None], packed], dim=2).detach().requires_grad_()
        alone = attend_self(whole, mask.added, mask.kept, code)
        assert torch.equal(alone, found)
        (gradient,) = torch.autograd.grad((alone * toward).sum(), [whole])
        assert torch.equal(gradient, torch.cat([made[1][:, :, None], made[2]], dim=2))
    return [right, *torch.autograd.grad((right * toward).sum(), doubled)], made
