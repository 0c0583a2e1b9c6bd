"""What training has of native code: the output layer with its loss, attention over short sentences, residual sums.

In: tensors of fp32 or bf16 on the CPU, as addresses. Out: what is written into those of the caller. Calls do not hold
Python's lock. The references are `training/loss.py`, `training/consistency.py`, `models/attention.py` and
`models/blocks.py`.

Letters: R rows, D width, V classes.
"""

import ctypes
from pathlib import Path

from malmoi.native.library import find_library_path

FEWEST_ROWS, FEWEST_SENTENCES = 64, 16
"""Rows, and sentences of attention, that are worth a thread of their own."""


class Team(ctypes.Structure):
    """`malmoi::Team` of share.h."""

    _fields_ = [("parallel", ctypes.c_void_p), ("parts", ctypes.c_int64)]


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


class PairCall(ctypes.Structure):
    """`malmoi::PairCall` of consistency.h; what there are two of, is one of each pass."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("states", ctypes.c_void_p * 2),
        ("targets", ctypes.c_void_p),
        ("smoothing", ctypes.c_double),
        ("weight", ctypes.c_double),
        ("gradients", ctypes.c_void_p * 2),
        ("sums", ctypes.c_void_p),
    ]


class AttentionCall(ctypes.Structure):
    """`malmoi::AttentionCall` of attention.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                *("in_halves", "first", "last", "heads", "size", "queries", "keys", "query_sentence", "query_place"),
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
        *((name, ctypes.c_int64) for name in ("in_halves", "first", "last", "width", "kept_levels")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("states", "sublayer", "levels", "gain", "bias", "out", "normed", "inverse"),
                *("d_states", "d_sublayer", "d_gain", "d_bias"),
            )
        ),
    ]


class TrainingCode:
    """The library, and threads that share what it is asked."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        """`num_threads`: those of torch; `AttributeError` where there are several and its OpenMP is not GCC's."""
        self.library = library
        self.maybe_parallel = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p) if num_threads > 1 else None
        self.num_threads = num_threads
        library.malmoi_training_new.restype = ctypes.c_void_p
        library.malmoi_training_free.argtypes = [ctypes.c_void_p]
        library.malmoi_training_pack.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
        library.malmoi_training_pack.restype = ctypes.c_int64
        library.malmoi_training_loss.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.malmoi_training_pair.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.malmoi_training_attend.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        library.malmoi_training_residual.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    def __deepcopy__(self, _: object) -> "TrainingCode":
        """A copy of a model uses the same code."""
        return self

    def team(self, count: int, fewest: int) -> Team:
        """Parts of so many things, at least `fewest` in each but the only one."""
        return Team(self.maybe_parallel, max(1, min(self.num_threads, count // fewest)))

    def attend(self, call: AttentionCall, *, backwards: bool = False) -> None:
        """Attention of the sentences before `last`, or its gradient; `MemoryError` where there is none."""
        team = self.team(call.last, FEWEST_SENTENCES)
        if self.library.malmoi_training_attend(ctypes.byref(call), backwards, ctypes.byref(team)):
            raise MemoryError("no memory for attention")

    def add_and_norm(self, call: ResidualCall, *, backwards: bool = False) -> None:
        """Dropout, residual sum and LayerNorm of the rows before `last`, or their gradients.

        Then `d_gain` is where (`num_threads`, 2, width) zeros begin, each part's own.
        """
        team = self.team(call.last, FEWEST_ROWS)
        self.library.malmoi_training_residual(ctypes.byref(call), backwards, ctypes.byref(team))


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

    def __copy__(self) -> "OutputLayer":
        """Its own: what is laid out is freed with one owner."""
        return OutputLayer(self.code)

    def __deepcopy__(self, _: object) -> "OutputLayer":
        return OutputLayer(self.code)

    def pack(self, weight: int, maybe_bias: int | None, num_classes: int, width: int, *, is_bf16: bool = False) -> int:
        """Lay out weights (V, D) of fp32 or bf16 and a bias (V) of fp32; the numbers from one row of scores to the
        next."""
        stride = self.library.malmoi_training_pack(self.handle, weight, maybe_bias, num_classes, width, is_bf16)
        if not stride:
            raise MemoryError("no memory for the output layer")
        self.stride = stride
        return stride

    def loss(self, call: LossCall) -> tuple[float, float]:
        """Sums over rows of log s + m - z[right] and of log s + m, with z, m and s of `ChunkPass`.

        `states` and `unscaled` are of the type of the packed weights. `unscaled` becomes exp(z - m), less
        (1 - smoothing) s at the right symbol, `inverse` 1 / s.
        """
        team = self.code.team(call.rows, FEWEST_ROWS)
        sums = (ctypes.c_double * (2 * team.parts))()
        call.sums = ctypes.addressof(sums)
        if self.library.malmoi_training_loss(self.handle, ctypes.byref(call), ctypes.byref(team)):
            raise MemoryError("no memory for the loss")
        return sum(sums[::2]), sum(sums[1::2])

    def pair_loss(self, call: PairCall) -> tuple[float, ...]:
        """The sums of `loss` for the first pass and for the second, and that of both divergences.

        `gradients` become those of two whole losses with respect to the scores, but for the uniform part of smoothing.
        """
        team = self.code.team(call.rows, FEWEST_ROWS)
        sums = (ctypes.c_double * (5 * team.parts))()
        call.sums = ctypes.addressof(sums)
        self.library.malmoi_training_pair(self.handle, ctypes.byref(call), ctypes.byref(team))
        return tuple(sum(sums[kind::5]) for kind in range(5))


def find_training_code(num_threads: int, folder: Path | None = None) -> TrainingCode | None:
    """Native code for training; None where none was built, or what was built cannot be loaded."""
    maybe_path = find_library_path(folder)
    try:
        return TrainingCode(ctypes.CDLL(str(maybe_path)), num_threads) if maybe_path else None
    except (OSError, AttributeError):
        return None
