"""Recurrent loops over whole sequences on the CPU, each with its gradient as one function written by hand.

In: what the input gives at every place (one product beforehand), first states, the weights inside the loop. Out: states
at every place. Autograd's own trail of a loop keeps every small result and adds up the gradient of each weight step by
step; here a step keeps what its gradient needs, and weights get theirs by one product after the loop. Tests compare
with torch's layers and with the plain loop of `rnn.AdditiveDecoder`.

Rows of a sequence stand packed as in torch's `PackedSequence`: step after step, sentences from the longest to the
shortest, each step with as many rows as are still running.

Letters: P packed rows of all steps, B sentences, S source places, T target places, R rows of one step, H state size,
C slots of a state, G gates times H, K values kept times H, A annotation size, J = G + A.
"""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from malmoi.config.model import Cell
from malmoi.models.gates import gates_of

WIDEST_EXPONENT = 40.0
"""exp of twice this is still far from the largest float32."""


def may_run(states: Tensor) -> bool:
    """Whether these loops are to be taken: in training on a CPU. Devices have their own, autocast its own types."""
    return torch.is_grad_enabled() and states.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def run_rows(
    cell: Cell,
    from_input_PG: Tensor,
    weight_GH: Tensor,
    bias_G: Tensor,
    first_CBH: Tensor,
    sizes: list[int],
    *,
    back: bool,
) -> tuple[Tensor, Tensor]:
    """States h of all rows `(P, H)` and the last states `(C, B, H)`; `sizes` are the rows of each step, never growing.

    `back` runs from the last step to the first; a sentence then begins at its own last place.
    """
    outputs: tuple[Tensor, Tensor] = RunRows.apply(  # pyright: ignore[reportAssignmentType]
        cell, from_input_PG, weight_GH, bias_G, first_CBH, sizes, back
    )
    return outputs


def spans_of(sizes: list[int], back: bool) -> list[slice]:
    """Rows of each step, in the order in which steps are taken."""
    spans = [slice(*bounds) for bounds in pairwise(accumulate(sizes, initial=0))]
    return spans[::-1] if back else spans


def states_before(states_PH: Tensor, first_BH: Tensor, spans: Iterable[slice]) -> Tensor:
    """What h was before each step, `(P, H)`."""
    before_PH = torch.empty_like(states_PH)
    hidden_BH = first_BH.clone()
    for span in spans:
        num_rows = span.stop - span.start
        before_PH[span] = hidden_BH[:num_rows]
        hidden_BH[:num_rows] = states_PH[span]
    return before_PH


class RunRows(torch.autograd.Function):
    """A layer in one direction."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        from_input_PG: Tensor,
        weight_GH: Tensor,
        bias_G: Tensor,
        first_CBH: Tensor,
        sizes: list[int],
        back: bool,
    ) -> tuple[Tensor, Tensor]:
        gates, spans, size = gates_of(cell), spans_of(sizes, back), first_CBH.size(2)
        states_PH = from_input_PG.new_empty(from_input_PG.size(0), size)
        kept_PK = from_input_PG.new_empty(from_input_PG.size(0), gates.num_kept * size)
        last_CBH = first_CBH.clone(memory_format=torch.contiguous_format)
        for span in spans:
            state = [slot_BH[: span.stop - span.start] for slot_BH in last_CBH]
            from_state_RG = torch.addmm(bias_G, state[0], weight_GH.t())
            gates.move(from_input_PG[span], from_state_RG, state, kept_PK[span])
            states_PH[span] = state[0]
        ctx.save_for_backward(weight_GH, first_CBH, states_PH, kept_PK)
        ctx.gates, ctx.spans = gates, spans
        return states_PH, last_CBH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        d_states_PH, d_last_CBH = grad_outputs
        weight_GH, first_CBH, states_PH, kept_PK = ctx.saved_tensors
        before_PH = states_before(states_PH, first_CBH[0], ctx.spans)
        d_input_PG = kept_PK.new_empty(kept_PK.size(0), weight_GH.size(0))
        d_state_PG = d_input_PG if ctx.gates.are_joined else torch.empty_like(d_input_PG)
        d_first_CBH = d_last_CBH.clone(memory_format=torch.contiguous_format)
        for span in reversed(ctx.spans):
            gradient = [slot_BH[: span.stop - span.start] for slot_BH in d_first_CBH]
            gradient[0].add_(d_states_PH[span])
            direct = ctx.gates.back(gradient, before_PH[span], kept_PK[span], d_input_PG[span], d_state_PG[span])
            if direct is None:
                torch.mm(d_state_PG[span], weight_GH, out=gradient[0])
            else:
                torch.addmm(direct, d_state_PG[span], weight_GH, out=gradient[0])
        d_weight_GH = torch.mm(d_state_PG.t(), before_PH)
        return None, d_input_PG, d_weight_GH, d_state_PG.sum(0), d_first_CBH, None, None


def run_attentive(
    cell: Cell,
    from_token_TBG: Tensor,
    first_CBH: Tensor,
    keys_BSA: Tensor,
    values_BSA: Tensor,
    joined_JH: Tensor,
    bias_J: Tensor,
    context_GA: Tensor,
    energy_A: Tensor,
    added_BS: Tensor | None,
    kept_B1: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop of `AttentiveCell`: states `(T, B, H)`, contexts `(T, B, A)`; weights `(T, B, S)` without a gradient.

    `joined_JH` gives the state's half of the gates and then the query.
    """
    outputs: tuple[Tensor, Tensor, Tensor] = RunAttentive.apply(  # pyright: ignore[reportAssignmentType]
        cell,
        from_token_TBG,
        first_CBH,
        keys_BSA,
        values_BSA,
        joined_JH,
        bias_J,
        context_GA,
        energy_A,
        added_BS,
        kept_B1,
    )
    return outputs


