"""One step of a GRU or LSTM on the CPU, and its gradient written by hand.

In: what comes from the input and from the state before, each a product already. Out: the state after, and what the
gradient needs; on the way back, the gradients of both products. Everything is written into arrays that the caller made
for the whole sequence, so that a step is a dozen operations and no trail of autograd.

The formulas are torch's. GRU: r, z = sigmoid(x + s), n = tanh(x + r * s), h' = n + z * (h - n). LSTM: i, f, o =
sigmoid(x + s), g = tanh(x + s), c' = f * c + i * g, h' = o * tanh(c').

Letters: R rows, H state size, C slots of a state (an LSTM's are h and c), G gates times H, K values kept times H.
"""

from abc import ABC, abstractmethod
from typing import assert_never

import torch
from torch import Tensor

from malmoi.config.model import Cell


class Gates(ABC):
    """A kind of cell; a state is a list of its slots, each `(R, H)`."""

    num_kept: int
    """Arrays `(R, H)` that the gradient of a step needs."""
    are_joined: bool
    """Whether both products enter by their sum alone, so that their gradients are the same."""

    @abstractmethod
    def move(self, from_input_RG: Tensor, from_state_RG: Tensor, state: list[Tensor], kept_RK: Tensor) -> None:
        """Overwrite the state by the next one, and fill `kept_RK`."""

    @abstractmethod
    def back(
        self, gradient: list[Tensor], before_RH: Tensor, kept_RK: Tensor, d_input_RG: Tensor, d_state_RG: Tensor
    ) -> Tensor | None:
        """Fill the gradients of both products (one where they are joined).

        `gradient` is that of the state after, and holds that of the state before afterwards, but for what h has through
        its product and what is returned: its direct share in h'.
        """


class GruGates(Gates):
    num_kept = 4
    are_joined = False

    def move(self, from_input_RG: Tensor, from_state_RG: Tensor, state: list[Tensor], kept_RK: Tensor) -> None:
        (hidden_RH,) = state
        both = 2 * hidden_RH.size(1)
        torch.add(from_input_RG[:, :both], from_state_RG[:, :both], out=kept_RK[:, :both]).sigmoid_()
        reset_RH, update_RH, new_RH, from_hidden_RH = kept_RK.chunk(4, dim=1)
        from_hidden_RH.copy_(from_state_RG[:, both:])
        torch.addcmul(from_input_RG[:, both:], reset_RH, from_hidden_RH, out=new_RH).tanh_()
        torch.lerp(new_RH, hidden_RH, update_RH, out=hidden_RH)

    def back(
        self, gradient: list[Tensor], before_RH: Tensor, kept_RK: Tensor, d_input_RG: Tensor, d_state_RG: Tensor
    ) -> Tensor | None:
        (d_hidden_RH,) = gradient
        reset_RH, update_RH, new_RH, from_hidden_RH = kept_RK.chunk(4, dim=1)
        d_reset_RH, d_update_RH, d_new_RH = d_input_RG.chunk(3, dim=1)
        direct_RH = d_hidden_RH * update_RH
        back_through_tanh(d_hidden_RH - direct_RH, new_RH, d_new_RH)
        back_through_sigmoid((before_RH - new_RH).mul_(d_hidden_RH), update_RH, d_update_RH)
        back_through_sigmoid(d_new_RH * from_hidden_RH, reset_RH, d_reset_RH)
        both = 2 * before_RH.size(1)
        d_state_RG[:, :both].copy_(d_input_RG[:, :both])
        torch.mul(d_new_RH, reset_RH, out=d_state_RG[:, both:])
        return direct_RH


class LstmGates(Gates):
    num_kept = 6
    are_joined = True

    def move(self, from_input_RG: Tensor, from_state_RG: Tensor, state: list[Tensor], kept_RK: Tensor) -> None:
        hidden_RH, cell_RH = state
        size = hidden_RH.size(1)
        torch.add(from_input_RG, from_state_RG, out=kept_RK[:, : 4 * size])
        enter_RH, forget_RH, new_RH, leave_RH, shown_RH, before_RH = kept_RK.chunk(6, dim=1)
        kept_RK[:, : 2 * size].sigmoid_()
        new_RH.tanh_()
        leave_RH.sigmoid_()
        before_RH.copy_(cell_RH)
        torch.mul(forget_RH, before_RH, out=cell_RH).addcmul_(enter_RH, new_RH)
        torch.tanh(cell_RH, out=shown_RH)
        torch.mul(leave_RH, shown_RH, out=hidden_RH)

    def back(
        self, gradient: list[Tensor], before_RH: Tensor, kept_RK: Tensor, d_input_RG: Tensor, d_state_RG: Tensor
    ) -> Tensor | None:
        d_hidden_RH, d_cell_RH = gradient
        enter_RH, forget_RH, new_RH, leave_RH, shown_RH, cell_before_RH = kept_RK.chunk(6, dim=1)
        d_enter_RH, d_forget_RH, d_new_RH, d_leave_RH = d_input_RG.chunk(4, dim=1)
        back_through_sigmoid(d_hidden_RH * shown_RH, leave_RH, d_leave_RH)
        d_shown_RH = d_hidden_RH * leave_RH
        back_through_tanh(d_shown_RH, shown_RH, d_shown_RH)
        d_cell_RH.add_(d_shown_RH)
        back_through_sigmoid(d_cell_RH * new_RH, enter_RH, d_enter_RH)
        back_through_sigmoid(d_cell_RH * cell_before_RH, forget_RH, d_forget_RH)
        back_through_tanh(d_cell_RH * enter_RH, new_RH, d_new_RH)
        d_cell_RH.mul_(forget_RH)
        return None


def gates_of(cell: Cell) -> Gates:
    match cell:
        case "gru":
            return GruGates()
        case "lstm":
            return LstmGates()
        case _:
            assert_never(cell)


def back_through_sigmoid(gradient: Tensor, activated: Tensor, out: Tensor) -> None:
    """gradient * a * (1 - a)."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, activated, grad_input=out)


def back_through_tanh(gradient: Tensor, activated: Tensor, out: Tensor) -> None:
    """gradient * (1 - a^2)."""
    torch.ops.aten.tanh_backward.grad_input(gradient, activated, grad_input=out)
