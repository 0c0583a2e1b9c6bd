"""Where to compute: device, threads, and memory that is kept for the next use.

In: settings. Out: a torch device, a number of threads. Nothing here is done at import: a command that computes asks
for it, and torch, which takes seconds, is imported only then.
"""

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, get_args

from malmoi.config.training import Device
from malmoi.errors import ConfigError

if TYPE_CHECKING:
    import torch

# Parameters of glibc's mallopt (malloc.h).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4

MOST_THREADS = 4096

GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Of NVIDIA, of Windows below Linux, of AMD."""


def check_name(wanted: Device) -> None:
    if wanted not in get_args(Device):
        raise ConfigError(f"device is {wanted!r}: must be one of {', '.join(get_args(Device))}")


def is_surely_cpu(wanted: Device) -> bool:
    """Whether `choose_device` would take the CPU, as far as that can be told without torch: on Linux a GPU that torch
    could use has a file of its own."""
    check_name(wanted)
    if wanted == "auto" and sys.platform == "linux":
        return not any(Path(file).exists() for file in GPU_FILES)
    return wanted == "cpu"


def choose_device(wanted: Device) -> "torch.device":
    """The device to use; `auto` takes CUDA, then MPS, then the CPU. What is asked for by name must be there."""
    import torch

    check_name(wanted)
    match wanted:
        case "auto":
            name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
            return torch.device(name)
        case "cpu":
            return torch.device("cpu")
        case "cuda":
            if not torch.cuda.is_available():
                build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
                raise ConfigError(
                    f"device is cuda, but torch {torch.__version__} ({build}) finds no such device: "
                    "install a CUDA build of torch and its driver, or set device = auto"
                )
            return torch.device("cuda")
        case "mps":
            if not torch.backends.mps.is_available():
                raise ConfigError(
                    "device is mps, but torch finds none; it needs a Mac with an Apple chip: set device = auto"
                )
            return torch.device("mps")
        case _:
            assert_never(wanted)


def set_threads(count: int) -> int:
    """Let torch compute with `count` threads; 0 keeps its own choice, which heeds OMP_NUM_THREADS. Returns how many."""
    import torch

    check_threads(count)
    if count:
        torch.set_num_threads(count)
    return torch.get_num_threads()


def check_threads(count: int) -> None:
    if count > MOST_THREADS:
        raise ConfigError(
            f"threads is {count}, more than any processor has cores: at most {MOST_THREADS}, or 0 for all"
        )


def count_threads(count: int) -> int:
    """How many threads to search with, without torch: `count`, or for 0 what OMP_NUM_THREADS says, or one for each core
    that this process may use."""
    check_threads(count)
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if count or (told.isdecimal() and int(told)):
        return count or min(int(told), MOST_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let the process keep freed memory for its next tensors instead of giving it back after each; False if it cannot.

    glibc returns large blocks to the system at once, so that every large tensor of every step is faulted in page by
    page anew: that was half of the time of a plain loss over 10,000 classes. Peak memory stays what it is. Other C
    libraries (macOS, Windows, musl) do not have the switch.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No block of its own for a large request, the heap never trimmed, and grown by 64 MiB at a time.
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
