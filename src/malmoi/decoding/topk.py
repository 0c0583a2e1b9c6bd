"""The best tokens of each row, chosen where the log-probabilities lie, without sorting V numbers.

In: log-probabilities of rows, on any device. Out: for each row its best tokens in the order of their ids. Only blocks
of the vocabulary whose maximum is among the best maxima are looked into. For arrays see `candidates.py`.

Letters: R rows, V vocabulary, C candidates, M blocks of a row, L tokens of a block.
"""

import torch
from torch import Tensor

BLOCK = 64
"""Tokens whose maximum is taken at once."""


def best_of_rows(log_probs_RV: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of the `num_candidates` best tokens of each row, fewer where V is less, by their ids.

    Of equal ones those with the lower ids are among them.
    """
    size = log_probs_RV.size(1)
    if num_candidates * BLOCK >= size:
        values_RC, ids_RC = stable_topk(log_probs_RV, num_candidates)
    else:
        values_RC, ids_RC = search_blocks(log_probs_RV, num_candidates)
    ids_RC, order_RC = ids_RC.sort(1)
    return values_RC.gather(1, order_RC), ids_RC


def search_blocks(log_probs_RV: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """The C best tokens lie in the C blocks with the best maxima (ties to the earlier block)."""
    size = log_probs_RV.size(1)
    whole = size // BLOCK * BLOCK
    maxima_RM = log_probs_RV[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)
    if whole < size:
        maxima_RM = torch.cat([maxima_RM, log_probs_RV[:, whole:].amax(1, keepdim=True)], dim=1)
    blocks_RC = stable_topk(maxima_RM, num_candidates)[1].sort(1).values
    ids_RCL = blocks_RC[..., None] * BLOCK + torch.arange(BLOCK, device=log_probs_RV.device)
    ids_RX = ids_RCL.flatten(1)
    # The last block may reach past the vocabulary.
    inside_RX = log_probs_RV.gather(1, ids_RX.clamp(max=size - 1)).masked_fill(ids_RX >= size, -torch.inf)
    values_RC, places_RC = stable_topk(inside_RX, num_candidates)
    return values_RC, ids_RX.gather(1, places_RC).clamp(max=size - 1)


def stable_topk(values_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row and their places, ties to the lower place; fewer where X is less.

    `torch.topk` leaves open which of several equal values it takes; rows where that matters are sorted instead.
    """
    count = min(count, values_RX.size(1))
    top_RC, places_RC = values_RX.topk(count, dim=1)
    least_R1 = top_RC[:, -1:]
    num_equal_R = torch.count_nonzero(values_RX == least_R1, dim=1)
    num_taken_R = torch.count_nonzero(top_RC == least_R1, dim=1)
    torn_R = (num_equal_R > num_taken_R) & (least_R1[:, 0] > -torch.inf)
    if bool(torn_R.any()):
        sorted_RX, sorted_places_RX = values_RX[torn_R].sort(dim=1, descending=True, stable=True)
        top_RC[torn_R] = sorted_RX[:, :count]
        places_RC[torn_R] = sorted_places_RX[:, :count]
    return top_RC, places_RC
