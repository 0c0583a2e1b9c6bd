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

NONE_FRESH = np.empty(0, dtype=np.int32)


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
        # Slots to give out, in order, and how many of them are gone already.
        self.free = NONE_FRESH
        self.where_free = 0
        self.num_taken = 0
        self.states: WeakSet[RowsState] = WeakSet()
        self.lock = Lock()

    @property
    def num_slots(self) -> int:
        return len(self.chunks) << self.shift

    def extend(
        self, state: "RowsState", num_rows: int, num_steps: int = 1
    ) -> "tuple[RowsState, int, tuple[NDArray[np.uintp], int]]":
        """A state for one more token, or as many as there are steps, on each of so many rows, which a step fills; where
        the list of its new slots lies; and the pointers to chunks for that step."""
        stride = state.longest + num_steps
        num_slots = num_rows * num_steps
        numbers = np.zeros(num_rows * (stride + 1), dtype=np.int32)
        after = RowsState(self, state.asked, numbers, num_rows, stride, state.keep_attention)
        after.longest = state.longest + 1
        with self.lock:
            if len(self.free) - self.num_taken < num_slots:
                self.sweep(num_slots)
            first = self.num_taken
            self.num_taken += num_slots
            # Until the step has filled the table, this is what names them.
            after.fresh = self.free[first : self.num_taken]
            self.states.add(after)
            # Held by the step, since another thread may take more memory meanwhile, or give some back.
            return after, self.where_free + 4 * first, self.pointers

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
                self.give_out(np.arange(NO_SLOT + 1, self.num_slots))
            self.states.add(state)
        return state

    def sweep(self, wanted: int) -> None:
        """Find the slots that no living state names; take more memory where that leaves few, give back where many."""
        is_used = np.zeros(max(self.num_slots, 1), dtype=np.bool_)
        is_used[NO_SLOT] = True
        for state in list(self.states):
            is_used[state.table_RT] = True
            is_used[state.fresh] = True
        used = is_used.nonzero()[0]
        # Twice as many as are needed, so that the next sweeps are far away, but not more than three times as many.
        size = 1 << self.shift
        least, most = (-(-times * (len(used) + wanted) // size) for times in (2, 3))
        num_chunks = min(max(len(self.chunks), least), most)
        self.resize(max(num_chunks, (int(used[-1]) >> self.shift) + 1))
        # What lies behind is not given out any more, so that it is free, and can go, at one of the next sweeps.
        is_free = np.ones(num_chunks << self.shift, dtype=np.bool_)
        is_free[used[used < len(is_free)]] = False
        self.give_out(is_free.nonzero()[0])

    def give_out(self, slots: NDArray[np.intp]) -> None:
        """From now on these slots, in this order."""
        self.free = slots.astype(np.int32)
        self.where_free = address(self.free)
        self.num_taken = 0

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


class RowsState(DecoderState):
    """Rows with their slots. Never changed once a step has made it.

    `numbers` hold how many tokens each stored row has, then a table of their slots, `stride` for each. Row r is the
    stored row `maybe_origins_R[r]`, None for each as it stands: so a selection moves no table, the step after it does.
    """

    def __init__(
        self,
        pool: SlotPool,
        asked: Asked,
        numbers: Slots,
        num_stored: int,
        stride: int,
        keep_attention: bool,
        maybe_origins_R: Integers | None = None,
        attention_RS: Floats | None = None,
    ) -> None:
        self.pool = pool
        self.asked = asked
        self.numbers = numbers
        self.where = address(numbers)
        self.where_table = self.where + 4 * num_stored
        self.num_stored = num_stored
        self.stride = stride
        # Tokens of the longest row, at most.
        self.longest = stride
        self.keep_attention = keep_attention
        self.maybe_origins_R = maybe_origins_R
        self.attention_RS = attention_RS
        self.fresh = NONE_FRESH

    @classmethod
    def start(cls, pool: SlotPool, sentences: Sequence[SentenceMemory], keep_attention: bool) -> "RowsState":
        """One row per sentence, nothing said yet."""
        rows = len(sentences)
        return pool.start(cls(pool, Asked.start(sentences), np.zeros(rows, dtype=np.int32), rows, 0, keep_attention))

    @property
    def num_rows(self) -> int:
        return self.num_stored if self.maybe_origins_R is None else len(self.maybe_origins_R)

    @property
    def lengths(self) -> Slots:
        """Tokens of each stored row."""
        return self.numbers[: self.num_stored]

    @property
    def table_RT(self) -> Slots:
        """Slots of each stored row."""
        return self.numbers[self.num_stored :].reshape(self.num_stored, self.stride)

    def select(self, rows_R: Integers) -> "RowsState":
        asked = self.asked.select(rows_R)
        origins_R = np.ascontiguousarray(rows_R if self.maybe_origins_R is None else self.maybe_origins_R[rows_R])
        attention_RS = None if self.attention_RS is None else self.attention_RS[rows_R]
        numbers, num_stored, stride = self.numbers, self.num_stored, self.stride
        if asked is not self.asked:
            # The longest sentences may have left, and with them the places at the end.
            lengths_R = self.lengths[origins_R]
            num_stored, stride = len(lengths_R), int(lengths_R.max(initial=0))
            numbers = join(lengths_R, self.table_RT[origins_R, :stride])
            origins_R = None
        selected = RowsState(
            self.pool, asked, numbers, num_stored, stride, self.keep_attention, origins_R, attention_RS
        )
        selected.longest = self.longest if asked is self.asked else stride
        return self.pool.keep(selected)

    def append(self, other: DecoderState) -> "RowsState":
        """Attention of the last step is left behind: `other` may not have made one."""
        assert isinstance(other, RowsState) and other.pool is self.pool, "states of one scorer alone go together"
        stride = max(self.stride, other.stride)
        lengths: list[Slots] = []
        tables: list[Slots] = []
        for one in (self, other):
            origins = slice(None) if one.maybe_origins_R is None else one.maybe_origins_R
            lengths.append(one.lengths[origins])
            tables.append(np.pad(one.table_RT[origins], ((0, 0), (0, stride - one.stride))))
        lengths_R = np.concatenate(lengths)
        numbers = join(lengths_R, np.concatenate(tables))
        asked = self.asked.append(other.asked)
        return self.pool.keep(RowsState(self.pool, asked, numbers, len(lengths_R), stride, self.keep_attention))


def join(lengths_R: Slots, table_RT: Slots) -> Slots:
    """Lengths and slots in one piece."""
    return np.concatenate([lengths_R, table_RT.ravel()])
