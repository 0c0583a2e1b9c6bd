"""Slots: none is given out twice, and memory that a burst took is given back."""

import numpy as np
import pytest

from malmoi.engine import rows
from malmoi.engine.rows import NO_SLOT, RowsState, SentenceMemory, SlotPool


def begin(pool: SlotPool, num_rows: int) -> RowsState:
    memory = SentenceMemory(np.zeros(4, dtype=np.float32), 1)
    return RowsState.start(pool, [memory] * num_rows, False)


def step(state: RowsState) -> RowsState:
    """What the native code does with the tables of a state."""
    after, _, _ = state.pool.extend(state, state.num_rows)
    origins = slice(None) if state.maybe_origins_R is None else state.maybe_origins_R
    lengths, table = state.lengths[origins], state.table_RT[origins]
    after.lengths[:] = lengths + 1
    after.table_RT[:, : state.stride] = table
    after.table_RT[np.arange(len(lengths)), lengths] = after.fresh
    after.fresh = rows.NONE_FRESH
    return after


def used(states: list[RowsState]) -> list[int]:
    """Slots of some states; each row has its own but for a common past."""
    return [slot for state in states for slot in np.unique(state.table_RT).tolist() if slot != NO_SLOT]


@pytest.fixture
def small_pool(monkeypatch: pytest.MonkeyPatch) -> SlotPool:
    """Sixteen slots in a chunk."""
    monkeypatch.setattr(rows, "CHUNK_FLOATS", 16 * 8)
    return SlotPool(8)


def test_no_slot_is_given_out_twice(small_pool: SlotPool) -> None:
    generator = np.random.default_rng(1)
    states = [begin(small_pool, 3)]
    for number in range(300):
        state = step(states[int(generator.integers(len(states)))])
        assert len(np.unique(state.table_RT[np.arange(state.num_rows), state.lengths - 1])) == state.num_rows
        assert int(state.table_RT.max()) < small_pool.num_slots
        others = [one for one in states if one.num_rows and one.stride]
        fresh = state.table_RT[np.arange(state.num_rows), state.lengths - 1].tolist()
        assert not set(fresh) & set(used(others))
        states.append(state.select(generator.integers(0, state.num_rows, 3)) if number % 2 else state)
        del states[: max(0, len(states) - 6)]


def test_a_burst_is_given_back_while_a_search_goes_on(small_pool: SlotPool) -> None:
    quiet = step(begin(small_pool, 2))
    before = small_pool.num_slots
    loud = begin(small_pool, 40)
    for _ in range(50):
        loud = step(loud)
    assert small_pool.num_slots > 40 * 50
    del loud
    for _ in range(5 * small_pool.num_slots):
        quiet = step(quiet) if quiet.stride < 20 else step(begin(small_pool, 2))
        assert small_pool.pointers[0].tolist() == [chunk.ctypes.data for chunk in small_pool.chunks]
        if small_pool.num_slots <= 16 * before:
            break
    assert small_pool.num_slots <= 16 * before


def test_the_next_search_begins_with_little(small_pool: SlotPool) -> None:
    for _ in range(3):
        loud = begin(small_pool, 40)
        for _ in range(30):
            loud = step(loud)
        assert small_pool.num_slots > 40 * 30
        del loud
        alone = begin(small_pool, 1)
        assert len(small_pool.chunks) == rows.KEPT_CHUNKS
        assert used([step(alone)]) == [1]
        del alone


def test_memory_does_not_grow_with_the_number_of_searches(small_pool: SlotPool) -> None:
    """Sentences of all lengths come and go for a long time: a flat line."""
    generator, sizes = np.random.default_rng(2), list[int]()
    running = [begin(small_pool, 5) for _ in range(4)]
    for _ in range(2000):
        number = int(generator.integers(4))
        state = step(running[number])
        over = generator.random() < 0.05 or state.stride == 40
        running[number] = begin(small_pool, 5) if over else state.select(generator.integers(0, 5, 5))
        sizes.append(small_pool.num_slots)
    assert np.mean(sizes[1500:]) < 1.5 * np.mean(sizes[500:1000])
    # Three times what four beams of at most 40 tokens can hold, and a chunk.
    assert max(sizes) <= 3 * (4 * 5 * 41 + 5) + 16
