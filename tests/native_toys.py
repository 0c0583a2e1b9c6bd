"""Native code of training, and what it is asked in tests."""

from collections.abc import Callable

import torch
from torch import Tensor

from engine_library import folder_with_library, native_library
from malmoi.models.attention import Mask, causal_mask, length_mask
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
