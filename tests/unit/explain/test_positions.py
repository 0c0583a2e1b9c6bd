"""Positions: what is shown of them, and that attention without them cannot tell order."""

import numpy as np
import pytest
import torch

from malmoi.config.model import ModelConfig
from malmoi.explain.positions import compare_order, encoding, reorder
from malmoi.explain.words import Side
from malmoi.models.positions import sines_and_cosines
from reference.models import RNNS, TRANSFORMERS, build, small_rnn, small_transformer

JOHN = Side(
    (2, 3, 4, 1),
    ("▁John", "▁loves", "▁Sarah", "</s>"),
    ("John", "loves", "Sarah", "</s>"),
    ((0, 1), (1, 2), (2, 3), (3, 4)),
)
ORDERED = {name: config for name, config in TRANSFORMERS.items() if config.positions != "none"}


def test_the_sentence_the_other_way_round() -> None:
    assert reorder(JOHN) == ((4, 3, 2, 1), "Sarah loves John")
    word = Side((5, 6, 7, 1), ("c", "a", "t", "</s>"), ("cat", "</s>"), ((0, 3), (3, 4)))
    assert reorder(word) == ((7, 6, 5, 1), "tac")


@pytest.mark.parametrize("config", ORDERED.values(), ids=ORDERED)
def test_without_positions_both_sentences_are_the_same_set_of_vectors(config: ModelConfig) -> None:
    network = build(config, dtype=torch.float32)
    before = {name: values.clone() for name, values in network.state_dict().items()}
    order = compare_order(network, JOHN, "John loves Sarah", *reorder(JOHN))
    assert order.is_reordering and order.without_positions is not None
    assert np.abs(order.without_positions).max() < 1e-5
    assert order.with_positions.max() > 1e-2
    # The network itself keeps its positions.
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    again = compare_order(network, JOHN, "John loves Sarah", *reorder(JOHN))
    assert np.array_equal(again.with_positions, order.with_positions)


def test_a_recurrent_system_has_no_positions_to_switch_off() -> None:
    order = compare_order(build(RNNS["rnn-dot-gru"], dtype=torch.float32), JOHN, "a", *reorder(JOHN))
    assert order.without_positions is None
    assert order.with_positions.max() > 1e-3


def test_other_words_are_told_from_another_order() -> None:
    network = build(small_transformer(), dtype=torch.float32)
    order = compare_order(network, JOHN, "John loves Sarah", (2, 3, 5, 1), "John loves Peter")
    assert not order.is_reordering
    assert np.isnan(order.with_positions).tolist() == [False, False, True, False]
    assert not compare_order(network, JOHN, "a", JOHN.ids, "a").is_reordering


def test_the_encoding_of_each_kind() -> None:
    found = encoding(build(small_transformer(), dtype=torch.float32), 40)
    assert found is not None and found.kind == "sinusoidal"
    assert np.allclose(found.table, sines_and_cosines(40, 8).numpy(), atol=1e-6)
    assert np.allclose(np.diag(found.similarity), 1.0, atol=1e-5)
    # All that matters between two places is how far apart they are.
    assert np.allclose(found.similarity[0, 3], found.similarity[20, 23], atol=1e-5)
    learned = encoding(build(small_transformer(positions="learned")), 40)
    assert learned is not None and learned.table.shape == (16, 8)
    rotary = encoding(build(small_transformer(positions="rotary")), 5)
    assert rotary is not None and rotary.table.shape == (32, 4)
    relative = encoding(build(small_transformer(positions="relative")), 5)
    assert relative is not None and (relative.first, relative.table.shape) == (-3, (7, 4))
    assert encoding(build(small_transformer(positions="none")), 5) is None
    assert encoding(build(small_rnn()), 5) is None
