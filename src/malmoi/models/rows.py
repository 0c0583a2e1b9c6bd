"""Bookkeeping of live rows in search: which sentence a row asks, and the keys and values of its past.

In: row numbers to keep, repeat or drop. Out: layouts, memories, caches and states for the rows that live on.

Letters: B sentences held in memory, R live rows, K most rows of one sentence, S places, L layers, D width.
"""

from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from malmoi.models.attention import Mask, length_mask
from malmoi.models.interface import DecoderState, Memory


@dataclass(frozen=True)
class RowLayout:
    """Rows are put into blocks of K per sentence, so that a sentence's keys are held and read once."""

    sentence_R: Tensor
    num_sentences: int
    block_size: int
    slot_R: Tensor | None
    """Place of each row among all B * K; None where the rows fill the blocks in order, as a full beam does."""

    @classmethod
    def build(cls, sentence_R: Tensor, num_sentences: int) -> "RowLayout":
        if sentence_R.numel() == 0:
            return cls(sentence_R, num_sentences, 0, None)
        count_B = torch.bincount(sentence_R, minlength=num_sentences)
        block_size = int(count_B.max())
        sentence_B = torch.arange(num_sentences, device=sentence_R.device)
        if sentence_R.numel() == num_sentences * block_size and torch.equal(
            sentence_R, sentence_B.repeat_interleave(block_size)
        ):
            return cls(sentence_R, num_sentences, block_size, None)
        order_R = sentence_R.argsort(stable=True)
        first_B = count_B.cumsum(0) - count_B
        rank_R = torch.empty_like(sentence_R)
        rank_R[order_R] = torch.arange(sentence_R.numel(), device=sentence_R.device) - first_B[sentence_R[order_R]]
        return cls(sentence_R, num_sentences, block_size, sentence_R * block_size + rank_R)

    def group(self, states_RD: Tensor) -> Tensor:
        """Rows in their blocks, `(B, K, ...)`; unused places hold 0."""
        if self.slot_R is not None:
            blocks = states_RD.new_zeros(self.num_sentences * self.block_size, *states_RD.shape[1:])
            states_RD = blocks.index_copy(0, self.slot_R, states_RD)
        return states_RD.view(self.num_sentences, self.block_size, *states_RD.shape[1:])

    def ungroup(self, states_BKD: Tensor) -> Tensor:
        """The reverse of `group`, `(R, ...)`."""
        states = states_BKD.flatten(0, 1)
        return states if self.slot_R is None else states[self.slot_R]

    def select(self, rows_R: Tensor) -> tuple["RowLayout", Tensor | None]:
        """The layout of the selected rows, and which sentences they still need (None: all, unchanged)."""
        sentence_R = self.sentence_R[rows_R]
        if torch.equal(sentence_R, self.sentence_R):
            return self, None
        needed_B, renumbered_R = torch.unique(sentence_R, return_inverse=True)
        if needed_B.numel() == self.num_sentences:
            return RowLayout.build(sentence_R, self.num_sentences), None
        return RowLayout.build(renumbered_R, needed_B.numel()), needed_B

    def is_all_in_order(self, rows_R: Tensor) -> bool:
        """Whether a selection changes nothing, as greedy search has it in most steps."""
        num_rows = self.sentence_R.numel()
        return rows_R.numel() == num_rows and torch.equal(rows_R, torch.arange(num_rows, device=rows_R.device))

    def append(self, other: "RowLayout") -> "RowLayout":
        sentence_R = torch.cat([self.sentence_R, other.sentence_R + self.num_sentences])
        return RowLayout.build(sentence_R, self.num_sentences + other.num_sentences)


class CacheBuffer:
    """Room for keys and values of all layers; `num_filled` places are in use by the newest state that wrote here."""

    def __init__(self, places_CL2RD: Tensor, num_filled: int) -> None:
        self.places_CL2RD = places_CL2RD
        self.num_filled = num_filled


@dataclass(frozen=True)
class Cache:
    """Keys and values of `length` places for each row. Places come first, so that growing and selecting copy little.

    Rows that began later than others have unused places before their first, `start_R`.
    """

    buffer: CacheBuffer
    length: int
    start_R: Tensor | None = None

    @classmethod
    def empty(cls, num_layers: int, num_rows: int, width: int, like: Tensor) -> "Cache":
        return cls(CacheBuffer(like.new_empty(16, num_layers, 2, num_rows, width), 0), 0)

    @property
    def num_rows(self) -> int:
        return self.buffer.places_CL2RD.size(3)

    def extend(self) -> "Cache":
        """One more place, to be written. Room is shared with the old cache, which stays valid as it is."""
        old = self.buffer.places_CL2RD
        buffer = self.buffer
        if buffer.num_filled != self.length or old.size(0) == self.length:
            room = old.new_empty(max(2 * self.length, 16), *old.shape[1:])
            room[: self.length] = old[: self.length]
            buffer = CacheBuffer(room, self.length)
        buffer.num_filled = self.length + 1
        return Cache(buffer, self.length + 1, self.start_R)

    def layer(self, layer: int) -> Tensor:
        """Keys and values of one layer, `(S, 2, R, D)`; writing changes the cache."""
        return self.buffer.places_CL2RD[: self.length, layer]

    def select(self, rows_R: Tensor) -> "Cache":
        start_R = None if self.start_R is None else self.start_R[rows_R]
        first = int(start_R.min()) if start_R is not None and start_R.numel() else 0
        if start_R is not None:
            # Places that no row uses any more are left behind.
            start_R = start_R - first if bool((start_R != first).any()) else None
        old = self.buffer.places_CL2RD[first : self.length]
        length = self.length - first
        room = old.new_empty(max(16, 1 << length.bit_length()), *old.shape[1:3], rows_R.numel(), old.size(4))
        if length and rows_R.numel():
            torch.index_select(old.flatten(0, 2), 1, rows_R, out=room[:length].flatten(0, 2))
        return Cache(CacheBuffer(room, length), length, start_R)

    def append(self, other: "Cache") -> "Cache":
        """Both caches end at the same place; what lies before the start of a shorter one is 0 and masked."""
        length = max(self.length, other.length)
        parts: list[Tensor] = []
        starts: list[Tensor] = []
        for cache in (self, other):
            places = cache.buffer.places_CL2RD
            shift = length - cache.length
            part = places.new_zeros(length, *places.shape[1:])
            part[shift:] = places[: cache.length]
            parts.append(part)
            start_R = cache.start_R
            if start_R is None:
                start_R = torch.zeros(cache.num_rows, dtype=torch.int64, device=places.device)
            starts.append(start_R + shift)
        start_R = torch.cat(starts)
        is_mixed = bool((start_R != 0).any())
        return Cache(CacheBuffer(torch.cat(parts, dim=3), length), length, start_R if is_mixed else None)


