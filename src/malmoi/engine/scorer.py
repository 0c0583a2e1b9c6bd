"""Transformers as scorers in native code.

In: a network on the processor and the built library. Out: log-probabilities of whole rows, or each row's best
candidates without a table of rows and vocabulary. fp32 follows the network's own numbers up to rounding; int8 keeps
weights in 8 bits with a scale per output and activations in 7 bits with a scale per row.

Letters: B sentences, S source places, R rows, C candidates, V vocabulary.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from malmoi.decoding.interface import Best
from malmoi.decoding.scorer import END_ID, ModelScorer
from malmoi.engine.library import EncodeCall, Library, StepCall
from malmoi.engine.rows import EncodedSentences, RowsState, SentenceMemory, SlotPool
from malmoi.engine.weights import collect_weights, describe
from malmoi.models.interface import DecoderState, Memory, check_source, check_tokens
from malmoi.models.positions import RotaryPositions
from malmoi.models.transformer import EncoderLayer, Transformer

FIRST_POSITIONS = 256


class Engine:
    """The packed weights of a network, and tables of positions for it."""

    def __init__(self, library: Library, network: Transformer, int8: bool) -> None:
        self.library = library
        self.network = network
        # The embeddings, norms and tables of distances among them are read where they are.
        self.weights = collect_weights(network)
        shape = describe(network, int8)
        pointers = np.array([0 if one is None else one.data_ptr() for one in self.weights], dtype=np.uintp)
        self.handle = library.new(ctypes.addressof(shape), pointers.ctypes.data)
        if not self.handle:
            raise MemoryError("no memory for the packed weights")
        self.rotary = self.find_rotary()
        self.source_table: Tensor | None = None
        self.target_table: Tensor | None = None

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.free(self.handle)

    def find_rotary(self) -> RotaryPositions | None:
        first = self.network.encoder.layers[0]
        assert isinstance(first, EncoderLayer)
        positions = first.self_attention.positions
        return positions if isinstance(positions, RotaryPositions) else None

    def positions(self, num_positions: int, of_source: bool) -> Tensor | None:
        """A table of so many positions at least; `DataError` where the model has not learned so many."""
        table = self.source_table if of_source else self.target_table
        if table is not None and table.size(0) >= num_positions:
            return table
        like = self.network.target_embedding.weight
        wanted = max(num_positions, FIRST_POSITIONS)
        embedding = self.network.source_positions if of_source else self.network.target_positions
        if self.rotary is not None:
            table = self.rotary.rows.get(wanted, like, self.rotary.head_size, interleaved=False)
        elif embedding is not None:
            most = embedding.max_positions
            table = embedding.table(num_positions if most is not None and most < wanted else wanted, like)
        if of_source:
            self.source_table = table
        else:
            self.target_table = table
        return table


class StepsAlone:
    """A network in native code, as a `Scorer` and a `BestScorer`. Threads may share it."""

    most_candidates = 64

    def __init__(self, engine: Engine, end_id: int = END_ID) -> None:
        network = engine.network
        self.engine = engine
        self.end_id = end_id
        self.vocabulary_size = network.target_vocabulary_size
        self.start_id = network.start_id
        self.source_padding_id = network.source_vocabulary_size
        self.max_steps = network.max_positions
        self.num_layers = len(network.decoder.layers)
        self.pool = SlotPool(self.num_layers * 2 * network.width)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> EncodedSentences:
        check_source(source_BS, source_lengths_B)
        lengths: list[int] = source_lengths_B.tolist()
        is_real_BS = torch.arange(source_BS.size(1)) < source_lengths_B[:, None]
        ids = source_BS[is_real_BS].numpy()
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= self.source_padding_id:
            raise IndexError("a source id is not in the vocabulary")
        width = self.engine.network.width
        sentences = tuple(
            SentenceMemory(np.empty(self.num_layers * 2 * length * width, dtype=np.float32), length)
            for length in lengths
        )
        table = self.engine.positions(max([1, *lengths]), of_source=True)
        lengths_B = np.array(lengths, dtype=np.int64)
        memories_B = np.array([one.values.ctypes.data for one in sentences], dtype=np.uintp)
        call = EncodeCall(
            sentences=len(sentences),
            ids=ids.ctypes.data,
            lengths=lengths_B.ctypes.data,
            memories=memories_B.ctypes.data,
            table=None if table is None else table.data_ptr(),
        )
        check_memory(self.engine.library.encode(self.engine.handle, ctypes.addressof(call)))
        return EncodedSentences(sentences)

    def start(self, memory: Memory, keep_attention: bool = False) -> RowsState:
        assert isinstance(memory, EncodedSentences)
        return RowsState.start(self.pool, memory.sentences, keep_attention)

    def step(self, token_R: Tensor, state: DecoderState) -> tuple[Tensor, RowsState]:
        log_probs_RV = torch.empty(token_R.numel(), self.vocabulary_size)
        after = self.advance(token_R, state, log_probs=log_probs_RV.data_ptr())
        return log_probs_RV, after

    def step_best(
        self,
        token_R: Tensor,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: NDArray[np.int64],
        no_end_R: NDArray[np.bool_] | None,
    ) -> tuple[Best, RowsState]:
        """See `BestScorer`."""
        rows, count = token_R.numel(), min(num_candidates, self.vocabulary_size)
        assert count <= self.most_candidates
        # One piece of memory: asking numpy where an array lies takes as long as a small array operation.
        numbers = np.empty(rows * (2 * count + 1))
        where, size = numbers.ctypes.data, rows * count
        log_probs_RC, end_R = numbers[:size].reshape(rows, count), numbers[2 * size :]
        ids_RC = numbers[size : 2 * size].view(np.int64).reshape(rows, count)
        flags = None if no_end_R is None else np.ascontiguousarray(no_end_R)
        after = self.advance(
            token_R,
            state,
            best=count,
            num_forbidden=len(forbidden_ids),
            forbidden=forbidden_ids.ctypes.data,
            no_end=None if flags is None else flags.ctypes.data,
            best_log_probs=where,
            best_ids=where + 8 * size,
            end_log_probs=where + 16 * size,
        )
        if no_end_R is not None:
            end_R[no_end_R] = -np.inf
        return Best(log_probs_RC, ids_RC, end_R), after

    def advance(self, token_R: Tensor, state: DecoderState, **results: Any) -> RowsState:
        """Feed a token per row and write the results that are asked for."""
        assert isinstance(state, RowsState)
        check_tokens(token_R, state.num_rows)
        tokens = np.ascontiguousarray(token_R.numpy())
        # As unsigned numbers, negative ones are too large as well.
        if tokens.size and int(tokens.view(np.uint64).max()) > self.start_id:
            raise IndexError("a token is not in the vocabulary")
        after = self.pool.extend(state)
        # Held here, since another thread may take more memory meanwhile.
        chunks = self.pool.pointers
        _, _, memories, source_lengths = state.asked.of_rows
        table = self.engine.positions(after.table_RT.shape[1], of_source=False)
        places = int(state.asked.lengths_B.max(initial=1)) if state.keep_attention else 0
        attention_RS = torch.empty(len(tokens), max(places, 1)) if state.keep_attention else None
        call = StepCall(
            rows=len(tokens),
            stride=after.table_RT.shape[1],
            end_id=self.end_id if "end_log_probs" in results else -1,
            places=max(places, 1),
            slot_shift=self.pool.shift,
            tokens=tokens.ctypes.data,
            lengths=state.lengths_R.ctypes.data,
            slots=after.table_RT.ctypes.data,
            chunks=chunks[1],
            memories=memories,
            source_lengths=source_lengths,
            table=None if table is None else table.data_ptr(),
            attention=None if attention_RS is None else attention_RS.data_ptr(),
            **results,
        )
        check_memory(self.engine.library.step(self.engine.handle, ctypes.addressof(call)))
        after.attention_RS = attention_RS
        return after


class EngineScorer(StepsAlone):
    """The same in fp32, whose numbers are the network's: whole targets are read by the network in one pass."""

    def score_targets(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, target_lengths_B: Tensor
    ) -> Tensor:
        """See `WholeTargets`."""
        scorer = ModelScorer(self.engine.network, self.end_id)
        return scorer.score_targets(source_BS, source_lengths_B, target_BT, target_lengths_B)


def check_memory(result: int) -> None:
    if result:
        raise MemoryError("no memory for a step of the engine")
