"""Plans and streams: each pair as often as it should be seen, and the same order whatever happened before."""

import gc
import logging
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from malmoi.data.batch import Batch, collate
from malmoi.data.batching import BatchPlan, EpochPlan, Place, in_order
from malmoi.data.store import IntArray, Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.errors import DataError


def write_store(folder: Path, lengths: list[tuple[int, int]], weight: float = 1.0) -> Store:
    source, target = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    with StoreWriter(folder, 50, 50) as writer:
        lines = np.arange(1, len(lengths) + 1)
        writer.add(np.full(source.sum(), 7), source, np.full(target.sum(), 7), target, lines)
        writer.finish(key=folder.name, description="test", inputs={}, tokenizers="", weight=weight, cleaning={})
    return Store.open(folder)


def random_lengths(count: int, seed: int = 0) -> list[tuple[int, int]]:
    generator = np.random.default_rng(seed)
    return [(int(a), int(b)) for a, b in generator.integers(1, 20, (count, 2))]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", random_lengths(600))


def seen(epoch: EpochPlan) -> Counter[int]:
    return Counter(index for batch in epoch for index in batch.tolist())


def as_lists(epoch: EpochPlan) -> list[list[int]]:
    return [batch.tolist() for batch in epoch]


def test_every_pair_once_within_the_budget(store: Store) -> None:
    plan = BatchPlan([store], batch_tokens=100, seed=1)
    epoch = plan.epoch(0)
    assert seen(epoch) == Counter(range(600))
    assert epoch.num_pairs == 600
    assert sum(len(batch) for batch in epoch) == 600
    for batch in epoch:
        longest = max(store.source_lengths[batch].max(), store.target_lengths[batch].max())
        assert len(batch) * longest <= 100


def test_order_depends_on_seed_and_epoch_alone(store: Store) -> None:
    plan = BatchPlan([store], 100, seed=1)
    later = as_lists(plan.epoch(3))
    plan.epoch(0)
    assert as_lists(plan.epoch(3)) == later
    assert as_lists(BatchPlan([store], 100, seed=1).epoch(3)) == later
    assert as_lists(plan.epoch(2)) != later
    assert as_lists(BatchPlan([store], 100, seed=2).epoch(3)) != later


def test_which_pairs_meet_changes_between_epochs(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [(1 + index % 3, 1 + index % 2) for index in range(600)])
    plan = BatchPlan([store], 30, seed=1)
    first, second = ({frozenset(batch) for batch in as_lists(plan.epoch(epoch))} for epoch in (0, 1))
    assert not first & second


def test_neighbours_have_like_lengths(store: Store) -> None:
    """At most a tenth of a batch of many pairs is padding, where pairs in chance order would give a third."""
    plan = BatchPlan([store], 200, seed=1)
    area = sum(len(batch) * int(store.target_lengths[batch].max()) for batch in plan.epoch(0))
    assert int(store.target_lengths.sum()) > 0.9 * area


def test_batches_do_not_come_in_order_of_length(store: Store) -> None:
    plan = BatchPlan([store], 200, seed=1)
    longest = [int(store.target_lengths[batch].max()) for batch in plan.epoch(0)]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_pools_cover_everything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malmoi.data.batching.POOL_BATCHES", 3)
    assert seen(BatchPlan([store], 100, seed=1).epoch(0)) == Counter(range(600))


