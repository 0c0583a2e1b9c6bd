"""The best continuations of a sentence's rows, without sorting K x V numbers.

In: log-probabilities of R = B x K rows over V tokens and the sums of the rows so far. Out: for each sentence the best
(row, token) pairs by sum, ties to the lower row and then to the lower token: what a sentence gets never depends on
other sentences. Only blocks of the vocabulary whose maximum is among the best maxima are looked into.

Letters: B sentences, K rows of a sentence, V vocabulary, C candidates, M blocks of a row, L tokens of a block.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.interface import NOT_NUMBERS, Best, Candidates, Floats, Integers, Numbers
from malmoi.errors import CheckpointError

Number = TypeVar("Number", bound=np.floating[Any])

BLOCK = 64
"""Tokens whose maximum is taken at once."""

SMALL = 2048
"""Up to so many candidates per sentence, blocks do not pay."""


def best_candidates(log_probs_RV: Numbers, totals_BK: Floats, num_candidates: int) -> Candidates:
    """The `num_candidates` best continuations of each sentence, fewer where K x V is less.

    `log_probs_RV` holds minus infinity for what is not allowed, `totals_BK` for rows that are not alive.
    Raises `CheckpointError` where a log-probability is not a number.
    """
    num_sentences, width = totals_BK.shape
    size = log_probs_RV.shape[1]
    log_probs_BKV = log_probs_RV.reshape(num_sentences, width, size)
    if width * size <= SMALL:
        sums_BX = (log_probs_BKV + totals_BK[..., None]).reshape(num_sentences, -1)
        best_BC, places_BC = stable_topk(sums_BX, num_candidates)
        rows_BC, ids_BC = places_BC // size, places_BC % size
    else:
        best_BC, rows_BC, ids_BC = search_blocks(log_probs_BKV, totals_BK, num_candidates)
    check_numbers(best_BC)
    picked_BC = log_probs_BKV[np.arange(num_sentences)[:, None], rows_BC, ids_BC]
    return Candidates(best_BC, picked_BC.astype(np.float64), rows_BC, ids_BC)


def merge_best(best: Best, maybe_alive: Integers | None, totals_BK: Floats, num_candidates: int) -> Candidates:
    """The same from what a scorer chose in the rows with the numbers `maybe_alive`, None for all: `num_candidates` of
    each, or all tokens."""
    num_sentences, width = totals_BK.shape
    log_probs_RC, ids_RC = best.log_probs_RC, best.ids_RC
    count = log_probs_RC.shape[1]
    if maybe_alive is not None:
        log_probs_RC = np.full((num_sentences * width, count), -np.inf)
        ids_RC = np.zeros((num_sentences * width, count), dtype=np.int64)
        log_probs_RC[maybe_alive], ids_RC[maybe_alive] = best.log_probs_RC, best.ids_RC
    sums_RC = log_probs_RC + totals_BK.reshape(-1, 1)
    sums_BX = sums_RC.reshape(num_sentences, width * count)
    # Candidates of a sentence stand in the order of rows and ids, so that ties keep it.
    places_BC = (-sums_BX).argsort(axis=1, kind="stable")[:, :num_candidates]
    flat_BC = places_BC
    if num_sentences > 1:
        flat_BC = places_BC + (np.arange(num_sentences) * (width * count))[:, None]
    return Candidates(
        sums_RC.ravel().take(flat_BC),
        log_probs_RC.ravel().take(flat_BC),
        places_BC // count,
        ids_RC.ravel().take(flat_BC),
    )


def search_blocks(log_probs_BKV: Numbers, totals_BK: Floats, num_candidates: int) -> tuple[Floats, Integers, Integers]:
    """Sums, rows and ids of the best candidates, from the best blocks alone.

    The C best candidates lie in the C blocks with the best maxima (ties to the earlier block): each block before a
    candidate's own holds something that comes before the candidate.
    """
    num_sentences, _, size = log_probs_BKV.shape
    num_blocks = -(-size // BLOCK)
    maxima_BKM = block_maxima(log_probs_BKV) + totals_BK[..., None]
    _, blocks_BC = stable_topk(maxima_BKM.reshape(num_sentences, -1), num_candidates)
    blocks_BC.sort(axis=1)
    rows_BC1 = (blocks_BC // num_blocks)[..., None]
    ids_BCL = (blocks_BC % num_blocks * BLOCK)[..., None] + np.arange(BLOCK)
    sentences_B11 = np.arange(num_sentences)[:, None, None]
    inside_BCL = log_probs_BKV[sentences_B11, rows_BC1, ids_BCL.clip(max=size - 1)]
    # The last block may reach past the vocabulary.
    sums_BCL = np.where(ids_BCL < size, inside_BCL + totals_BK[sentences_B11, rows_BC1], -np.inf)
    best_BC, places_BC = stable_topk(sums_BCL.reshape(num_sentences, -1), num_candidates)
    ids_BC = np.take_along_axis(ids_BCL.reshape(num_sentences, -1), places_BC, 1).clip(max=size - 1)
    return best_BC, np.take_along_axis(rows_BC1[..., 0], places_BC // BLOCK, 1), ids_BC


def block_maxima(log_probs_BKV: Numbers) -> Numbers:
    """The maximum of each block of `BLOCK` tokens; the last block may be shorter."""
    size = log_probs_BKV.shape[-1]
    whole = size // BLOCK * BLOCK
    blocks_BKML = log_probs_BKV[..., :whole].reshape(*log_probs_BKV.shape[:-1], whole // BLOCK, BLOCK)
    maxima_BKM = blocks_BKML.max(axis=-1)
    if whole == size:
        return maxima_BKM
    return np.concatenate([maxima_BKM, log_probs_BKV[..., whole:].max(axis=-1, keepdims=True)], axis=-1)


def stable_topk(values_RX: NDArray[Number], count: int) -> tuple[NDArray[Number], Integers]:
    """The `count` largest values of each row and their places, ties to the lower place; fewer where X is less.

    A partition leaves open which of several equal values it takes; rows where that matters are sorted instead.
    """
    size = values_RX.shape[1]
    count = min(count, size)
    places_RC = values_RX.argpartition(size - count, axis=1)[:, size - count :]
    places_RC.sort(axis=1)
    top_RC = np.take_along_axis(values_RX, places_RC, 1)
    least_R1 = top_RC.min(axis=1, keepdims=True)
    num_equal_R = np.count_nonzero(values_RX == least_R1, axis=1)
    num_taken_R = np.count_nonzero(top_RC == least_R1, axis=1)
    order_RC = (-top_RC).argsort(axis=1, kind="stable")
    places_RC = np.take_along_axis(places_RC, order_RC, 1)
    torn_R = (num_equal_R > num_taken_R) & (least_R1[:, 0] > -np.inf)
    if torn_R.any():
        places_RC[torn_R] = (-values_RX[torn_R]).argsort(axis=1, kind="stable")[:, :count]
    return np.take_along_axis(values_RX, places_RC, 1), places_RC


def check_numbers(totals: Floats) -> None:
    """Refuse sums that a damaged model spoilt."""
    if np.isnan(totals).any():
        raise CheckpointError(NOT_NUMBERS)
