"""Rows of a search in the engine: where the keys and values of their past lie, and which sentence they ask.

In: row numbers to keep, repeat or drop. Out: states for the rows that live on. Keys and values of a token are written
once, to a slot, and never moved: what a row owns is a list of slots, which rows with a common past share. A slot is
free again when no living state names it.

Letters: B sentences, R rows, T tokens so far, S source places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.interface import DecoderState, Integers, Memory
from malmoi.engine.library import address

Slots = NDArray[np.int32]
Floats = NDArray[np.float32]

CHUNK_FLOATS = 2**19
"""Memory for slots is taken so much at a time (2 MiB)."""

KEPT_CHUNKS = 2
"""So many chunks stay where no row is alive."""

NO_SLOT = 0
"""Fills tables after the last token of a row; slot 0 is never given out."""


class SlotPool:
    """Room for the keys and values of tokens, shared by all states of a scorer; threads may take slots at once.

    It holds about three times as many slots as are in use, at most: when few are left the unused ones are found, and
    chunks at the end without a used one are given back, as are nearly all when the first row of a new search begins
    and no other is alive.
    """

    def __init__(self, slot_size: int) -> None:
        self.slot_size = slot_size
        self.shift = max((CHUNK_FLOATS // slot_size).bit_length() - 1, 4)
        self.chunks: list[Floats] = []
        # Where the chunks lie, and where this array lies itself.
        self.pointers = (np.empty(0, dtype=np.uintp), 0)
        self.free = np.empty(0, dtype=np.int32)
        self.states: WeakSet[RowsState] = WeakSet()
        self.lock = Lock()

    @property
    def num_slots(self) -> int:
        return len(self.chunks) << self.shift

    def take(self, num_rows: int) -> Slots:
        """Slots for one more token of so many rows, with the lock held until a state that names them is kept."""
        if len(self.free) < num_rows:
            self.sweep(num_rows)
        taken, self.free = self.free[:num_rows], self.free[num_rows:]
        return taken

    def keep(self, state: "RowsState") -> "RowsState":
        """A state made of living ones, whose slots are not given to others from now on."""
        with self.lock:
            self.states.add(state)
        return state

    def start(self, state: "RowsState") -> "RowsState":
        """As `keep`, for rows that have no past."""
        with self.lock:
            if len(self.chunks) > KEPT_CHUNKS and not len(self.states):
                self.resize(KEPT_CHUNKS)
                self.free = np.arange(NO_SLOT + 1, self.num_slots, dtype=np.int32)
            self.states.add(state)
        return state

    def sweep(self, wanted: int) -> None:
        """Find the slots that no living state names; take more memory where that leaves few, give back where many."""
        is_used = np.zeros(max(self.num_slots, 1), dtype=np.bool_)
        is_used[NO_SLOT] = True
        for state in list(self.states):
            is_used[state.table_RT] = True
        used = is_used.nonzero()[0]
        # Twice as many as are needed, so that the next sweeps are far away.
        needed = 2 * (len(used) + wanted)
        size = 1 << self.shift
        if needed > self.num_slots:
            num_chunks = -(-needed // size)
        else:
            num_chunks = max(-(-3 * needed // (2 * size)), (int(used[-1]) >> self.shift) + 1)
        self.resize(min(num_chunks, max(len(self.chunks), -(-needed // size))))
        is_free = np.ones(self.num_slots, dtype=np.bool_)
        is_free[used] = False
        self.free = is_free.nonzero()[0].astype(np.int32)

    def resize(self, num_chunks: int) -> None:
        """Hold so many chunks, those with the lowest slots."""
        del self.chunks[num_chunks:]
        while len(self.chunks) < num_chunks:
            self.chunks.append(np.empty(self.slot_size << self.shift, dtype=np.float32))
        # A step that is under way holds the array that was there before.
        pointers = np.array([address(chunk) for chunk in self.chunks], dtype=np.uintp)
        self.pointers = (pointers, address(pointers))


@dataclass(frozen=True, eq=False)
class SentenceMemory:
    """Keys and values of each layer's cross-attention, `(layers, 2, S, D)`."""

    values: Floats
    length: int


@dataclass(frozen=True, eq=False)
class EncodedSentences(Memory):
    sentences: tuple[SentenceMemory, ...]

    @property
    def num_sentences(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True, eq=False)