def test_a_pair_above_the_budget_is_told_before_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Dropped with a count when the plan is made, alone in its batch in validation.

    facebookresearch/fairseq#2650, facebookresearch/fairseq#1202, facebookresearch/fairseq#4759.
    """
    lengths = [(5, 5)] * 13 + [(401, 5)] + [(5, 5)] * 6
    store = write_store(tmp_path / "store", lengths)
    with caplog.at_level(logging.WARNING, logger="malmoi"):
        plan = BatchPlan([store], 64, seed=1)
    assert plan.num_too_long == 1
    assert "1 of 20 pairs" in caplog.text
    assert seen(plan.epoch(0)) == Counter(set(range(20)) - {13})
    validation = as_lists(in_order([store], 64))
    assert [13] in validation
    assert [index for batch in validation for index in batch] == list(range(20))


def test_nothing_to_train_on_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"long.*all 2 pairs are longer than batch_tokens = 64"):
        BatchPlan([write_store(tmp_path / "long", [(65, 1), (1, 65)])], 64, seed=1)
    with pytest.raises(DataError, match=r"empty.*no pairs"):
        BatchPlan([write_store(tmp_path / "empty", [])], 64, seed=1)


def test_validation_keeps_the_order(tmp_path: Path, store: Store) -> None:
    other = write_store(tmp_path / "other", random_lengths(50, seed=1))
    plan = in_order([store, other], 100)
    assert np.concatenate(list(plan)).tolist() == list(range(650))
    assert len(in_order([write_store(tmp_path / "empty", [])], 100)) == 0


@pytest.mark.parametrize("weight", [2.0, 0.5, 2.25, 0.1, 1 / 3])
def test_weights_hold_on_average_and_are_spread_evenly(tmp_path: Path, weight: float) -> None:
    stores = [write_store(tmp_path / "one", random_lengths(40)), write_store(tmp_path / "two", random_lengths(30))]
    plan = BatchPlan(stores, 100, seed=1, weights=[1.0, weight])
    total: Counter[int] = Counter()
    for epoch in range(20):
        counts = seen(plan.epoch(epoch))
        total += counts
        assert all(counts[index] == 1 for index in range(40))
        expected = weight * 30 * (epoch + 1)
        assert abs(sum(total[index] for index in range(40, 70)) - expected) <= 1
        times = [total[index] for index in range(40, 70)]
        assert max(times) - min(times) <= 1
        assert min(times) <= weight * (epoch + 1) <= max(times)


def test_fractions_take_other_pairs_in_other_epochs(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", random_lengths(30), weight=0.5)
    plan = BatchPlan([store], 100, seed=1)
    first, second, third = (set(seen(plan.epoch(epoch))) for epoch in range(3))
    assert first | second == set(range(30))
    assert not first & second
    assert first == third
    assert first != set(range(15))


def test_parts_of_a_batch_for_several_processes(store: Store) -> None:
    """Slices by rank of one global batch are disjoint and complete, for every number of processes."""
    for batch in BatchPlan([store], 100, seed=1).epoch(0):
        for num_ranks in (1, 2, 3):
            parts = [batch[rank::num_ranks].tolist() for rank in range(num_ranks)]
            assert sorted(index for part in parts for index in part) == sorted(batch.tolist())


class Make:
    """A maker of batches that fails at one place on request."""

    def __init__(self, *stores: Store, fail_at: tuple[int, int] | None = None) -> None:
        self.stores = stores
        self.fail_at = fail_at
        self.threads: set[str] = set()

    def __call__(self, indices: IntArray, epoch: int, position: int) -> Batch:
        self.threads.add(threading.current_thread().name)
        if (epoch, position) == self.fail_at:
            raise ValueError("this batch cannot be made")
        return collate(self.stores, indices, 50, 50)


def take(stream: BatchStream, count: int) -> list[tuple[int, int, list[int]]]:
    return [
        (epoch, position, batch.lines_B.tolist()) for epoch, position, batch in (next(stream) for _ in range(count))
    ]


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_resume_goes_on_where_it_stopped(store: Store, prefetch: int) -> None:
    """Stopped anywhere, also at and behind the end of an epoch, the same batches follow.

    facebookresearch/fairseq#441, facebookresearch/fairseq#781, facebookresearch/fairseq#4973,
    facebookresearch/fairseq#5344.
    """
    plan = BatchPlan([store], 800, seed=1)
    num_batches = len(plan.epoch(0))
    with BatchStream(plan, Make(store), prefetch=prefetch) as stream:
        whole = take(stream, 2 * num_batches)
    assert [entry[:2] for entry in whole[:num_batches]] == [(0, position) for position in range(num_batches)]
    for stop in (0, 1, num_batches - 1, num_batches, num_batches + 1):
        with BatchStream(plan, Make(store), prefetch=prefetch) as stream:
            take(stream, stop)
            state = stream.state()
        again = BatchPlan([store], 800, seed=1)
        with BatchStream(again, Make(store), again.resume(state), prefetch=prefetch) as stream:
            assert take(stream, 2 * num_batches - stop) == whole[stop:]


def test_another_batch_size_starts_the_epoch_anew(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A position counts batches of one size; under another it would skip or repeat pairs.

    facebookresearch/fairseq#441, facebookresearch/fairseq#781, facebookresearch/fairseq#4973.
    """
    place = Place(epoch=2, position=5, taken=25)
    state = BatchPlan([store], 100, seed=1).state(place)
    assert BatchPlan([store], 100, seed=1).resume(state) == place
    for other in (BatchPlan([store], 200, 1), BatchPlan([store], 100, 2), BatchPlan([store], 100, 1, [2.0])):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="malmoi"):
            assert other.resume(state) == Place(epoch=2, taken=25)
        assert "epoch 2 starts anew" in caplog.text