@dataclass(frozen=True)
class SourceMemory(Memory):
    """What the decoder asks of encoded sources, once per sentence.

    `per_place` are tensors `(B, ..., S, X)`, zeros or anything else past a sentence's length; `per_sentence` are
    tensors `(B, ...)`.
    """

    per_place: tuple[Tensor, ...]
    per_sentence: tuple[Tensor, ...]
    lengths_B: Tensor
    mask: Mask

    @property
    def num_sentences(self) -> int:
        return self.lengths_B.numel()

    @property
    def num_places(self) -> int:
        return self.per_place[0].size(-2)

    def select(self, sentences_B: Tensor) -> Self:
        """Some of the sentences, cut to the longest of them."""
        lengths_B = self.lengths_B[sentences_B]
        longest = max(int(lengths_B.max()), 1) if lengths_B.numel() else 1
        return replace(
            self,
            per_place=tuple(one[..., :longest, :].index_select(0, sentences_B) for one in self.per_place),
            per_sentence=tuple(one[sentences_B] for one in self.per_sentence),
            lengths_B=lengths_B,
            mask=length_mask(lengths_B, longest, self.per_place[0].dtype),
        )

    def append(self, other: Self) -> Self:
        """These sentences, then those of another memory of the same model."""
        longest = max(self.num_places, other.num_places)
        lengths_B = torch.cat([self.lengths_B, other.lengths_B])
        per_place = zip(self.per_place, other.per_place, strict=True)
        per_sentence = zip(self.per_sentence, other.per_sentence, strict=True)
        return replace(
            self,
            per_place=tuple(torch.cat([pad_places(one, longest) for one in pair]) for pair in per_place),
            per_sentence=tuple(torch.cat(pair) for pair in per_sentence),
            lengths_B=lengths_B,
            mask=length_mask(lengths_B, longest, self.per_place[0].dtype),
        )


def pad_places(states_BSX: Tensor, num_places: int) -> Tensor:
    """Zeros after the last source place."""
    return torch.nn.functional.pad(states_BSX, (0, 0, 0, num_places - states_BSX.size(-2)))


class Past(Protocol):
    """What rows keep of the tokens that they were fed."""

    def select(self, rows_R: Tensor) -> Self: ...

    def append(self, other: Self) -> Self: ...


MemoryT = TypeVar("MemoryT", bound=SourceMemory)
PastT = TypeVar("PastT", bound=Past)


@dataclass(frozen=True)
class RowState(DecoderState, Generic[MemoryT, PastT]):
    """Rows of a search: their memory, which sentence each one asks, and their past."""

    memory: MemoryT
    layout: RowLayout
    past: PastT
    keep_attention: bool
    attention_RS: Tensor | None = None

    @classmethod
    def start(cls, memory: MemoryT, past: PastT, keep_attention: bool) -> Self:
        """One row per sentence."""
        sentence_R = torch.arange(memory.num_sentences, device=memory.lengths_B.device)
        return cls(memory, RowLayout.build(sentence_R, memory.num_sentences), past, keep_attention)

    @property
    def num_rows(self) -> int:
        return self.layout.sentence_R.numel()

    def select(self, rows_R: Tensor) -> Self:
        if self.layout.is_all_in_order(rows_R):
            return self
        layout, maybe_needed_B = self.layout.select(rows_R)
        memory = self.memory if maybe_needed_B is None else self.memory.select(maybe_needed_B)
        attention_RS = None if self.attention_RS is None else self.attention_RS[rows_R, : memory.num_places]
        return replace(self, memory=memory, layout=layout, past=self.past.select(rows_R), attention_RS=attention_RS)

    def append(self, other: DecoderState) -> Self:
        """Attention of the last step is left behind: `other` may not have made one."""
        assert isinstance(other, type(self))
        return replace(
            self,
            memory=self.memory.append(other.memory),
            layout=self.layout.append(other.layout),
            past=self.past.append(other.past),
            attention_RS=None,
        )
