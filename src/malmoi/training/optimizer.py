"""Adam and AdamW over the parameters that are to move, and the running mean of the weights.

In: a network and settings. Out: an optimiser whose rate is set before each update; averaged weights on request.
"""

import difflib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.shards import like, own, put

Parameters: TypeAlias = dict[str, nn.Parameter]
"""Parameters by name; one that bears several names stands under its first."""
Moments: TypeAlias = dict[str, Tensor]
"""`exp_avg`, `exp_avg_sq` and `step`, the names under which they are stored."""


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


class Adam:
    """Adam (Kingma and Ba, 2015; decay added to the gradient) or AdamW (Loshchilov and Hutter, 2019).

    torch's fused operation goes over all parameters of a group in one pass. It is called here without `torch.optim`,
    whose optimisers load torch's compiler when they are made, which takes longer than many an update. Tensors that lie
    in pieces are moved piece by piece: the formula looks at each element alone.
    """

    def __init__(self, parameters: Parameters, config: TrainingConfig) -> None:
        """Weight decay leaves out vectors: biases and the gains of norms."""
        self.parameters = parameters
        self.moments: dict[str, Moments] = {}
        """By name; nothing before the first update."""
        self.config = config
        matrices = [name for name, parameter in parameters.items() if parameter.dim() > 1]
        vectors = [name for name, parameter in parameters.items() if parameter.dim() <= 1]
        self.groups = [(matrices, config.weight_decay), (vectors, 0.0)]

    def clear_gradients(self) -> None:
        """Give their memory back."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move what has a gradient."""
        for names, decay in self.groups:
            moving = [name for name in names if self.parameters[name].grad is not None]
            if moving:
                self.move(moving, rate, decay)

    def move(self, names: list[str], rate: float, decay: float) -> None:
        """One call of the fused operation for parameters of one group."""
        parameters = [self.parameters[name] for name in names]
        moments = [self.moments_of(name) for name in names]
        for moment in moments:
            moment["step"] += 1
        operations = torch.ops.aten
        fused = operations._fused_adam_ if self.config.optimizer == "adam" else operations._fused_adamw_
        fused(
            [own(parameter) for parameter in parameters],
            [own(parameter.grad) for parameter in parameters if parameter.grad is not None],
            [own(moment["exp_avg"]) for moment in moments],
            [own(moment["exp_avg_sq"]) for moment in moments],
            [],
            [moment["step"] for moment in moments],
            lr=rate,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=decay,
            eps=self.config.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def moments_of(self, name: str) -> Moments:
        """Both moments and the count of steps of a parameter, as they begin where they have not."""
        if name not in self.moments:
            parameter = self.parameters[name]
            self.moments[name] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
        return self.moments[name]

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers, by kind and name; nothing before the first update.

        What never had a gradient is remembered as it began, so that a state that lacks a name was made without it.
        """
        if not self.moments:
            return {}
        return {f"{kind}/{name}": value for name in self.parameters for kind, value in self.moments_of(name).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Put back what `tensors` gave; returns names of parameters for which it holds nothing, unless all lack."""
        self.moments.clear()
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            if name in self.parameters:
                self.moments.setdefault(name, {})[kind] = like(self.parameters[name], value)
        return [name for name in self.parameters if tensors and name not in self.moments]


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