def test_a_position_behind_the_end_is_refused(store: Store) -> None:
    plan = BatchPlan([store], 100, seed=1)
    with BatchStream(plan, Make(store), Place(position=10_000)) as stream, pytest.raises(DataError, match="epoch 0"):
        next(stream)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_failure_comes_out_at_its_place_and_stays(store: Store, prefetch: int) -> None:
    plan = BatchPlan([store], 100, seed=1)
    with BatchStream(plan, Make(store, fail_at=(0, 5)), prefetch=prefetch) as stream:
        assert len(take(stream, 5)) == 5
        for _ in range(3):
            with pytest.raises(ValueError, match="this batch cannot be made"):
                next(stream)
        assert stream.state()["position"] == 5


def test_batches_are_made_by_one_other_thread_that_ends(store: Store) -> None:
    before = threading.active_count()
    make = Make(store)
    with BatchStream(BatchPlan([store], 100, seed=1), make) as stream:
        take(stream, 10)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert len(make.threads) == 1
    assert threading.current_thread().name not in make.threads
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()


def test_a_stream_that_nobody_holds_ends_its_thread(store: Store) -> None:
    stream = BatchStream(BatchPlan([store], 100, seed=1), Make(store))
    next(stream)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
    assert len(threads) == 1
    del stream
    gc.collect()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_epochs_without_a_pair_are_passed_over(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [(3, 3), (4, 4)], weight=0.1)
    with BatchStream(BatchPlan([store], 100, seed=1), Make(store)) as stream:
        epochs = [entry[0] for entry in take(stream, 4)]
    assert epochs == [4, 9, 14, 19]


def test_the_stream_knows_where_an_epoch_ends(store: Store) -> None:
    plan = BatchPlan([store], 800, seed=1)
    with BatchStream(plan, Make(store)) as stream:
        ends = [(epoch, stream.num_batches) for epoch, position, _ in (next(stream) for _ in range(30))]
    assert ends == [(epoch, len(plan.epoch(epoch))) for epoch, _ in ends]


def test_a_plan_is_a_list_of_batches(store: Store) -> None:
    epoch = BatchPlan([store], 100, seed=1).epoch(0)
    assert epoch[-1].tolist() == epoch[len(epoch) - 1].tolist()
    assert len(list(epoch)) == len(epoch)
    with pytest.raises(IndexError):
        epoch[len(epoch)]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("num_pairs", [600, 3])
def test_every_pair_once_an_epoch_over_all_ranks(tmp_path: Path, num_ranks: int, num_pairs: int) -> None:
    """pytorch/pytorch#30599; espnet/espnet#2081; huggingface/datasets#3423: also with fewer lines than ranks."""
    store = write_store(tmp_path / "some", random_lengths(num_pairs))
    plan = BatchPlan([store], 100, seed=1)
    count: Counter[int] = Counter()
    steps: set[int] = set()
    for rank in range(num_ranks):
        epoch = plan.epoch(2)
        steps.add(len(epoch))
        count.update(index for batch in epoch for index in batch[rank::num_ranks].tolist())
    assert count == Counter(range(num_pairs))
    assert len(steps) == 1
