"""Corpora larger than a window, and weights that change: the reference's order, each pair as often as it should be."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tests.reference.order import Sizes, windows_of_epoch

from malmoi.config.text import Stage
from malmoi.data import batching
from malmoi.data.batch import Batch, collate
from malmoi.data.batching import BatchPlan, Place
from malmoi.data.store import FILES, IntArray, Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.errors import DataError

SMALL = Sizes(window_pairs=100, stretch_pairs=16, units=8, pool_batches=3)
LARGE = Sizes(window_pairs=10_000, stretch_pairs=16, units=8, pool_batches=3)
Lengths = list[tuple[int, int]]


def random_lengths(count: int, seed: int) -> Lengths:
    generator = np.random.default_rng(seed)
    return [(int(a), int(b)) for a, b in generator.integers(2, 20, (count, 2))]


def write_store(folder: Path, lengths: Lengths, weight: float = 1.0) -> Store:
    """Ids of a pair tell its number."""
    with StoreWriter(folder, 5000, 5000) as writer:
        for number, (source, target) in enumerate(lengths):
            sides = np.full(source, 10 + number), np.full(target, 10 + number)
            writer.add(sides[0], np.array([source]), sides[1], np.array([target]), np.array([number + 1]))
        writer.finish(key=folder.name, description=folder.name, inputs={}, weight=weight, cleaning={})
    return Store.open(folder)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a hundred pairs."""
    set_sizes(monkeypatch, SMALL)


def set_sizes(monkeypatch: pytest.MonkeyPatch, sizes: Sizes) -> None:
    monkeypatch.setattr(batching, "WINDOW_PAIRS", sizes.window_pairs)
    monkeypatch.setattr(batching, "STRETCH_PAIRS", sizes.stretch_pairs)
    monkeypatch.setattr(batching, "UNITS", sizes.units)
    monkeypatch.setattr(batching, "POOL_BATCHES", sizes.pool_batches)


@pytest.fixture
def stores(tmp_path: Path) -> list[Store]:
    return [write_store(tmp_path / str(count), random_lengths(count, count)) for count in (230, 30, 170)]


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.3, 3.0, 1.25], [2.0, 0.0, 1 / 3], [0.07, 40.5, 0.0]])
@pytest.mark.parametrize("batch_tokens", [15, 60])
def test_the_order_is_that_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, stores: list[Store], sizes: Sizes, weights: list[float], batch_tokens: int
) -> None:
    """In one window and in several, with pairs that do not fit, in each of the first epochs."""
    set_sizes(monkeypatch, sizes)
    plan = BatchPlan(stores, batch_tokens, seed=7, weights=weights)
    lengths = [random_lengths(count, count) for count in (230, 30, 170)]
    for epoch in range(4):
        wanted = windows_of_epoch(lengths, weights, batch_tokens, 7, epoch, sizes)
        found = [plan.window(epoch, number) for number in range(plan.num_windows())]
        assert [[batch.tolist() for batch in window] for window in found] == wanted
        assert [batch.tolist() for batch in plan.epoch(epoch)] == [batch for window in wanted for batch in window]
    assert (plan.num_windows() > 1) == (sizes is SMALL)


