"""Adam and AdamW over the parameters that are to move, and the running mean of the weights.

In: a network and settings. Out: an optimiser whose rate is set before each update; averaged weights on request.
"""

import difflib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TypeAlias, assert_never

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from malmoi.config import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.shards import like, put

Parameters: TypeAlias = dict[str, nn.Parameter]
"""Parameters by name; one that bears several names stands under its first."""


def freeze_parameters(network: nn.Module, prefixes: Iterable[str]) -> list[str]:
    """Stop the parameters whose names start with one of the prefixes from moving, and return their names.

    A tied parameter is frozen by any of its names. A prefix that fits nothing is a `ConfigError`, and so is freezing
    everything.
    """
    names = dict(network.named_parameters(remove_duplicate=False))
    for prefix in prefixes:
        matching = [name for name in names if name.startswith(prefix)]
        if not matching:
            near = difflib.get_close_matches(prefix, starts_of(names), n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else f"; the model has {', '.join(sorted(starts_of(names)))}"
            raise ConfigError(f"training.freeze: no parameter's name starts with {prefix!r}{hint}")
        for name in matching:
            names[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in names.values()):
        raise ConfigError("training.freeze leaves no parameter to train")
    return [name for name, parameter in names.items() if not parameter.requires_grad]


def starts_of(names: Iterable[str]) -> set[str]:
    """Every name cut at each of its points: the prefixes that a user may mean."""
    starts: set[str] = set()
    for name in names:
        parts = name.split(".")
        starts.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return starts


def trainable_parameters(network: nn.Module) -> Parameters:
    """Parameters that are to move, each once."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def build_optimizer(parameters: Parameters, config: TrainingConfig) -> torch.optim.Adam:
    """Adam (Kingma and Ba, 2015; decay added to the gradient) or AdamW (Loshchilov and Hutter, 2019).

    Weight decay leaves out vectors: biases and the gains of norms. torch's fused kernels are 3 to 5 times as fast as
    its other two on a CPU and as fast on a GPU.
    """
    matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (config.beta1, config.beta2)
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(groups, lr=0.0, betas=betas, eps=config.epsilon, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.epsilon, fused=True)
        case _:
            assert_never(config.optimizer)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def moments_of(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """What the optimiser remembers, by name; nothing before its first update."""
    return {
        f"{kind}/{name}": value
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for kind, value in optimizer.state[parameter].items()
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Parameters, tensors: Mapping[str, Tensor]
) -> list[str]:
    """Put back what `moments_of` gave; returns names of parameters for which it holds nothing, unless all lack."""
    optimizer.state.clear()
    if not tensors:
        return []
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        by_name.setdefault(name, {})[kind] = value
    for name, parameter in parameters.items():
        if name in by_name:
            optimizer.state[parameter] = {kind: like(parameter, value) for kind, value in by_name[name].items()}
    return [name for name in parameters if name not in by_name]


class WeightAverage:
    """Exponential average of weights: after each update a share 1 - decay moves towards the present ones.

    Early on the decay is (1 + t) / (10 + t), so that the first values are soon forgotten.
    """

    def __init__(self, parameters: Parameters, decay: float) -> None:
        self.parameters = parameters
        self.decay = decay
        self.tensors = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        average: list[Tensor] = list(self.tensors.values())
        current: list[Tensor] = [parameter.detach() for parameter in self.parameters.values()]
        get_ema_multi_avg_fn(decay)(average, current, step)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back stored averages."""
        for name, tensor in self.tensors.items():
            put(tensor, tensors[name])

    @contextmanager
    def in_place(self) -> Generator[None]:
        """The network holds the averaged weights inside, and its own again afterwards, bit for bit."""
        own = [parameter.detach().clone() for parameter in self.parameters.values()]
        try:
            self.copy_to_network(list(self.tensors.values()))
            yield
        finally:
            self.copy_to_network(own)

    @torch.no_grad()
    def copy_to_network(self, tensors: list[Tensor]) -> None:
        for parameter, tensor in zip(self.parameters.values(), tensors, strict=True):
            parameter.copy_(tensor)