class RunAttentive(torch.autograd.Function):
    """Additive attention inside the loop. What tanh gives for each pair of places is made again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        from_token_TBG: Tensor,
        first_CBH: Tensor,
        keys_BSA: Tensor,
        values_BSA: Tensor,
        joined_JH: Tensor,
        bias_J: Tensor,
        context_GA: Tensor,
        energy_A: Tensor,
        added_BS: Tensor | None,
        kept_B1: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gates, num_steps, batch, num_gates = gates_of(cell), *from_token_TBG.shape
        places, size = values_BSA.shape[1:]
        states_TBH, contexts_TBA, queries_TBA = (from_token_TBG.new_empty(num_steps, batch, size) for _ in range(3))
        weights_TBS = from_token_TBG.new_empty(num_steps, batch, places)
        kept_TBK = from_token_TBG.new_empty(num_steps, batch, gates.num_kept * size)
        half, buffer_BSA = HalfTurn(keys_BSA), torch.empty_like(keys_BSA)
        state = [slot_BH.clone() for slot_BH in first_CBH]
        for step in range(num_steps):
            joined_BJ = torch.addmm(bias_J, state[0], joined_JH.t())
            queries_TBA[step] = joined_BJ[:, num_gates:]
            half.into(buffer_BSA, queries_TBA[step])
            # tanh is 1 - 2 * half, and what is the same at all places does not move the softmax.
            energy_BS = torch.mv(buffer_BSA.view(-1, size), energy_A).view(batch, places).mul_(-2)
            if added_BS is not None:
                energy_BS.add_(added_BS)
            torch.softmax(energy_BS, dim=-1, out=weights_TBS[step])
            if kept_B1 is not None:
                weights_TBS[step].mul_(kept_B1)
            torch.bmm(weights_TBS[step, :, None], values_BSA, out=contexts_TBA[step, :, None])
            from_input_BG = torch.addmm(from_token_TBG[step], contexts_TBA[step], context_GA.t())
            gates.move(from_input_BG, joined_BJ[:, :num_gates], state, kept_TBK[step])
            states_TBH[step] = state[0]
        ctx.mark_non_differentiable(weights_TBS)
        ctx.gates = gates
        ctx.save_for_backward(
            first_CBH,
            keys_BSA,
            values_BSA,
            joined_JH,
            context_GA,
            energy_A,
            states_TBH,
            contexts_TBA,
            queries_TBA,
            weights_TBS,
            kept_TBK,
        )
        return states_TBH, contexts_TBA, weights_TBS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        d_states_TBH, d_contexts_TBA, _ = grad_outputs
        first_CBH, keys_BSA, values_BSA, joined_JH, context_GA, energy_A = ctx.saved_tensors[:6]
        states_TBH, contexts_TBA, queries_TBA, weights_TBS, kept_TBK = ctx.saved_tensors[6:]
        num_steps, batch, _ = states_TBH.shape
        num_gates = context_GA.size(0)
        before_TBH = torch.cat([first_CBH[:1], states_TBH[:-1]])
        d_joined_TBJ = states_TBH.new_empty(num_steps, batch, joined_JH.size(0))
        d_input_TBG = states_TBH.new_empty(num_steps, batch, num_gates)
        d_contexts_TBA = d_contexts_TBA.clone(memory_format=torch.contiguous_format)
        gradient = [torch.zeros_like(slot_BH) for slot_BH in first_CBH]
        look = LookBack(keys_BSA, values_BSA, energy_A)
        for step in reversed(range(num_steps)):
            gradient[0].add_(d_states_TBH[step])
            d_state_BG = d_joined_TBJ[step, :, :num_gates]
            direct = ctx.gates.back(gradient, before_TBH[step], kept_TBK[step], d_input_TBG[step], d_state_BG)
            if ctx.gates.are_joined:
                d_state_BG.copy_(d_input_TBG[step])
            d_contexts_TBA[step].addmm_(d_input_TBG[step], context_GA)
            d_query_BA = look.back(queries_TBA[step], weights_TBS[step], d_contexts_TBA[step])
            d_joined_TBJ[step, :, num_gates:] = d_query_BA
            d_hidden_BH = torch.mm(d_joined_TBJ[step], joined_JH)
            gradient[0] = d_hidden_BH if direct is None else d_hidden_BH.add_(direct)
        d_joined_PJ, d_input_PG = d_joined_TBJ.flatten(0, 1), d_input_TBG.flatten(0, 1)
        d_joined_JH = torch.mm(d_joined_PJ.t(), before_TBH.flatten(0, 1))
        d_context_GA = torch.mm(d_input_PG.t(), contexts_TBA.flatten(0, 1))
        d_values_BSA = torch.bmm(weights_TBS.permute(1, 2, 0), d_contexts_TBA.transpose(0, 1))
        d_keys_BSA, d_energy_A = look.gradients()
        d_first_CBH = torch.stack(gradient)
        d_weights = (d_joined_JH, d_joined_PJ.sum(0), d_context_GA, d_energy_A)
        return None, d_input_TBG, d_first_CBH, d_keys_BSA, d_values_BSA, *d_weights, None, None


class LookBack:
    """Gradient of the additive attention, step by step; that of keys and energies is added up on the way."""

    def __init__(self, keys_BSA: Tensor, values_BSA: Tensor, energy_A: Tensor) -> None:
        self.half, self.buffer_BSA = HalfTurn(keys_BSA), torch.empty_like(keys_BSA)
        self.values_BSA, self.energy_A = values_BSA, energy_A
        self.d_keys_BSA, self.d_energy_A = torch.zeros_like(keys_BSA), torch.zeros_like(energy_A)

    def back(self, query_BA: Tensor, weights_BS: Tensor, d_context_BA: Tensor) -> Tensor:
        """The query's gradient, `(B, A)`."""
        d_weights_BS = torch.bmm(self.values_BSA, d_context_BA[:, :, None]).squeeze(2)
        d_energy_BS = torch.ops.aten._softmax_backward_data(d_weights_BS, weights_BS, -1, weights_BS.dtype)
        self.half.into(self.buffer_BSA, query_BA)
        self.d_energy_A.addmv_(self.buffer_BSA.view(-1, self.energy_A.numel()).t(), d_energy_BS.view(-1), alpha=-2)
        # tanh' is 4 * half * (1 - half).
        slope_BSA = self.buffer_BSA.addcmul_(self.buffer_BSA, self.buffer_BSA, value=-1)
        self.d_keys_BSA.addcmul_(slope_BSA, d_energy_BS[:, :, None])
        return torch.bmm(d_energy_BS[:, None], slope_BSA).squeeze(1).mul_(4 * self.energy_A)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of the keys, `(B, S, A)`, and of the energies' weights, `(A,)`."""
        return self.d_keys_BSA.mul_(4 * self.energy_A), self.d_energy_A