def test_each_pair_once_and_windows_are_even_and_mixed(stores: list[Store]) -> None:
    plan = BatchPlan(stores, 60, seed=1)
    windows = [plan.window(3, number) for number in range(plan.num_windows())]
    assert len(windows) == 5
    assert Counter(index for window in windows for batch in window for index in batch.tolist()) == Counter(range(430))
    for window in windows:
        assert 60 <= window.num_pairs <= 110
        # A window reads few stretches, each from its first pair to its last.
        stretches = {index // 16 for batch in window for index in batch.tolist() if index < 230}
        assert len(stretches) < 230 // 16
    # What stood at the beginning of a store is spread over all windows.
    early = [{index for batch in window for index in batch.tolist() if index < 80} for window in windows]
    assert sum(map(bool, early)) >= 3


@pytest.mark.parametrize("weights", [[0.3, 3.0, 1.25], [0.01, 12.5, 0.5]])
def test_weights_hold_over_epochs(stores: list[Store], weights: list[float]) -> None:
    plan = BatchPlan(stores, 60, seed=1, weights=weights)
    assert plan.num_windows() > 1
    total: Counter[int] = Counter()
    for epoch in range(12):
        total.update(index for batch in plan.epoch(epoch) for index in batch.tolist())
        for first, last, weight in ((0, 230, weights[0]), (230, 260, weights[1]), (260, 430, weights[2])):
            times = [total[index] for index in range(first, last)]
            assert max(times) - min(times) <= 1
            assert abs(sum(times) - weight * (last - first) * (epoch + 1)) <= 1


def make(*stores: Store):  # type: ignore[no-untyped-def]
    def batch(indices: IntArray, epoch: int, position: int) -> Batch:
        return collate(stores, indices, 5000, 5000)

    return batch


Seen = tuple[int, int, int, list[list[int]]]


def take(stream: BatchStream, count: int) -> list[Seen]:
    return [(*item[:2], stream.num_batches, item[2].source_BS.tolist()) for item in islice(stream, count)]


STAGES = (Stage(after_steps=9, weights=(0.5, 4.0, 0.0)), Stage(after_steps=14, weights=(0.0, 1.0, 0.0)))


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("stages", [(), STAGES])
def test_a_run_goes_on_from_any_batch(stores: list[Store], prefetch: int, stages: tuple[Stage, ...]) -> None:
    """Within a window, between windows, epochs and stages: the very same batches follow."""

    def plan() -> BatchPlan:
        return BatchPlan(stores, 200, seed=1, stages=stages)

    with BatchStream(plan(), make(*stores), prefetch=prefetch) as stream:
        whole = take(stream, 150)
    assert {epoch for epoch, *_ in whole} >= {0, 1, 2}
    # Positions count through the windows of an epoch: what is drawn for a batch is drawn for no other.
    for epoch in range(3):
        positions = [position for number, position, *_ in whole if number == epoch]
        assert positions == list(range(len(positions)))
    for stop in (0, 1, 8, 9, 10, 13, 14, 15, 40, 90):
        with BatchStream(plan(), make(*stores), prefetch=prefetch) as stream:
            take(stream, stop)
            state = stream.state()
        again = plan()
        with BatchStream(again, make(*stores), again.resume(state), prefetch=prefetch) as stream:
            assert take(stream, 150 - stop) == whole[stop:]


def test_stages_begin_at_their_steps_with_an_epoch_of_their_own(stores: list[Store]) -> None:
    plan = BatchPlan(stores, 200, seed=1, stages=STAGES)
    with BatchStream(plan, make(*stores)) as stream:
        seen = [(epoch, position, batch.source_BS.tolist()) for epoch, position, batch in islice(stream, 20)]
    wanted: list[tuple[int, int, list[list[int]]]] = []
    for epoch, stage, end in ((0, 0, 9), (1, 1, 14), (2, 2, 20), (3, 2, 20)):
        for position, batch in enumerate(plan.epoch(epoch, stage)):
            if len(wanted) < end:
                wanted.append((epoch, position, collate(stores, batch, 5000, 5000).source_BS.tolist()))
    assert seen == wanted
    assert {epoch for epoch, *_ in seen} == {0, 1, 2, 3}


def test_stages_are_part_of_what_a_position_means(stores: list[Store]) -> None:
    plan = BatchPlan(stores, 200, seed=1, stages=STAGES)
    state = plan.state(Place(epoch=1, position=3, taken=12))
    other = BatchPlan(stores, 200, seed=1, stages=STAGES[:1])
    assert plan.resume(state) == Place(epoch=1, position=3, taken=12)
    assert other.resume(state) == Place(epoch=1, taken=12)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_pair_is_read_by_one_rank(stores: list[Store], num_ranks: int) -> None:
    """Whatever the number of ranks, all read together what one reads alone, and no two the same pair."""
    plan = BatchPlan(stores, 60, seed=1)
    shares: list[Counter[int]] = []
    for rank in range(num_ranks):
        epoch = plan.epoch(1)
        shares.append(Counter(index for batch in epoch for index in batch[rank::num_ranks].tolist()))
    assert sum(shares, Counter()) == Counter(range(430))
    assert max(share.total() for share in shares) < 2 * 430 / num_ranks


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "other", "gone"])
def test_a_store_that_changes_under_a_run_is_refused_by_name(tmp_path: Path, name: str, change: str) -> None:
    """And nothing of it is used; a file that was only touched is looked through and taken."""
    store = write_store(tmp_path / "store", random_lengths(40, 1))
    path = store.folder / name
    content = path.read_bytes()
    path.write_bytes(content)
    with BatchStream(BatchPlan([store], 60, seed=1), make(store), prefetch=0) as stream:
        next(stream)
        if change == "gone":
            path.rename(tmp_path / "elsewhere")
        else:
            # The file itself stays as long as it was, or the test would end where it looks at what is gone.
            other = tmp_path / "other"
            other.write_bytes(content[:-1] if change == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
            other.rename(path)
        with pytest.raises(DataError, match=name):
            next(stream)


def test_what_was_not_touched_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path / "store", random_lengths(40, 1))

    def measure(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("malmoi.data.store.measure", measure)
    opened = Store.open(store.folder)
    opened.check()
    (store.folder / "lines").touch()
    with pytest.raises(AssertionError, match="lines was read"):
        Store.open(store.folder)
    with pytest.raises(AssertionError, match="lines was read"):
        opened.check()


def test_longest_sides_are_noted_and_counted_where_they_were_not(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [(3, 9), (12, 2), (1, 1)])
    old = store.manifest.model_copy(update={"longest_source": None, "longest_target": None})
    for manifest in (store.manifest, old):
        (store.folder / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")
        opened = Store.open(store.folder)
        assert (opened.longest_source, opened.longest_target) == (12, 9)
        assert [opened.count_longer(limit) for limit in (12, 11, 8, 1, 0)] == [0, 1, 2, 2, 3]
