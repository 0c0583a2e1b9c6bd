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
from torch import Tensor

from malmoi.models.interface import DecoderState, Memory

Slots = NDArray[np.int32]
Floats = NDArray[np.float32]

CHUNK_FLOATS = 2**19
"""Memory for slots is taken so much at a time (2 MiB)."""

NO_SLOT = 0
"""Fills tables after the last token of a row; slot 0 is never given out."""


class SlotPool:
    """Room for the keys and values of tokens, shared by all states of a scorer; threads may take slots at once."""

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

    def extend(self, state: "RowsState") -> "RowsState":
        """A state with one more token on each row, whose slots are to be written; the old one stays as it is."""
        rows = len(state.lengths_R)
        with self.lock:
            if len(self.free) < rows:
                self.sweep(rows)
            slots_R, self.free = self.free[:rows], self.free[rows:]
            longest = int(state.lengths_R.max(initial=0))
            table_RT = np.zeros((rows, longest + 1), dtype=np.int32)
            table_RT[:, :longest] = state.table_RT[:, :longest]
            table_RT[np.arange(rows), state.lengths_R] = slots_R
            lengths_R = state.lengths_R + np.int32(1)
            after = RowsState(self, state.asked, table_RT, lengths_R, state.keep_attention)
            self.states.add(after)
        return after

    def keep(self, state: "RowsState") -> "RowsState":
        """A state made of living ones, whose slots are not given to others from now on."""
        with self.lock:
            self.states.add(state)
        return state

    def sweep(self, wanted: int) -> None:
        """Find the slots that no living state names; take more memory where that leaves few."""
        is_used = np.zeros(max(self.num_slots, 1), dtype=np.bool_)
        is_used[NO_SLOT] = True
        for state in list(self.states):
            is_used[state.table_RT] = True
        free = np.flatnonzero(~is_used).astype(np.int32)
        # Half as much again, so that the next sweeps are far away.
        lacking = max(wanted, self.num_slots // 2) - len(free)
        if lacking > 0:
            first = max(self.num_slots, NO_SLOT + 1)
            for _ in range(-(-(lacking + 1) // (1 << self.shift))):
                self.chunks.append(np.empty(self.slot_size << self.shift, dtype=np.float32))
            pointers = np.array([chunk.ctypes.data for chunk in self.chunks], dtype=np.uintp)
            self.pointers = (pointers, pointers.ctypes.data)
            free = np.concatenate([free, np.arange(first, self.num_slots, dtype=np.int32)])
        self.free = free


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
    sentence_R: NDArray[np.int64]
    pointers_B: NDArray[np.uintp]
    lengths_B: Slots

    @classmethod
    def start(cls, sentences: Sequence[SentenceMemory]) -> Self:
        """One row per sentence."""
        pointers_B = np.array([one.values.ctypes.data for one in sentences], dtype=np.uintp)
        lengths_B = np.array([one.length for one in sentences], dtype=np.int32)
        return cls(tuple(sentences), np.arange(len(sentences)), pointers_B, lengths_B)

    @cached_property
    def of_rows(self) -> tuple[NDArray[np.uintp], Slots, int, int]:
        """Where each row's memory lies and how long it is, and where these two arrays lie themselves."""
        pointers_R, lengths_R = self.pointers_B[self.sentence_R], self.lengths_B[self.sentence_R]
        return pointers_R, lengths_R, pointers_R.ctypes.data, lengths_R.ctypes.data

    def select(self, rows: NDArray[np.int64]) -> "Asked":
        """The same for some rows; sentences that no row asks any more are left behind."""
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
    """Rows with their slots `table_RT`, of which `lengths_R` are filled. Never changed once a step has made it."""

    pool: SlotPool
    asked: Asked
    table_RT: Slots
    lengths_R: Slots
    keep_attention: bool
    attention_RS: Tensor | None = None

    @classmethod
    def start(cls, pool: SlotPool, sentences: Sequence[SentenceMemory], keep_attention: bool) -> Self:
        """One row per sentence, nothing said yet."""
        rows = len(sentences)
        table_RT, lengths_R = np.zeros((rows, 0), dtype=np.int32), np.zeros(rows, dtype=np.int32)
        return cls(pool, Asked.start(sentences), table_RT, lengths_R, keep_attention)

    @property
    def num_rows(self) -> int:
        return len(self.lengths_R)

    def select(self, rows_R: Tensor) -> "RowsState":
        rows = rows_R.numpy()
        lengths_R = self.lengths_R[rows]
        table_RT = self.table_RT[rows, : int(lengths_R.max(initial=0))]
        attention_RS = None if self.attention_RS is None else self.attention_RS[rows_R]
        selected = RowsState(self.pool, self.asked.select(rows), table_RT, lengths_R, self.keep_attention, attention_RS)
        return self.pool.keep(selected)

    def append(self, other: DecoderState) -> "RowsState":
        """Attention of the last step is left behind: `other` may not have made one."""
        assert isinstance(other, RowsState) and other.pool is self.pool, "states of one scorer alone go together"
        longest = max(self.table_RT.shape[1], other.table_RT.shape[1])
        tables = [np.pad(one.table_RT, ((0, 0), (0, longest - one.table_RT.shape[1]))) for one in (self, other)]
        lengths_R = np.concatenate([self.lengths_R, other.lengths_R])
        joined = RowsState(
            self.pool, self.asked.append(other.asked), np.concatenate(tables), lengths_R, self.keep_attention
        )
        return self.pool.keep(joined)
