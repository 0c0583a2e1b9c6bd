"""Tensors that lie in pieces on several ranks (FSDP2), and the same in one piece.

In: tensors of either kind. Out: values in one piece, to store; pieces, to go on with. A tensor in one piece passes
through as it is. What cuts into pieces takes a second to import, for which a process alone need not wait.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_in_pieces(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Told by what the tensor can do, without its class."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece; all ranks take part."""
    return tensor.full_tensor() if is_in_pieces(tensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """The piece of this rank, in the tensor's own memory; a tensor in one piece is that."""
    return tensor.to_local() if is_in_pieces(tensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """All tensors in one piece, those put together in the processor's memory; nothing in ranks that do not `keep` them.

    All ranks take part. One at a time is put together, so that a device needs room for the largest alone.
    """
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        complete = whole(tensor)
        if keep:
            kept[name] = complete if complete is tensor else complete.cpu()
    return kept


@torch.no_grad()
def put(target: Tensor, value: Tensor) -> None:
    """Overwrite a tensor by a value of its shape, in one piece or like itself; no rank needs another."""
    target.copy_(like(target, value))


def like(target: Tensor, value: Tensor) -> Tensor:
    """A copy of a value on the device of a tensor, and in pieces where that is and has its shape."""
    if is_in_pieces(value) or not is_in_pieces(target) or value.shape != target.shape:
        return value.to(device=target.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    # Without a source each rank takes its piece from the value that it has.
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