class Asked:
    """Which of the sentences each row asks."""

    sentences: tuple[SentenceMemory, ...]
    sentence_R: Integers
    pointers_B: NDArray[np.uintp]
    lengths_B: Slots

    @classmethod
    def start(cls, sentences: Sequence[SentenceMemory]) -> Self:
        """One row per sentence."""
        pointers_B = np.array([address(one.values) for one in sentences], dtype=np.uintp)
        lengths_B = np.array([one.length for one in sentences], dtype=np.int32)
        return cls(tuple(sentences), np.arange(len(sentences)), pointers_B, lengths_B)

    @cached_property
    def of_rows(self) -> tuple[NDArray[np.uintp], Slots, int, int]:
        """Where each row's memory lies and how long it is, and where these two arrays lie themselves."""
        pointers_R, lengths_R = self.pointers_B[self.sentence_R], self.lengths_B[self.sentence_R]
        return pointers_R, lengths_R, address(pointers_R), address(lengths_R)

    def select(self, rows: Integers) -> "Asked":
        """The same for some rows; sentences that no row asks any more are left behind."""
        if len(self.sentences) == 1 and len(rows) == len(self.sentence_R):
            return self
        sentence_R = self.sentence_R[rows]
        if len(sentence_R) == len(self.sentence_R) and not np.count_nonzero(sentence_R != self.sentence_R):
            # Most steps of a beam move rows of a sentence among themselves.
            return self
        is_asked_B = np.bincount(sentence_R, minlength=len(self.sentences)) > 0
        if is_asked_B.all():
            return Asked(self.sentences, sentence_R, self.pointers_B, self.lengths_B)
        kept = np.flatnonzero(is_asked_B)
        sentences = tuple(self.sentences[number] for number in kept.tolist())
        numbers_B = np.cumsum(is_asked_B) - 1
        return Asked(sentences, numbers_B[sentence_R], self.pointers_B[kept], self.lengths_B[kept])

    def append(self, other: "Asked") -> "Asked":
        return Asked(
            self.sentences + other.sentences,
            np.concatenate([self.sentence_R, other.sentence_R + len(self.sentences)]),
            np.concatenate([self.pointers_B, other.pointers_B]),
            np.concatenate([self.lengths_B, other.lengths_B]),
        )


@dataclass(eq=False)
class RowsState(DecoderState):
    """Rows with their slots. Never changed once a step has made it.

    Row r is the row `maybe_origins_R[r]` of `table_RT`, whose first `lengths` places are filled; None is each row as it
    stands. So a selection moves no table: the step after it does, when it adds its own slots.
    """

    pool: SlotPool
    asked: Asked
    table_RT: Slots
    lengths: Slots
    keep_attention: bool
    maybe_origins_R: Integers | None = None
    attention_RS: Floats | None = None

    @classmethod
    def start(cls, pool: SlotPool, sentences: Sequence[SentenceMemory], keep_attention: bool) -> "RowsState":
        """One row per sentence, nothing said yet."""
        rows = len(sentences)
        table_RT, lengths = np.zeros((rows, 0), dtype=np.int32), np.zeros(rows, dtype=np.int32)
        return pool.start(cls(pool, Asked.start(sentences), table_RT, lengths, keep_attention))

    @property
    def num_rows(self) -> int:
        return len(self.lengths if self.maybe_origins_R is None else self.maybe_origins_R)

    def select(self, rows_R: Integers) -> "RowsState":
        asked = self.asked.select(rows_R)
        origins_R = rows_R if self.maybe_origins_R is None else self.maybe_origins_R[rows_R]
        attention_RS = None if self.attention_RS is None else self.attention_RS[rows_R]
        selected = RowsState(
            self.pool,
            asked,
            self.table_RT,
            self.lengths,
            self.keep_attention,
            np.ascontiguousarray(origins_R),
            attention_RS,
        )
        if asked is not self.asked:
            # The longest sentences may have left, and with them the places at the end.
            selected.table_RT, selected.lengths = selected.settle()
            selected.maybe_origins_R = None
        return self.pool.keep(selected)

    def settle(self) -> tuple[Slots, Slots]:
        """Table and lengths of the rows themselves."""
        origins = slice(None) if self.maybe_origins_R is None else self.maybe_origins_R
        lengths_R = self.lengths[origins]
        return np.ascontiguousarray(self.table_RT[origins, : int(lengths_R.max(initial=0))]), lengths_R

    def append(self, other: DecoderState) -> "RowsState":
        """Attention of the last step is left behind: `other` may not have made one."""
        assert isinstance(other, RowsState) and other.pool is self.pool, "states of one scorer alone go together"
        settled = [self.settle(), other.settle()]
        longest = max(table_RT.shape[1] for table_RT, _ in settled)
        tables = [np.pad(table_RT, ((0, 0), (0, longest - table_RT.shape[1]))) for table_RT, _ in settled]
        lengths_R = np.concatenate([lengths_R for _, lengths_R in settled])
        joined = RowsState(
            self.pool, self.asked.append(other.asked), np.concatenate(tables), lengths_R, self.keep_attention
        )
        return self.pool.keep(joined)
