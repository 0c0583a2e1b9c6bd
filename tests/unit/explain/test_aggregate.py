"""Rollout, against loops over paths."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from malmoi.explain.aggregate import mean_of_heads, rollout, rollout_decoder


def random_rows(*shape: int) -> NDArray[np.float32]:
    weights = np.random.default_rng(sum(shape)).random(shape, dtype=np.float32)
    return weights / weights.sum(-1, keepdims=True)


def test_rollout_is_the_sum_over_all_paths() -> None:
    """Each layer either stays at its place or goes where attention looks, half and half."""
    layers = random_rows(3, 4, 4)
    steps = [(layer + np.eye(4)) / 2 for layer in layers]
    found = rollout(layers)
    for end, start in product(range(4), range(4)):
        paths = product(range(4), range(4))
        expected = sum(steps[2][end, b] * steps[1][b, a] * steps[0][a, start] for b, a in paths)
        assert abs(found[end, start] - expected) < 1e-6
    assert np.allclose(found.sum(1), 1.0)


def test_the_decoders_rollout_says_where_all_of_a_place_came_from() -> None:
    own = np.tril(random_rows(2, 3, 3))
    own /= own.sum(-1, keepdims=True)
    cross, encoder = random_rows(2, 3, 4), random_rows(4, 4)
    from_target, from_source = rollout_decoder(own, cross, encoder)
    assert np.allclose(from_target.sum(1) + from_source.sum(1), 1.0)
    assert not np.triu(from_target, 1).any()
    # One layer by hand: half of half stays, half comes from the source.
    one_target, one_source = rollout_decoder(own[:1], cross[:1], encoder)
    assert np.allclose(one_target, (own[0] + np.eye(3)) / 4)
    assert np.allclose(one_source, cross[0] @ encoder / 2)


def test_layers_are_found_by_name_in_their_order() -> None:
    weights = {f"encoder.{layer}.self": np.full((2, 1, 1), layer, dtype=np.float32) for layer in range(12)}
    weights["decoder.0.self"] = np.zeros((2, 1, 1), dtype=np.float32)
    stacked = mean_of_heads(weights, "encoder", "self")
    assert stacked is not None and stacked[:, 0, 0].tolist() == list(range(12))
    assert mean_of_heads(weights, "decoder", "cross") is None
