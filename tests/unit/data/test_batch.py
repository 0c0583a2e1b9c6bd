"""Batches: padding never means anything, and no pair is lost when a batch is cut."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from malmoi.data.batch import Batch, BatchMaker, batch_of_rows, collate, cut
from malmoi.data.store import Store, StoreWriter
from malmoi.text.tokenizer import Tokenizers, train_tokenizer

PADDING, START = 50, 60


def write_store(folder: Path, pairs: list[tuple[list[int], list[int]]], first_line: int = 1) -> Store:
    with StoreWriter(folder, 50, 60) as writer:
        writer.add(
            np.array([index for source, _ in pairs for index in source]),
            np.array([len(source) for source, _ in pairs]),
            np.array([index for _, target in pairs for index in target]),
            np.array([len(target) for _, target in pairs]),
            np.arange(first_line, first_line + len(pairs)),
        )
        writer.finish(key=folder.name, description="test", inputs={}, tokenizers="", weight=1.0, cleaning={})
    return Store.open(folder)


PAIRS = [([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 1]), ([1], [1])]


def test_collate(tmp_path: Path) -> None:
    batch = collate([write_store(tmp_path / "store", PAIRS)], np.array([1, 0, 2]), PADDING, START)
    assert batch.source_BS.tolist() == [[9, 1, 50, 50], [5, 6, 7, 1], [1, 50, 50, 50]]
    assert batch.target_output_BT.tolist() == [[10, 11, 12, 1], [8, 1, 60, 60], [1, 60, 60, 60]]
    assert batch.target_input_BT.tolist() == [[60, 10, 11, 12], [60, 8, 60, 60], [60, 60, 60, 60]]
    assert batch.source_lengths_B.tolist() == [2, 4, 1]
    assert batch.target_lengths_B.tolist() == [4, 2, 1]
    assert batch.lines_B.tolist() == [2, 1, 3]
    assert batch.num_target_tokens == 7
    assert batch.source_BS.dtype == batch.target_lengths_B.dtype == torch.int64


def test_end_symbols_are_counted() -> None:
    """Real places are told by length, so the end symbol is always one of them: three words give four labels.

    huggingface/trl#6357, NVIDIA-NeMo/Megatron-Bridge#4660, NVIDIA-NeMo/Automodel#1336.
    """
    for padding in (1, 0, 60):
        batch = batch_of_rows([[5, 1], [5, 1]], [[7, 8, 9, 1], [7, 1]], np.array([1, 2]), padding, padding)
        real = torch.arange(4)[None, :] < batch.target_lengths_B[:, None]
        assert batch.target_output_BT[real].tolist() == [7, 8, 9, 1, 7, 1]
        assert batch.num_target_tokens == 6


def test_indices_count_through_all_stores(tmp_path: Path) -> None:
    first = write_store(tmp_path / "first", PAIRS)
    second = write_store(tmp_path / "second", [([20, 21, 1], [22, 1])], first_line=100)
    empty = write_store(tmp_path / "empty", [])
    batch = collate([first, empty, second], np.array([3, 0]), PADDING, START)
    assert batch.source_BS.tolist() == [[20, 21, 1, 50], [5, 6, 7, 1]]
    assert batch.lines_B.tolist() == [100, 1]
    for wrong in (4, -1):
        with pytest.raises(IndexError):
            collate([first, second], np.array([wrong]), PADDING, START)


lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@given(lengths, st.integers(1, 40))
def test_split_keeps_every_pair_and_the_limit(sizes: list[tuple[int, int]], max_tokens: int) -> None:
    sources = [[2 + row] * (source - 1) + [1] for row, (source, _) in enumerate(sizes)]
    targets = [[3 + row] * (target - 1) + [1] for row, (_, target) in enumerate(sizes)]
    batch = batch_of_rows(sources, targets, np.arange(len(sizes)), PADDING, START)
    parts = batch.split(max_tokens)
    assert np.concatenate([part.lines_B for part in parts]).tolist() == list(range(len(sizes)))
    assert sum(part.num_target_tokens for part in parts) == batch.num_target_tokens
    for part in parts:
        cost = part.num_pairs * max(part.source_BS.shape[1], part.target_output_BT.shape[1])
        assert cost <= max_tokens or part.num_pairs == 1
        # The same as if these pairs had been put together from the start.
        rows = part.lines_B.tolist()
        same = batch_of_rows(
            [sources[row] for row in rows], [targets[row] for row in rows], part.lines_B, PADDING, START
        )
        assert_equal(part, same)


def assert_equal(left: Batch, right: Batch) -> None:
    for name in ("source_BS", "source_lengths_B", "target_input_BT", "target_output_BT", "target_lengths_B"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist(), name
    assert left.lines_B.tolist() == right.lines_B.tolist()


def test_split_without_a_limit_is_the_batch_itself() -> None:
    batch = batch_of_rows([[1]], [[1]], np.array([1]), PADDING, START)
    assert batch.split(0) == [batch]
    assert batch.split(1)[0].source_BS is batch.source_BS


def slow_cut(costs: list[int], max_tokens: int) -> list[tuple[int, int]]:
    """Takes one after the other and looks at everything again each time."""
    bounds: list[tuple[int, int]] = []
    first = 0
    for last in range(1, len(costs) + 1):
        full = last == len(costs) or (last + 1 - first) * max(costs[first : last + 1]) > max_tokens
        if full:
            bounds.append((first, last))
            first = last
    return bounds


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(1, 60))
def test_cut_equals_the_slow_way(costs: list[int], max_tokens: int) -> None:
    assert list(cut(np.array(costs, dtype=np.int32), max_tokens)) == slow_cut(costs, max_tokens)


def test_cut_of_large_products_does_not_overflow() -> None:
    costs = np.full(70_000, 70_000, dtype=np.int32)
    assert list(cut(costs, 2**31 + 10)) == slow_bounds(len(costs), (2**31 + 10) // 70_000)


def slow_bounds(num_rows: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]


def test_to_moves_every_tensor() -> None:
    batch = batch_of_rows([[5, 1]], [[6, 7, 1]], np.array([4]), PADDING, START)
    moved = batch.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert (moved.num_target_tokens, moved.lines_B.tolist()) == (3, [4])


TEXTS = ["the little cat sleeps", "the little dog barks at the cat", "a big dog sleeps", "the cat barks"] * 5


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    bpe = train_tokenizer("bpe", TEXTS, vocabulary_size=320)
    return Tokenizers(bpe, train_tokenizer("words", TEXTS, vocabulary_size=100), shared=False)


@pytest.fixture
def text_store(tmp_path: Path, tokenizers: Tokenizers) -> Store:
    pairs = [([*tokenizers.encode_source(text), 1], [*tokenizers.encode_target(text), 1]) for text in TEXTS]
    return write_store(tmp_path / "texts", pairs)


def test_copies_to_cuda_are_pinned_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be told to a device that is not there."""
    batch, told = batch_of_rows([[5, 1]], [[6, 7, 1]], np.array([4]), PADDING, START), list[tuple[object, ...]]()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: told.append(("pin",)) or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *words, **named: told.append((*words, named)) or tensor)
    batch.to("cuda:0")
    assert told == [("pin",), ("cuda:0", {"non_blocking": True})] * 5


