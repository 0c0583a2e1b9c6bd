"""Where a run computes: device, threads, and what must be equal for a run to be repeated bit for bit.

In: settings. Out: a torch device, a number of threads, a description of the surroundings.
"""

import platform
from importlib.metadata import version
from typing import assert_never

import torch

from malmoi.config import Device
from malmoi.errors import ConfigError


def choose_device(wanted: Device) -> torch.device:
    """The device to use; `auto` takes CUDA, then MPS, then the CPU. What is asked for by name must be there."""
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
                    f"training.device is cuda, but torch {torch.__version__} ({build}) finds no such device: "
                    "install a CUDA build of torch and its driver, or set device = auto"
                )
            return torch.device("cuda")
        case "mps":
            if not torch.backends.mps.is_available():
                raise ConfigError(
                    "training.device is mps, but torch finds none; it needs a Mac with an Apple chip: set device = auto"
                )
            return torch.device("mps")
        case _:
            assert_never(wanted)


def set_threads(count: int) -> int:
    """Let torch compute with `count` threads; 0 keeps its own choice, which heeds OMP_NUM_THREADS. Returns how many."""
    if count:
        torch.set_num_threads(count)
    return torch.get_num_threads()


def describe_surroundings(device: torch.device) -> dict[str, str]:
    """What decides the last digits of a result beside data, settings and seed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        "malmoi": version("malmoi"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "device": device.type,
        "kernels": name,
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }
