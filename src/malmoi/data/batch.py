"""Batches: padded tensors made from pairs of stores.

In: stores and indices of pairs. Out: a `Batch`.
Letters: B pairs of the batch, S longest source, T longest target, end symbols included.

Padding is the id of the extra row that stands last in an embedding, but its value never matters: whoever reads a batch
goes by lengths, so that no id of the vocabulary, the end symbol least of all, can be mistaken for padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from malmoi.data.store import IntArray, Store
from malmoi.text.tokenizer import Tokenizer, Tokenizers

# The stream of random numbers that is ours under a seed; see `batching`.
SAMPLING = 2


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on another device. To CUDA through pinned memory and in the order of its stream: a plain copy would wait
    for all that the device has still to do."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs side by side: what one forward pass sees."""

    source_BS: Tensor
    """int64 ids; each source ends with the end symbol."""
    source_lengths_B: Tensor
    """int64, end symbol included."""
    target_input_BT: Tensor
    """int64 ids; each row starts with the start symbol and lacks the end symbol."""
    target_output_BT: Tensor
    """int64 ids; what is to be predicted at each place of `target_input_BT`; ends with the end symbol."""
    target_lengths_B: Tensor
    """int64, end symbol included: real places of both target tensors."""
    lines_B: npt.NDArray[np.int64]
    """Line of each pair in its corpus, from 1."""
    num_target_tokens: int
    """Sum of the target lengths: what the loss of an update is divided by."""

    @property
    def num_pairs(self) -> int:
        return len(self.lines_B)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on another device; the host does not wait for CUDA."""
        return replace(
            self,
            source_BS=moved(self.source_BS, device),
            source_lengths_B=moved(self.source_lengths_B, device),
            target_input_BT=moved(self.target_input_BT, device),
            target_output_BT=moved(self.target_output_BT, device),
            target_lengths_B=moved(self.target_lengths_B, device),
        )

    def split(self, max_tokens: int) -> "list[Batch]":
        """Cut into micro-batches of at most `max_tokens` each (pairs times longest side), padding trimmed.

        Rows keep their order, and each is in exactly one part. A pair that is longer alone stays alone.
        0 means no limit.
        """
        if max_tokens == 0:
            return [self]
        costs = torch.maximum(self.source_lengths_B, self.target_lengths_B).cpu().numpy()
        return [self.rows(first, last) for first, last in cut(costs, max_tokens)]

    def rows(self, first: int, last: int) -> "Batch":
        """Rows `first` to `last` - 1 as a batch of their own, without the padding that they do not need."""
        if (first, last) == (0, self.num_pairs):
            return self
        source_lengths, target_lengths = self.source_lengths_B[first:last], self.target_lengths_B[first:last]
        longest_source, longest_target = int(source_lengths.max()), int(target_lengths.max())
        return Batch(
            source_BS=self.source_BS[first:last, :longest_source].contiguous(),
            source_lengths_B=source_lengths,
            target_input_BT=self.target_input_BT[first:last, :longest_target].contiguous(),
            target_output_BT=self.target_output_BT[first:last, :longest_target].contiguous(),
            target_lengths_B=target_lengths,
            lines_B=self.lines_B[first:last],
            num_target_tokens=int(target_lengths.sum()),
        )

    def without_targets(self) -> "Batch":
        """One row, of one place on each side, that has no real target token.

        A pass over it takes the way of every other, and gives a loss and gradients of zero.
        """
        return Batch(
            source_BS=self.source_BS[:1, :1],
            source_lengths_B=torch.ones_like(self.source_lengths_B[:1]),
            target_input_BT=self.target_input_BT[:1, :1],
            target_output_BT=self.target_output_BT[:1, :1],
            target_lengths_B=torch.zeros_like(self.target_lengths_B[:1]),
            lines_B=self.lines_B[:1],
            num_target_tokens=0,
        )


def cut(costs: npt.NDArray[Any], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive groups whose size times highest cost is at most `max_tokens`.

    Each group takes as many as fit; one whose own cost is above the limit is alone.
    """
    first = 0
    while first < len(costs):
        # So many would fit if none were longer than the first: no need to look further.
        window = costs[first : first + max(1, max_tokens // int(costs[first]))]
        areas = np.maximum.accumulate(window).astype(np.int64) * np.arange(1, len(window) + 1)
        last = first + max(1, int(np.searchsorted(areas, max_tokens, side="right")))
        yield first, last
        first = last


def collate(stores: Sequence[Store], indices: IntArray, source_padding_id: int, target_start_id: int) -> Batch:
    """A batch of the pairs with these indices, which count through all stores one after the other.

    Raises IndexError for an index outside of the stores, and `DataError` where a store's files are not what they were.
    """
    bounds = np.cumsum([0, *(store.num_pairs for store in stores)])
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < int(bounds[-1]):
        raise IndexError(f"pairs {int(indices.min())} to {int(indices.max())} of stores with {int(bounds[-1])} pairs")
    owners = np.searchsorted(bounds, indices, side="right") - 1
    source = Padded(np.empty(len(indices), dtype=np.int64))
    target = Padded(np.empty(len(indices), dtype=np.int64))
    lines = np.empty(len(indices), dtype=np.int64)
    owned = [
        (store, owners == number, indices[owners == number] - bounds[number])
        for number, store in enumerate(stores)
        if len(stores) == 1 or number in owners
    ]
    for store, rows, local in owned:
        # A file that was cut short would end the program when what is no longer there is looked at.
        store.check()
        source.lengths[rows] = store.source_offsets[local + 1] - store.source_offsets[local]
        target.lengths[rows] = store.target_offsets[local + 1] - store.target_offsets[local]
        lines[rows] = store.line_numbers[local]
    source.allocate(source_padding_id)
    target.allocate(target_start_id)
    for store, rows, local in owned:
        source.fill(rows, store.source_ids, store.source_offsets[local])
        target.fill(rows, store.target_ids, store.target_offsets[local])
    return assemble(source, target, lines, target_start_id)


def batch_of_rows(
    sources: Sequence[npt.ArrayLike],
    targets: Sequence[npt.ArrayLike],
    lines: npt.NDArray[np.int64],
    source_padding_id: int,
    target_start_id: int,
) -> Batch:
    """A batch of ids that are already at hand; each row ends with the end symbol."""
    return assemble(pad(sources, source_padding_id), pad(targets, target_start_id), lines, target_start_id)


@dataclass(eq=False)
class Padded:
    """Rows of one side, filled up to the longest."""

    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))

    def allocate(self, padding_id: int) -> None:
        """Make room for rows of the given lengths."""
        self.ids = np.full((len(self.lengths), int(self.lengths.max(initial=0))), padding_id, dtype=np.int64)

    def fill(self, rows: npt.NDArray[np.bool_], ids: IntArray, starts: npt.NDArray[np.int64]) -> None:
        """Copy what stands in `ids` from each of `starts` on into the marked rows: one gather, no loop over rows."""
        lengths = self.lengths[rows]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        real = np.arange(self.ids.shape[1])[None, :] < np.where(rows, self.lengths, 0)[:, None]
        self.ids[real] = ids[places]


def pad(rows: Sequence[npt.ArrayLike], padding_id: int) -> Padded:
    """Rows of different lengths as one array."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    padded = Padded(np.array([len(array) for array in arrays], dtype=np.int64))
    padded.allocate(padding_id)
    everything = np.concatenate(arrays)
    padded.fill(np.ones(len(arrays), dtype=np.bool_), everything, np.cumsum(padded.lengths) - padded.lengths)
    return padded


def assemble(source: Padded, target: Padded, lines: npt.NDArray[np.int64], target_start_id: int) -> Batch:
    """Tensors of both sides; the decoder's input is its output moved right by one behind the start symbol."""
    target_input_BT = np.full_like(target.ids, target_start_id)
    # A row's last input is its last word: the end symbol is never read, and what is past it is padding.
    real = np.arange(1, target.ids.shape[1])[None, :] < target.lengths[:, None]
    target_input_BT[:, 1:] = np.where(real, target.ids[:, :-1], target_start_id)
    return Batch(
        source_BS=torch.from_numpy(source.ids),
        source_lengths_B=torch.from_numpy(source.lengths),
        target_input_BT=torch.from_numpy(target_input_BT),
        target_output_BT=torch.from_numpy(target.ids),
        target_lengths_B=torch.from_numpy(target.lengths),
        lines_B=lines,
        num_target_tokens=int(target.lengths.sum()),
    )


