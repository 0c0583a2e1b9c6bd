"""Which sentence a row asks: blocks, places in them, and what is left when rows go."""

import pytest
import torch

from malmoi.models.rows import Cache, RowLayout
from reference.models import MODELS, build, draw_batch


@pytest.mark.parametrize("sentences", [[0, 0, 1, 1, 2, 2], [0, 1, 2], [2, 0, 0, 1], [1, 1, 1, 0], [2, 1, 0, 2, 1, 0]])
def test_grouping_can_be_undone(sentences: list[int]) -> None:
    sentence_R = torch.tensor(sentences)
    layout = RowLayout.build(sentence_R, 3)
    states_RD = torch.arange(len(sentences) * 2.0).view(-1, 2) + 1
    blocks_BKD = layout.group(states_RD)
    assert blocks_BKD.shape == (3, max(sentences.count(b) for b in range(3)), 2)
    assert torch.equal(layout.ungroup(blocks_BKD), states_RD)
    for sentence in range(3):
        mine = {tuple(row) for row in states_RD[sentence_R == sentence].tolist()}
        assert {tuple(row) for row in blocks_BKD[sentence].tolist() if row != [0, 0]} == mine


def test_full_blocks_in_order_are_not_copied() -> None:
    """The usual beam: queries are grouped by a view alone."""
    layout = RowLayout.build(torch.tensor([0, 0, 1, 1]), 2)
    states_RD = torch.randn(4, 3)
    assert layout.group(states_RD).data_ptr() == states_RD.data_ptr()
    moved, needed = layout.select(torch.tensor([1, 0, 3, 3]))
    assert moved is layout and needed is None
    assert layout.is_all_in_order(torch.arange(4)) and not layout.is_all_in_order(torch.tensor([1, 0, 2, 3]))


def test_sentences_without_rows_are_left_behind() -> None:
    layout = RowLayout.build(torch.tensor([0, 1, 2, 3]), 4)
    moved, needed = layout.select(torch.tensor([3, 1, 1]))
    assert needed is not None and needed.tolist() == [1, 3]
    assert moved.sentence_R.tolist() == [1, 0, 0] and moved.num_sentences == 2


def test_memory_shrinks_with_the_sentences() -> None:
    """To the sentences that live, and to the longest of them."""
    for name in ("transformer-sinusoidal-post", "rnn-additive-gru"):
        model = build(MODELS[name])
        source_BS, lengths_B, _ = draw_batch([3, 9, 4], 2)
        state = model.start(model.encode(source_BS, lengths_B), keep_attention=True)
        _, state = model.step(torch.full((3,), model.start_id), state)
        left = state.select(torch.tensor([2, 0, 2]))
        assert left.memory.num_sentences == 2  # type: ignore[attr-defined]
        assert left.attention_RS is not None and left.attention_RS.shape == (3, 4)


def test_caches_share_room_until_they_part() -> None:
    like = torch.empty(0)
    first = Cache.empty(1, 2, 3, like).extend()
    first.layer(0)[-1] = 1.0
    second = first.extend()
    second.layer(0)[-1] = 2.0
    third = first.extend()
    third.layer(0)[-1] = 3.0
    assert second.layer(0)[:, 0, 0, 0].tolist() == [1, 2]
    assert third.layer(0)[:, 0, 0, 0].tolist() == [1, 3]
    assert second.buffer is first.buffer and third.buffer is not first.buffer


def test_caches_of_different_lengths_end_together() -> None:
    like = torch.empty(0)
    caches: list[Cache] = []
    for length in (3, 1):
        cache = Cache.empty(1, 1, 1, like)
        for place in range(length):
            cache = cache.extend()
            cache.layer(0)[-1] = float(10 * length + place)
        caches.append(cache)
    joined = caches[0].append(caches[1])
    assert joined.layer(0)[:, 0, :, 0].T.tolist() == [[30, 31, 32], [0, 0, 10]]
    assert joined.start_R is not None and joined.start_R.tolist() == [0, 2]
    late = joined.select(torch.tensor([1, 1]))
    assert late.length == 1 and late.start_R is None
    assert late.layer(0)[:, 0, :, 0].tolist() == [[10, 10]]


def test_caches_grow_without_end() -> None:
    cache = Cache.empty(1, 1, 1, torch.empty(0))
    for place in range(100):
        cache = cache.extend()
        cache.layer(0)[-1] = float(place)
        if place % 30 == 0:
            cache = cache.select(torch.tensor([0]))
    assert cache.layer(0)[:, 0, 0, 0].tolist() == list(range(100))


def test_starts_move_with_the_places_that_are_left_behind() -> None:
    like = torch.empty(0)
    caches: list[Cache] = []
    for length in (4, 3, 1):
        cache = Cache.empty(1, 1, 1, like)
        for place in range(length):
            cache = cache.extend()
            cache.layer(0)[-1] = float(10 * length + place)
        caches.append(cache)
    left = caches[0].append(caches[1]).append(caches[2]).select(torch.tensor([2, 1]))
    assert left.length == 3
    assert left.start_R is not None and left.start_R.tolist() == [2, 0]
    assert left.layer(0)[:, 0, :, 0].T.tolist() == [[0, 0, 10], [30, 31, 32]]
