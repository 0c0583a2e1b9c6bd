"""Attention in loops, float64: "Attention Is All You Need", section 3.2, one number at a time."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def attend_by_loops(query: Floats, key: Floats, value: Floats, allowed: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """One head of one sentence: queries (T, H), keys and values (S, H), allowed (T, S).

    Gives the attended values (T, H) and the weights (T, S). A query that may look nowhere gets zeros.
    """
    num_queries, head_size = query.shape
    num_keys = key.shape[0]
    attended = np.zeros((num_queries, value.shape[1]))
    weights = np.zeros((num_queries, num_keys))
    for i in range(num_queries):
        scores: dict[int, float] = {}
        for j in range(num_keys):
            if allowed[i, j]:
                product = sum(float(query[i, h]) * float(key[j, h]) for h in range(head_size))
                scores[j] = product / math.sqrt(head_size)
        if not scores:
            continue
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            weights[i, j] = math.exp(score) / total
            for h in range(value.shape[1]):
                attended[i, h] += weights[i, j] * float(value[j, h])
    return attended, weights