@dataclass(frozen=True, eq=False)
class BatchMaker:
    """Batches for training from indices, with subword sampling on request (`sampling` above 0).

    Sampled text is decoded from the stored ids and encoded anew, by a generator that depends on (seed, epoch, position)
    and the pair's row alone: BPE-dropout (Provilkov et al., 2020) or unigram sampling (Kudo, 2018), on each side whose
    tokeniser is of such a kind. It grows longer, so a batch may then hold more than its budget (`Batch.split` counts
    what is there); a text that grows beyond `max_tokens` keeps its stored ids.

    `part` says which rows are made, of a batch that is shared out; the rest is not read.
    """

    stores: Sequence[Store]
    tokenizers: Tokenizers
    seed: int
    sampling: float = 0.0
    max_tokens: int = 256
    part: slice = field(default_factory=lambda: slice(None))

    def __call__(self, indices: IntArray, epoch: int, position: int) -> Batch:
        """This part of the batch of these pairs, which stands at this position of this epoch."""
        mine = indices[self.part]
        source_padding_id, target_start_id = self.tokenizers.source.size, self.tokenizers.target.size
        if not len(mine):
            return collate(self.stores, indices[:1], source_padding_id, target_start_id).without_targets()
        batch = collate(self.stores, mine, source_padding_id, target_start_id)
        if not self.sampling:
            return batch
        randomness = np.random.default_rng([self.seed, SAMPLING, epoch, position])
        seeds = randomness.integers(2**32, size=(len(indices), 2))[self.part]
        source = rows_of(batch.source_BS, batch.source_lengths_B)
        target = rows_of(batch.target_output_BT, batch.target_lengths_B)
        return batch_of_rows(
            self.sampled(self.tokenizers.source, source, seeds[:, 0]),
            self.sampled(self.tokenizers.target, target, seeds[:, 1]),
            batch.lines_B,
            source_padding_id,
            target_start_id,
        )

    def sampled(self, tokenizer: Tokenizer, rows: list[list[int]], seeds: npt.NDArray[np.int64]) -> list[list[int]]:
        """Rows cut anew, each with a seed of its own."""
        if tokenizer.kind not in ("bpe", "unigram"):
            return rows
        anew = [
            [*tokenizer.encode_sampled([tokenizer.decode(row)], self.sampling, int(seed))[0], tokenizer.end_id]
            for row, seed in zip(rows, seeds, strict=True)
        ]
        return [new if len(new) <= self.max_tokens else old for new, old in zip(anew, rows, strict=True)]


def rows_of(ids_BL: Tensor, lengths_B: Tensor) -> list[list[int]]:
    """Rows without their padding."""
    return [row[:length] for row, length in zip(ids_BL.tolist(), lengths_B.tolist(), strict=True)]


class IndexLists(Protocol):
    """Indices of the pairs of each batch; `batching.EpochPlan` is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> IntArray: ...


@dataclass(frozen=True, eq=False)
class ValidationBatches:
    """The batches of a plan of `batching.in_order`, never sampled, each made when it is asked for."""

    stores: Sequence[Store]
    tokenizers: Tokenizers
    plan: IndexLists

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, number: int, /) -> Batch:
        return collate(self.stores, self.plan[number], self.tokenizers.source.size, self.tokenizers.target.size)
