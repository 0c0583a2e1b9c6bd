"""One model on many processes: whole in each (DDP), or in pieces (FSDP2). The model itself knows nothing of it.

In: a model with its loss, and the ranks. Out: the module to call in its place. Both kinds leave the mean over all ranks
of the gradients where gradients are looked for.

DDP (Li et al., 2020) holds everything in each process and adds up gradients while they are made. FSDP2 (after ZeRO,
Rajbhandari et al., 2020) holds of weights, gradients and moments a piece per process, and puts a layer's weights
together only while it is at work.
"""

import copy
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from malmoi.config.training import ParallelKind
from malmoi.models.interface import Seq2Seq
from malmoi.training.memory import probe_batch
from malmoi.training.objective import ModelWithLoss
from malmoi.training.ranks import Ranks
from malmoi.training.shards import put, whole


def distribute(model: ModelWithLoss, kind: ParallelKind, ranks: Ranks, device: torch.device) -> nn.Module:
    """Move the model to the device, with the first rank's start values, and return what is to be called for its loss.

    After this its parameters are others where it is in pieces. `ConfigError` where the device cannot be shared.
    """
    ranks.check_device(device)
    for tensor in unique(model.state_dict()):
        ranks.spread(tensor)
    if ranks.count == 1:
        return model.to(device)
    match kind:
        case "ddp":
            return replicate(model.to(device), device)
        case "fsdp":
            return shard(model, ranks, device)
        case _:
            assert_never(kind)


def unique(tensors: dict[str, Tensor]) -> list[Tensor]:
    """Each tensor once, whatever its names."""
    return list({tensor.data_ptr(): tensor for tensor in tensors.values()}.values())


def replicate(model: ModelWithLoss, device: torch.device) -> nn.Module:
    """DDP, after one pass over nothing.

    In its first pass DDP learns the order in which gradients come, and later adds them up in that order. The pass that
    changes nothing makes this the same from the first update on, so that a resumed run adds as the one before it did.
    """
    with warnings.catch_warnings():
        # The oldest torch that serves does not know yet what this is called later.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        replicated = DistributedDataParallel(
            model, broadcast_buffers=False, init_sync=False, gradient_as_bucket_view=True
        )
    replicated(probe_batch(model, 1, 1).without_targets().to(device)).loss.backward()
    model.zero_grad(set_to_none=True)
    return replicated


def shard(model: ModelWithLoss, ranks: Ranks, device: torch.device) -> nn.Module:
    """FSDP2: a group for each layer of a stack, one for all the rest; embeddings and output stand in that one.

    Simple layers belong to the rest: cells of an RNN are asked for their weights past their `forward`.
    """
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (ranks.count,))
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(layer.children()):
                    fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def can_hold_back(module: nn.Module) -> bool:
    """Whether all passes of an update can be made before any gradient goes to the others."""
    return isinstance(module, DistributedDataParallel)


def gradients_stay(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, gradients pile up in each rank, to go to the others with the next that are made outside.

    Gradients in pieces go at once, since each rank has room for its pieces only.
    """
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


class Whole:
    """A network in one piece to decode with, whatever becomes of the original."""

    def __init__(self, network: Seq2Seq, *, will_be_sharded: bool) -> None:
        """Made before the network is distributed; a copy lies in the processor's memory where it is needed."""
        self.network = network
        self.maybe_copy = copy.deepcopy(network) if will_be_sharded else None

    def take(self, device: torch.device) -> Seq2Seq:
        """The network with its present weights on the device; all ranks take part."""
        if self.maybe_copy is None:
            return self.network
        present = self.network.state_dict()
        for name, tensor in self.maybe_copy.to(device).state_dict().items():
            put(tensor, whole(present[name]))
        return self.maybe_copy

    def give_back(self) -> None:
        """The device's memory is needed for other things."""
        if self.maybe_copy is not None:
            self.maybe_copy.to("cpu")
