"""What training has of native code: the output layer with its loss, attention over short sentences, residual sums.

In: tensors of fp32 on the CPU, as addresses. Out: what is written into those of the caller. Calls do not hold Python's
lock. The references are `training/loss.py`, `models/attention.py` and `models/blocks.py`.

Letters: R rows, D width, V classes.
"""

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from malmoi.native.library import find_library_path

FEWEST_ROWS, FEWEST_SENTENCES = 64, 16
"""Rows of the loss, and sentences of attention, that are worth a thread of their own."""

Result = TypeVar("Result")
Room = TypeVar("Room")


class LossCall(ctypes.Structure):
    """`malmoi::LossCall` of training.h."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("states", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("smoothing", ctypes.c_double),
        ("unscaled", ctypes.c_void_p),
        ("inverse", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    ]


class AttentionCall(ctypes.Structure):
    """`malmoi::AttentionCall` of attention.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                *("first", "last", "heads", "size", "queries", "keys", "query_sentence", "query_place"),
                *("key_sentence", "key_place", "added_sentence", "added_query", "padded"),
            )
        ),
        ("scale", ctypes.c_double),
        *(
            (name, ctypes.c_void_p)
            for name in ("query", "key", "value", "added", "weights", "attended", "d_query", "d_key", "d_value")
        ),
    ]


class ResidualCall(ctypes.Structure):
    """`malmoi::ResidualCall` of residual.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("first", "last", "width", "kept_levels")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("states", "sublayer", "levels", "gain", "bias", "out", "normed", "inverse"),
                *("d_states", "d_sublayer", "d_gain", "d_bias"),
            )
        ),
    ]


@dataclass(frozen=True)
class Addresses:
    """Where the arrays of a call begin, and how many bytes one row of each takes."""

    states: int
    targets: int
    unscaled: int
    inverse: int


class TrainingCode:
    """The library, and threads that share what it is asked."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self.maybe_pool = ThreadPoolExecutor(num_threads) if num_threads > 1 else None
        library.malmoi_training_new.restype = ctypes.c_void_p
        library.malmoi_training_free.argtypes = [ctypes.c_void_p]
        library.malmoi_training_pack.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64]
        library.malmoi_training_pack.restype = ctypes.c_int64
        library.malmoi_training_loss.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.malmoi_training_attend.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.malmoi_training_residual.argtypes = [ctypes.c_void_p, ctypes.c_int]

    def __deepcopy__(self, _: object) -> "TrainingCode":
        """A copy of a model uses the same code."""
        return self

    def share(self, work: Callable[[int, int], Result], count: int, fewest: int) -> list[Result]:
        """`work(first, last)` over parts of `count` things, in their order, at least `fewest` for each thread."""
        parts = max(1, min(self.num_threads, count // fewest))
        cuts = [count * part // parts for part in range(parts + 1)]
        if self.maybe_pool is None or parts == 1:
            return [work(first, last) for first, last in itertools.pairwise(cuts)]
        return list(self.maybe_pool.map(work, cuts[:-1], cuts[1:]))

    def attend(self, call: AttentionCall, num_sentences: int, *, backwards: bool = False) -> None:
        """Attention of all sentences, or its gradient; `MemoryError` where there is none."""

        def some(first: int, last: int) -> int:
            part = AttentionCall.from_buffer_copy(call)
            part.first, part.last = first, last
            return self.library.malmoi_training_attend(ctypes.byref(part), backwards)

        if any(self.share(some, num_sentences, FEWEST_SENTENCES)):
            raise MemoryError("no memory for attention")

    def add_and_norm(self, call: ResidualCall, num_rows: int) -> None:
        """Dropout, residual sum and LayerNorm of all rows."""
        self.share(lambda first, last: self.rows_of(call, first, last, None), num_rows, FEWEST_ROWS)

    def add_and_norm_back(self, call: ResidualCall, num_rows: int, room: Callable[[], tuple[int, Room]]) -> list[Room]:
        """The gradients of it; those of gain and bias lie in what `room` gives, one for each thread's rows: where its
        (2, width) zeros begin, and what holds them."""

        def some(first: int, last: int) -> Room:
            address, holder = room()
            self.rows_of(call, first, last, address)
            return holder

        return self.share(some, num_rows, FEWEST_ROWS)

    def rows_of(self, call: ResidualCall, first: int, last: int, maybe_room: int | None) -> None:
        """Rows from `first` to before `last`; backwards with a place for the gradients of gain and bias."""
        part = ResidualCall.from_buffer_copy(call)
        part.first, part.last = first, last
        if maybe_room is not None:
            part.d_gain, part.d_bias = maybe_room, maybe_room + 4 * call.width
        self.library.malmoi_training_residual(ctypes.byref(part), maybe_room is not None)


class OutputLayer:
    """The output layer's weights as native code wants them, and the loss of rows."""

    def __init__(self, code: TrainingCode) -> None:
        """`MemoryError` where there is none."""
        self.code = code
        self.library = code.library
        self.handle = self.library.malmoi_training_new()
        if not self.handle:
            raise MemoryError("no memory for the output layer")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.malmoi_training_free(self.handle)

    def pack(self, weight: int, maybe_bias: int | None, num_classes: int, width: int) -> int:
        """Lay out weights (V, D) and a bias (V); the floats from one row of scores to the next."""
        stride = self.library.malmoi_training_pack(self.handle, weight, maybe_bias, num_classes, width)
        if not stride:
            raise MemoryError("no memory for the output layer")
        self.width, self.stride = width, stride
        return stride

    def loss(self, arrays: Addresses, num_rows: int, smoothing: float) -> tuple[float, float]:
        """Sums over rows of log s + m - z[right] and of log s + m, with z, m and s of `ChunkPass`.

        `unscaled` becomes exp(z - m), less (1 - smoothing) s at the right symbol, `inverse` 1 / s.
        """
        found = self.code.share(lambda first, last: self.loss_of(arrays, first, last, smoothing), num_rows, FEWEST_ROWS)
        return sum(nll for nll, _ in found), sum(level for _, level in found)

    def loss_of(self, arrays: Addresses, first: int, last: int, smoothing: float) -> tuple[float, float]:
        """The same for rows from `first` to before `last`."""
        sums = (ctypes.c_double * 2)()
        call = LossCall(
            last - first,
            self.stride,
            arrays.states + 4 * first * self.width,
            arrays.targets + 8 * first,
            smoothing,
            arrays.unscaled + 4 * first * self.stride,
            arrays.inverse + 4 * first,
            ctypes.addressof(sums),
        )
        self.library.malmoi_training_loss(self.handle, ctypes.byref(call))
        return sums[0], sums[1]


def find_training_code(num_threads: int, folder: Path | None = None) -> TrainingCode | None:
    """Native code for training; None where none was built, or what was built cannot be loaded."""
    maybe_path = find_library_path(folder)
    try:
        return TrainingCode(ctypes.CDLL(str(maybe_path)), num_threads) if maybe_path else None
    except (OSError, AttributeError):
        return None
