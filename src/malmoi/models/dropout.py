"""Dropout from counted random bits (Srivastava et al., 2014).

In: a tensor in training mode. Out: the same with some elements 0 and the others scaled up.

On the CPU the bits come in bulk from NumPy's SFC64, many times faster than `bernoulli_`: 16 bits per element, of which
k / 65536 of all values keep it, and the scale is exactly the inverse of that probability. What is drawn depends on the
key of `reseed` and the order of the draws only, so that a run resumes without stored random state.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEVELS = 1 << 16


class RandomBits:
    """The one source of randomness of a model; its dropout modules share it."""

    def __init__(self, *key: int) -> None:
        self.generator = np.random.SFC64(np.random.SeedSequence(key))
        self.is_paused = False

    def reseed(self, *key: int) -> None:
        """Draw anew from this key (for example seed, step, micro-batch, rank); numbers from 0 up.

        On other devices than the CPU torch draws the bits, from its own generator, which is seeded here as well.
        """
        sequence = np.random.SeedSequence(key)
        self.generator = np.random.SFC64(sequence)
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def draw(self, shape: torch.Size, num_kept_levels: int) -> Tensor:
        """1 with probability `num_kept_levels` / 65536, else 0; as uint8, which is cast much faster than bool."""
        return torch.from_numpy((self.levels(shape.numel()) < num_kept_levels).view(np.uint8)).view(shape)

    def levels(self, num_elements: int) -> NDArray[np.uint16]:
        """The random bits of so many elements, 16 for each."""
        return self.generator.random_raw((num_elements + 3) // 4).view(np.uint16)[:num_elements]

    def again(self) -> AbstractContextManager[None]:
        """A context in which the draws that come next on the CPU come once more; behind it all goes on as before."""
        return self.replay(self.generator.state)

    @contextmanager
    def replay(self, state: Any) -> Generator[None]:
        """Draws from a generator in this state."""
        before = self.generator.state
        self.generator.state = state
        try:
            yield
        finally:
            self.generator.state = before

    @contextmanager
    def paused(self) -> Generator[None]:
        """No dropout inside, whatever the mode of the model."""
        before = self.is_paused
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = before


class KeepScaled(torch.autograd.Function):
    """`states * kept * scale`; one byte per element is stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return kept.to(states.dtype).mul_(scale).mul_(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = grad_outputs
        (kept,) = ctx.saved_tensors
        return kept.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None, None


class AddKeepScaled(torch.autograd.Function):
    """`residual + states * kept * scale` in one pass over the memory."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, states: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.addcmul(residual, states, kept.to(states.dtype), value=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = grad_outputs
        (kept,) = ctx.saved_tensors
        return gradient, kept.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None, None


class Dropout(nn.Module):
    """Each element becomes 0 with the given probability, in training mode and while the bits are not paused."""

    def __init__(self, probability: float, bits: RandomBits) -> None:
        super().__init__()
        self.probability = probability
        self.bits = bits
        self.num_kept_levels = round((1.0 - probability) * LEVELS)
        assert probability == 0.0 or self.num_kept_levels > 0, f"dropout {probability} keeps nothing"

    @property
    def is_active(self) -> bool:
        return self.training and self.probability > 0.0 and not self.bits.is_paused

    def forward(self, states: Tensor) -> Tensor:
        if not self.is_active:
            return states
        if states.device.type != "cpu":
            return nn.functional.dropout(states, self.probability)
        kept = self.bits.draw(states.shape, self.num_kept_levels)
        return KeepScaled.apply(states, kept, LEVELS / self.num_kept_levels)

    def add_to(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + dropout(states)`."""
        if not self.is_active:
            return residual + states
        if states.device.type != "cpu" or residual.dtype != states.dtype:
            return residual + self(states)
        kept = self.bits.draw(states.shape, self.num_kept_levels)
        return AddKeepScaled.apply(residual, states, kept, LEVELS / self.num_kept_levels)

    def extra_repr(self) -> str:
        return f"probability={self.probability}"
