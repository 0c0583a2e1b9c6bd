"""The native code of the engine, talked to: structures as C++ has them, and what its answers mean."""

import ctypes
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from malmoi.decoding.interface import NOT_NUMBERS
from malmoi.errors import CheckpointError
from malmoi.native.library import find_library_path


class Shape(ctypes.Structure):
    """`malmoi::Shape` of layers.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "width",
            "heads",
            "feed_forward",
            "vocabulary",
            "source_vocabulary",
            "encoder_layers",
            "decoder_layers",
            "norm_first",
            "root_mean_square",
            "activation",
            "positions",
            "distance",
            "int8",
        )
    ]


class EncodeCall(ctypes.Structure):
    """`malmoi::EncodeCall` of layers.h."""

    _fields_ = [
        ("sentences", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("ids", "lengths", "memories", "table")),
    ]


class StepCall(ctypes.Structure):
    """`malmoi::StepCall` of layers.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "rows",
                "rows_before",
                "stride_before",
                "stride",
                "best",
                "num_forbidden",
                "end_id",
                "places",
                "slot_shift",
                "sentences",
                "rows_each",
                "merged",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "tokens",
                "origins",
                "lengths_before",
                "slots_before",
                "fresh",
                "lengths",
                "slots",
                "chunks",
                "memories",
                "source_lengths",
                "table",
                "forbidden",
                "no_end",
                "log_probs",
                "best_log_probs",
                "best_ids",
                "end_log_probs",
                "attention",
                "alive",
                "totals",
                "merged_totals",
                "merged_log_probs",
                "merged_rows",
                "merged_ids",
                "is_plain",
            )
        ),
        ("most_steps", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("num_plain", "plain_rows", "plain_ids", "plain_log_probs", "plain_totals")
        ),
    ]


def address(array: NDArray[Any]) -> int:
    """Where the numbers of an array lie, which the caller keeps; quicker than numpy's own answer, as steps need it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array))) if array.size else 0


def check(result: int) -> None:
    """`MemoryError` where a call had none, `IndexError` for an id or a row that there is not, `CheckpointError` for
    numbers that are none: `Result` of layers.h."""
    match result:
        case 0:
            return
        case 1:
            raise MemoryError("no memory for a step of the engine")
        case 2:
            raise IndexError("an id is not in the vocabulary")
        case 3:
            raise IndexError("a row is not among those of the state")
        case _:
            raise CheckpointError(NOT_NUMBERS)


class Library:
    """The functions of a built library. Its calls do not hold Python's lock, so that threads compute side by side."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where the file cannot be loaded, `AttributeError` where it is not this library."""
        loaded = ctypes.CDLL(str(path))
        self.new = loaded.malmoi_engine_new
        self.new.argtypes, self.new.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
        self.free = loaded.malmoi_engine_free
        self.free.argtypes, self.free.restype = [ctypes.c_void_p], None
        self.encode = loaded.malmoi_engine_encode
        self.encode.argtypes, self.encode.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self.step = loaded.malmoi_engine_step
        self.step.argtypes, self.step.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self.go_greedily = loaded.malmoi_engine_go_greedily
        self.go_greedily.argtypes, self.go_greedily.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        kernels = loaded.malmoi_engine_kernels
        kernels.argtypes, kernels.restype = [], ctypes.c_char_p
        self.kernels: str = kernels().decode()


def find_library(folder: Path | None = None) -> Library | None:
    """The built library, None where there is none for this source and processor, or where it cannot be loaded."""
    maybe_path = find_library_path(folder)
    try:
        return Library(maybe_path) if maybe_path else None
    except (OSError, AttributeError):
        return None