def test_sampling_depends_on_seed_epoch_and_position_alone(tokenizers: Tokenizers, text_store: Store) -> None:
    indices = np.arange(len(TEXTS))
    make = BatchMaker([text_store], tokenizers, seed=3, sampling=0.5)
    first = make(indices, 2, 7)
    make(indices, 5, 5)
    assert_equal(make(indices, 2, 7), first)
    others = [make(indices, 2, 8), make(indices, 3, 7), BatchMaker([text_store], tokenizers, 4, 0.5)(indices, 2, 7)]
    assert all(other.source_BS.tolist() != first.source_BS.tolist() for other in others)


def test_sampled_text_is_the_stored_text(tokenizers: Tokenizers, text_store: Store) -> None:
    batch = BatchMaker([text_store], tokenizers, seed=3, sampling=0.5)(np.arange(len(TEXTS)), 0, 0)
    plain = BatchMaker([text_store], tokenizers, seed=3)(np.arange(len(TEXTS)), 0, 0)
    assert int(batch.source_lengths_B.sum()) > int(plain.source_lengths_B.sum())
    for row, length in enumerate(batch.source_lengths_B.tolist()):
        ids = batch.source_BS[row, :length].tolist()
        assert tokenizers.source.decode(ids) == TEXTS[row]
        assert ids[-1] == 1
    # There is nothing to sample in whole words.
    assert batch.target_output_BT.tolist() == plain.target_output_BT.tolist()


def test_a_sampled_text_that_grows_too_long_keeps_its_ids(tokenizers: Tokenizers, text_store: Store) -> None:
    longest = int(text_store.source_lengths.max())
    batch = BatchMaker([text_store], tokenizers, seed=3, sampling=0.9, max_tokens=longest)(np.arange(len(TEXTS)), 0, 0)
    assert batch.source_BS.shape[1] <= longest


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 30])
def test_parts_of_a_batch_are_its_rows_once_and_drawn_alike(
    tokenizers: Tokenizers, text_store: Store, num_ranks: int
) -> None:
    """pytorch/pytorch#30599; espnet/espnet#2081; huggingface/datasets#3423: however many share a batch.

    The draws of sampling do not depend on the division; who has no row gets a batch without targets.
    """
    indices = np.arange(len(TEXTS))
    together = BatchMaker([text_store], tokenizers, seed=3, sampling=0.5)(indices, 2, 7)
    rows: dict[int, list[int]] = {}
    tokens = 0
    for rank in range(num_ranks):
        maker = BatchMaker([text_store], tokenizers, seed=3, sampling=0.5, part=slice(rank, None, num_ranks))
        part = maker(indices, 2, 7)
        tokens += part.num_target_tokens
        if part.num_target_tokens:
            assert not set(part.lines_B.tolist()) & set(rows)
            lengths = part.source_lengths_B.tolist()
            ids = [row[:length] for row, length in zip(part.source_BS.tolist(), lengths, strict=True)]
            rows |= dict(zip(part.lines_B.tolist(), ids, strict=True))
    assert tokens == together.num_target_tokens
    assert sorted(rows) == together.lines_B.tolist()
    for row, (line, length) in enumerate(
        zip(together.lines_B.tolist(), together.source_lengths_B.tolist(), strict=True)
    ):
        assert rows[line] == together.source_BS[row, :length].tolist()
