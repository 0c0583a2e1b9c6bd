"""The best continuations of a sentence's rows, without sorting K x V numbers.

In: log-probabilities of R = B x K rows over V tokens and the sums of the rows so far. Out: for each sentence the best
(row, token) pairs by sum, ties to the lower row and then to the lower token: what a sentence gets never depends on
other sentences. Only blocks of the vocabulary whose maximum is among the best maxima are looked into.

Letters: B sentences, K rows of a sentence, V vocabulary, C candidates, M blocks of a row, L tokens of a block.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from malmoi.decoding.interface import Best
from malmoi.errors import CheckpointError

BLOCK = 64
"""Tokens whose maximum is taken at once."""

NOT_NUMBERS = "the model's log-probabilities are not numbers (NaN): its weights are damaged"

SMALL = 2048
"""Up to so many candidates per sentence, blocks do not pay."""


@dataclass(frozen=True)
class Candidates:
    """Best first. Places that no continuation fills have a total of minus infinity, and then row and id mean nothing.

    `totals_BC` are sums with the token's log-probability, `log_probs_BC` the token's alone, both float64.
    """

    totals_BC: NDArray[np.float64]
    log_probs_BC: NDArray[np.float64]
    rows_BC: NDArray[np.int64]
    ids_BC: NDArray[np.int64]


def best_candidates(log_probs_RV: Tensor, totals_BK: Tensor, num_candidates: int) -> Candidates:
    """The `num_candidates` best continuations of each sentence, fewer where K x V is less.

    `log_probs_RV` holds minus infinity for what is not allowed, `totals_BK` (float64) for rows that are not alive.
    Raises `CheckpointError` where a log-probability is not a number.
    """
    num_sentences, width = totals_BK.shape
    size = log_probs_RV.size(1)
    log_probs_BKV = log_probs_RV.view(num_sentences, width, size)
    if width * size <= SMALL:
        sums_BX = (log_probs_BKV.double() + totals_BK[..., None]).flatten(1)
        best_BC, places_BC = stable_topk(sums_BX, num_candidates)
        rows_BC, ids_BC = places_BC // size, places_BC % size
    else:
        best_BC, rows_BC, ids_BC = search_blocks(log_probs_BKV, totals_BK, num_candidates)
    places_BC = rows_BC * size + ids_BC
    picked_BC = log_probs_RV.view(num_sentences, width * size).gather(1, places_BC)
    totals = best_BC.cpu().numpy()
    check_numbers(totals)
    return Candidates(totals, picked_BC.double().cpu().numpy(), rows_BC.cpu().numpy(), ids_BC.cpu().numpy())


def merge_best(best: Best, alive: NDArray[np.int64], totals_BK: NDArray[np.float64], num_candidates: int) -> Candidates:
    """The same from what a scorer chose in the rows with the numbers `alive`: `num_candidates` of each, or all."""
    num_sentences, width = totals_BK.shape
    log_probs_RC, ids_RC = best.log_probs_RC, best.ids_RC
    if np.isnan(log_probs_RC.sum()):
        raise CheckpointError(NOT_NUMBERS)
    count = log_probs_RC.shape[1]
    if len(alive) < num_sentences * width:
        log_probs_RC = np.full((num_sentences * width, count), -np.inf)
        ids_RC = np.zeros((num_sentences * width, count), dtype=np.int64)
        log_probs_RC[alive], ids_RC[alive] = best.log_probs_RC, best.ids_RC
    log_probs_BX = log_probs_RC.reshape(num_sentences, -1)
    sums_BX = log_probs_BX + totals_BK.repeat(count, axis=1)
    # Candidates of a sentence stand in the order of rows and ids, so that ties keep it.
    places_BC = (-sums_BX).argsort(axis=1, kind="stable")[:, :num_candidates]
    flat_BC = places_BC + (np.arange(num_sentences) * (width * count))[:, None]
    return Candidates(
        sums_BX.ravel()[flat_BC], log_probs_BX.ravel()[flat_BC], places_BC // count, ids_RC.ravel()[flat_BC]
    )


def search_blocks(log_probs_BKV: Tensor, totals_BK: Tensor, num_candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, rows and ids of the best candidates, from the best blocks alone.

    The C best candidates lie in the C blocks with the best maxima (ties to the earlier block): each block before a
    candidate's own holds something that comes before the candidate.
    """
    num_sentences, size = log_probs_BKV.size(0), log_probs_BKV.size(2)
    num_blocks = -(-size // BLOCK)
    maxima_BKM = block_maxima(log_probs_BKV).double() + totals_BK[..., None]
    _, blocks_BC = stable_topk(maxima_BKM.flatten(1), num_candidates)
    blocks_BC = blocks_BC.sort(1).values
    rows_BC = blocks_BC // num_blocks
    offsets_L = torch.arange(BLOCK, device=blocks_BC.device)
    ids_BCL = (blocks_BC % num_blocks * BLOCK)[..., None] + offsets_L
    places_BCL = rows_BC[..., None] * size + ids_BCL.clamp(max=size - 1)
    inside_BX = log_probs_BKV.reshape(num_sentences, -1).gather(1, places_BCL.flatten(1)).double()
    sums_BCL = inside_BX.view_as(ids_BCL) + totals_BK.gather(1, rows_BC)[..., None]
    # The last block may reach past the vocabulary.
    sums_BCL = sums_BCL.masked_fill(ids_BCL >= size, -torch.inf)
    best_BC, inside_BC = stable_topk(sums_BCL.flatten(1), num_candidates)
    return best_BC, rows_BC.gather(1, inside_BC // BLOCK), places_BCL.flatten(1).gather(1, inside_BC) % size


def block_maxima(log_probs_BKV: Tensor) -> Tensor:
    """The maximum of each block of `BLOCK` tokens; the last block may be shorter."""
    size = log_probs_BKV.size(-1)
    whole = size // BLOCK * BLOCK
    maxima_BKM = log_probs_BKV[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole == size:
        return maxima_BKM
    return torch.cat([maxima_BKM, log_probs_BKV[..., whole:].amax(-1, keepdim=True)], dim=-1)


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
    places_RC, order_RC = places_RC.sort(1)
    top_RC, order_again_RC = top_RC.gather(1, order_RC).sort(dim=1, descending=True, stable=True)
    places_RC = places_RC.gather(1, order_again_RC)
    if bool(torn_R.any()):
        sorted_RX, sorted_places_RX = values_RX[torn_R].sort(dim=1, descending=True, stable=True)
        top_RC[torn_R] = sorted_RX[:, :count]
        places_RC[torn_R] = sorted_places_RX[:, :count]
    return top_RC, places_RC


def check_numbers(totals: NDArray[np.float64]) -> None:
    """Refuse sums that a damaged model spoilt."""
    if np.isnan(totals).any():
        raise CheckpointError(NOT_NUMBERS)
