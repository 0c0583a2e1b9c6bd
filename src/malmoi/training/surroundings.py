"""What must be equal for a run to be repeated bit for bit.

In: the device that a run computes on, and how many ranks. Out: a description of the surroundings, stored with states.
"""

import platform
from importlib.metadata import version

import torch

from malmoi.native.library import find_library_path


def describe_surroundings(device: torch.device, num_ranks: int = 1) -> dict[str, str]:
    """What decides the last digits of a result beside data, settings and seed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    maybe_native = find_library_path() if device.type == "cpu" else None
    if maybe_native is not None:
        name = f"{name}, {maybe_native.stem}"
    return {
        "malmoi": version("malmoi"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "device": device.type,
        "kernels": name,
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
        "ranks": str(num_ranks),
    }
