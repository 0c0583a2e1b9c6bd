"""Transformers as scorers in native code.

In: weights by their names in a model folder, and the built library; torch is not needed. Out: log-probabilities of
whole rows, or each row's best candidates without a table of rows and vocabulary. fp32 follows the network's own numbers
up to rounding; int8 keeps weights in 8 bits with a scale per output and activations in 7 bits with a scale per row.

Letters: B sentences, S source places, R rows, C candidates, V vocabulary.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from malmoi.config.model import TransformerConfig
from malmoi.decoding.interface import (
    Best,
    Candidates,
    DecoderState,
    Flags,
    Floats,
    Integers,
    Memory,
    Merged,
    Numbers,
    Run,
    Said,
)
from malmoi.decoding.targets import WholeTargets
from malmoi.engine.library import EncodeCall, Library, StepCall, address, check
from malmoi.engine.positions import PositionTable
from malmoi.engine.rows import NONE_FRESH, EncodedSentences, RowsState, SentenceMemory, SlotPool
from malmoi.engine.weights import Sizes, Weights, describe, parts
from malmoi.text.ids import END_ID


class Engine:
    """The packed weights of a model, and tables of positions for it."""

    def __init__(self, library: Library, config: TransformerConfig, sizes: Sizes, weights: Weights, int8: bool) -> None:
        """`weights` are contiguous; what is packed from them is not needed any more."""
        self.library = library
        self.config = config
        self.sizes = sizes
        self.int8 = int8
        pieces = parts(config, sizes)
        found = [None if (name := part.maybe_name) is None else weights[name] for part in pieces]
        shape = describe(config, sizes, int8)
        pointers = np.array([0 if one is None else one.ctypes.data for one in found], dtype=np.uintp)
        self.handle = library.new(ctypes.addressof(shape), address(pointers))
        if not self.handle:
            raise MemoryError("no memory for the packed weights")
        self.read_in_place = [one for one, part in zip(found, pieces, strict=True) if part.is_read_in_place]
        self.source_table = PositionTable(config, weights, of_source=True)
        self.target_table = PositionTable(config, weights, of_source=False)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.free(self.handle)


class StepsAlone:
    """A model in native code, as a `Scorer` and a `MergingScorer`. Threads may share it."""

    most_candidates = 64
    allows_threads = True

    def __init__(self, engine: Engine, end_id: int = END_ID) -> None:
        config = engine.config
        self.engine = engine
        self.end_id = end_id
        self.vocabulary_size = engine.sizes.target
        self.start_id = engine.sizes.target
        self.source_padding_id = engine.sizes.source
        self.max_steps = config.max_positions if config.positions == "learned" else None
        self.num_layers = config.decoder_layers
        self.pool = SlotPool(self.num_layers * 2 * config.width)

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> EncodedSentences:
        """See `Scorer`; `IndexError` for an id that is not in the vocabulary."""
        ids = source_BS[np.arange(source_BS.shape[1]) < source_lengths_B[:, None]]
        width = self.engine.config.width
        lengths: list[int] = source_lengths_B.tolist()
        sentences = tuple(
            SentenceMemory(np.empty(self.num_layers * 2 * length * width, dtype=np.float32), length)
            for length in lengths
        )
        table = self.engine.source_table.rows(max([1, *lengths]))
        lengths_B = np.array(lengths, dtype=np.int64)
        memories_B = np.array([address(one.values) for one in sentences], dtype=np.uintp)
        call = EncodeCall(
            sentences=len(sentences),
            ids=address(ids),
            lengths=address(lengths_B),
            memories=address(memories_B),
            table=None if table is None else table[1],
        )
        check(self.engine.library.encode(self.engine.handle, ctypes.addressof(call)))
        return EncodedSentences(sentences)

    def start(self, memory: Memory, keep_attention: bool = False) -> RowsState:
        """See `Scorer`."""
        assert isinstance(memory, EncodedSentences)
        return RowsState.start(self.pool, memory.sentences, keep_attention)

    def step(self, token_R: Integers, state: DecoderState) -> tuple[Numbers, RowsState]:
        """See `Scorer`."""
        log_probs_RV = np.empty((len(token_R), self.vocabulary_size), dtype=np.float32)
        return log_probs_RV, self.advance(token_R, state, log_probs=address(log_probs_RV), end_id=-1)

    def step_best(
        self,
        token_R: Integers,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: Integers,
        no_end_R: Flags | None,
    ) -> tuple[Best, RowsState]:
        """See `BestScorer`."""
        rows, count = len(token_R), min(num_candidates, self.vocabulary_size)
        # One piece of memory: asking where an array lies takes as long as a small array operation.
        numbers = np.empty(rows * (2 * count + 1))
        after = self.advance(token_R, state, **self.best(count, address(numbers), rows, forbidden_ids, no_end_R))
        size = rows * count
        log_probs_RC, end_R = numbers[:size].reshape(rows, count), numbers[2 * size :]
        ids_RC = numbers[size : 2 * size].view(np.int64).reshape(rows, count)
        if no_end_R is not None:
            end_R[no_end_R] = -np.inf
        return Best(log_probs_RC, ids_RC, end_R), after

    def step_merged(
        self,
        token_A: Integers,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: Integers,
        no_end_A: Flags | None,
        totals_BK: Floats,
        maybe_alive: Integers | None,
        most_steps: int = 1,
    ) -> tuple[Merged, RowsState]:
        """See `MergingScorer`."""
        rows, count = len(token_A), min(num_candidates, self.vocabulary_size)
        num_sentences, width = totals_BK.shape
        most = min(num_candidates, width * count)
        of_rows, size = rows * (2 * count + 1), num_sentences * most
        # The last step's numbers, then rows, ids and log-probabilities of plain ones, then their sums.
        of_plain = (most_steps - 1) * rows
        numbers = np.empty(of_rows + 4 * size + (3 * of_plain + rows if of_plain else 0))
        where = address(numbers)
        merged = where + 8 * of_rows
        plain = merged + 32 * size
        totals_BK = np.ascontiguousarray(totals_BK)
        is_plain, num_plain = ctypes.c_int64(), ctypes.c_int64()
        after = self.advance(
            token_A,
            state,
            **self.best(count, where, rows, forbidden_ids, no_end_A),
            sentences=num_sentences,
            rows_each=width,
            merged=most,
            totals=address(totals_BK),
            alive=None if maybe_alive is None else address(maybe_alive),
            merged_totals=merged,
            merged_log_probs=merged + 8 * size,
            merged_rows=merged + 16 * size,
            merged_ids=merged + 24 * size,
            is_plain=ctypes.addressof(is_plain),
            most_steps=most_steps,
            num_plain=ctypes.addressof(num_plain),
            plain_rows=plain,
            plain_ids=plain + 8 * of_plain,
            plain_log_probs=plain + 16 * of_plain,
            plain_totals=plain + 24 * of_plain,
        )
        tables = numbers[of_rows : of_rows + 4 * size].reshape(4, num_sentences, most)
        whole = tables.view(np.int64)
        candidates = Candidates(tables[0], tables[1], whole[2], whole[3], bool(is_plain.value))
        if not num_plain.value:
            return Merged(candidates, (), totals_BK), after
        after.longest += num_plain.value
        steps = numbers[of_rows + 4 * size : -rows].reshape(3, most_steps - 1, rows)
        ids = steps.view(np.int64)
        said = tuple(Said(ids[0, step], ids[1, step], steps[2, step]) for step in range(num_plain.value))
        return Merged(candidates, said, numbers[-rows:].reshape(num_sentences, width)), after

    def run_greedily(
        self, token_R: Integers, state: DecoderState, forbidden_ids: Integers, totals_R: Floats, num_steps: int
    ) -> tuple[Run, RowsState]:
        """See `GreedyScorer`."""
        rows = len(token_R)
        numbers = np.zeros((2 * num_steps + 2, rows))
        whole = numbers.view(np.int64)
        run = Run(whole[:num_steps], numbers[num_steps : 2 * num_steps], whole[-2], numbers[-1])
        run.totals_R[:] = totals_R
        where, size = address(numbers), 8 * rows
        after = self.advance(
            token_R,
            state,
            self.engine.library.go_greedily,
            end_id=self.end_id,
            num_forbidden=len(forbidden_ids),
            forbidden=address(forbidden_ids),
            most_steps=num_steps,
            plain_ids=where,
            plain_log_probs=where + num_steps * size,
            num_plain=where + 2 * num_steps * size,
            plain_totals=where + (2 * num_steps + 1) * size,
        )
        after.longest += num_steps - 1
        return run, after

    def best(
        self, count: int, where: int, rows: int, forbidden_ids: Integers, no_end_R: Flags | None
    ) -> dict[str, int | None]:
        """What asks for the best `count` tokens of each row: log-probabilities, ids, and those of the end symbol."""
        assert count <= self.most_candidates
        size = 8 * rows * count
        return {
            "best": count,
            "end_id": self.end_id,
            "num_forbidden": len(forbidden_ids),
            "forbidden": address(forbidden_ids),
            "no_end": None if no_end_R is None else address(no_end_R),
            "best_log_probs": where,
            "best_ids": where + size,
            "end_log_probs": where + 2 * size,
        }

    def advance(
        self,
        token_R: Integers,
        state: DecoderState,
        maybe_function: Callable[[int, int], int] | None = None,
        /,
        **results: int | None,
    ) -> RowsState:
        """Feed a token per row and write the results that are asked for; see `check` for faults. The function is that
        of one step, if no other is named."""
        assert isinstance(state, RowsState)
        rows = len(token_R)
        if rows != state.num_rows:
            raise ValueError(f"there are {rows} tokens for {state.num_rows} rows")
        engine, asked, origins_R = self.engine, state.asked, state.maybe_origins_R
        tokens = np.ascontiguousarray(token_R)
        after, fresh, chunks = self.pool.extend(state, rows, results.get("most_steps") or 1)
        table = engine.target_table.rows(after.stride)
        places = int(asked.lengths_B.max(initial=1)) if state.keep_attention else 1
        attention_RS = np.empty((rows, places), dtype=np.float32) if state.keep_attention else None
        _, _, memories, source_lengths = asked.of_rows
        # What is not asked for is 0.
        call = StepCall(
            rows=rows,
            rows_before=state.num_stored,
            stride_before=state.stride,
            stride=after.stride,
            places=places,
            slot_shift=self.pool.shift,
            tokens=address(tokens),
            origins=None if origins_R is None else address(origins_R),
            lengths_before=state.where,
            slots_before=state.where_table,
            fresh=fresh,
            lengths=after.where,
            slots=after.where_table,
            chunks=chunks[1],
            memories=memories,
            source_lengths=source_lengths,
            table=None if table is None else table[1],
            attention=None if attention_RS is None else address(attention_RS),
            **results,
        )
        check((maybe_function or engine.library.step)(engine.handle, ctypes.addressof(call)))
        after.fresh = NONE_FRESH
        after.attention_RS = attention_RS
        return after


class EngineScorer(StepsAlone):
    """The same in fp32, whose numbers are the network's: whole targets are read by the network in one pass."""

    def __init__(self, engine: Engine, network: Callable[[], WholeTargets], end_id: int = END_ID) -> None:
        """`network` is the same model, asked for when it is first needed."""
        super().__init__(engine, end_id)
        self.network = network

    def score_targets(
        self, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
    ) -> Numbers:
        """See `WholeTargets`."""
        return self.network().score_targets(source_BS, source_lengths_B, target_BT, target_lengths_B)
