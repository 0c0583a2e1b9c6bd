"""What training has of native code: the output layer and its loss over some rows at a time.

In: tensors of fp32 on the CPU, as addresses. Out: what is written into those of the caller. Calls do not hold Python's
lock. Formulas stand in `training/loss.py`, which is the reference.

Letters: R rows, D width, V classes.
"""

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from malmoi.native.library import find_library_path

FEWEST_ROWS = 64
"""Rows that are worth a thread of their own."""


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


@dataclass(frozen=True)
class Addresses:
    """Where the arrays of a call begin, and how many bytes one row of each takes."""

    states: int
    targets: int
    unscaled: int
    inverse: int


class OutputLayer:
    """The output layer's weights as native code wants them, and the loss of rows."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        """`MemoryError` where there is none."""
        self.library = library
        self.num_threads = num_threads
        self.maybe_pool = ThreadPoolExecutor(num_threads) if num_threads > 1 else None
        self.handle = library.malmoi_training_new()
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
        shares = max(1, min(self.num_threads, num_rows // FEWEST_ROWS))
        cuts = [num_rows * share // shares for share in range(shares + 1)]
        parts = [(arrays, first, last, smoothing) for first, last in itertools.pairwise(cuts)]
        if self.maybe_pool is None or shares == 1:
            found = [self.loss_of(*part) for part in parts]
        else:
            found = list(self.maybe_pool.map(lambda part: self.loss_of(*part), parts))
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


def find_output_layer(num_threads: int, folder: Path | None = None) -> OutputLayer | None:
    """An output layer in native code; None where none was built, or what was built cannot be loaded."""
    maybe_path = find_library_path(folder)
    try:
        library = ctypes.CDLL(str(maybe_path)) if maybe_path else None
    except OSError:
        return None
    if library is None:
        return None
    library.malmoi_training_new.restype = ctypes.c_void_p
    library.malmoi_training_free.argtypes = [ctypes.c_void_p]
    library.malmoi_training_pack.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64]
    library.malmoi_training_pack.restype = ctypes.c_int64
    library.malmoi_training_loss.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return OutputLayer(library, num_threads)
