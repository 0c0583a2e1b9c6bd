"""A run's tensors by name, to be stored and put back.

In: a network, its optimiser, averaged weights. Out: one flat mapping, `weights/`, `moments/`, `average/` before the
names, in which a tied tensor stands once.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from malmoi.errors import CheckpointError
from malmoi.training.optimizer import Adam, WeightAverage
from malmoi.training.shards import put


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers by name, each once, without gradients; they share the network's memory."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def collect(network: nn.Module, optimizer: Adam, maybe_average: WeightAverage | None) -> dict[str, Tensor]:
    """Everything to store."""
    tensors = {f"weights/{name}": tensor for name, tensor in network_tensors(network).items()}
    tensors |= {f"moments/{name}": tensor for name, tensor in optimizer.tensors().items()}
    if maybe_average is not None:
        tensors |= {f"average/{name}": tensor for name, tensor in maybe_average.tensors.items()}
    return tensors


@torch.no_grad()
def restore(
    tensors: Mapping[str, Tensor],
    where: str,
    network: nn.Module,
    optimizer: Adam,
    maybe_average: WeightAverage | None,
) -> None:
    """Put back what `collect` gave; `CheckpointError` where it belongs to another model or other settings."""
    weights, own = part(tensors, "weights/"), network_tensors(network)
    if {name: tensor.shape for name, tensor in weights.items()} != {name: own[name].shape for name in own}:
        odd = sorted(name for name in {*weights, *own} if name not in weights or name not in own) or sorted(
            name for name in own if own[name].shape != weights[name].shape
        )
        raise CheckpointError(
            f"{where}: belongs to another model ({odd[0]} and {len(odd) - 1} more differ): "
            "resume with the run's own config, or start anew in another folder"
        )
    for name, tensor in own.items():
        put(tensor, weights[name])
    missing = optimizer.restore(part(tensors, "moments/"))
    if missing:
        raise CheckpointError(
            f"{where}: says nothing about how {missing[0]} moved, as training.freeze was different: "
            "put it back, or start anew in another folder with --init"
        )
    if maybe_average is not None:
        # A run that begins to average now starts from its present weights.
        averages = part(tensors, "average/") or {
            name: parameter.detach() for name, parameter in optimizer.parameters.items()
        }
        maybe_average.restore(averages)


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