class HalfTurn:
    """(1 - tanh(q + k)) / 2 = 1 / (1 + exp(2 q) exp(2 k)) for all pairs.

    So two quick operations stand in the place of a slow one. The exponentials of keys are made once. Where an exponent
    is so large that a product could overflow, the sum is taken first, as the formula reads.
    """

    def __init__(self, keys_BSA: Tensor) -> None:
        self.keys_BSA = keys_BSA
        self.one = keys_BSA.new_ones(())
        doubled_BSA = 2 * keys_BSA
        self.maybe_exp_BSA = doubled_BSA.exp_() if is_small(doubled_BSA) else None

    def into(self, out_BSA: Tensor, query_BA: Tensor) -> None:
        """Fill `out_BSA` for the queries of one step."""
        doubled_BA = 2 * query_BA
        if self.maybe_exp_BSA is not None and is_small(doubled_BA):
            torch.addcmul(self.one, self.maybe_exp_BSA, doubled_BA.exp_()[:, None], out=out_BSA).reciprocal_()
        else:
            torch.add(self.keys_BSA, query_BA[:, None], out=out_BSA).mul_(-2).sigmoid_()


def is_small(exponents: Tensor) -> bool:
    """Whether products of two such exponentials are safe; not so where one is no number."""
    lowest, highest = exponents.aminmax()
    return bool(lowest >= -WIDEST_EXPONENT) and bool(highest <= WIDEST_EXPONENT)
