"""What the machine can do at most, and what it is. `python -m peers.machine` measures and prints JSON.

In: nothing but the machine. Out: rates of a product of two square matrices in fp32 and bf16, with all threads, in
GFLOP/s; names and versions.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIDE, SMALL_SIDE = 2048, 256
REPEATS = 5
USELESS = 0.5
"""A type whose small product has less than this share of the rate of fp32 is not measured further, nor trained in."""


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def product_rate(kind: str, side: int) -> float:
    """GFLOP/s of the best of some products of two square matrices, counted as 2 x side^3."""
    import torch

    data_type = {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]
    left, right = (torch.randn(side, side).to(data_type) for _ in range(2))
    out = torch.empty(side, side, dtype=data_type)
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / best / 1e9


def measure() -> dict[str, Any]:
    """Rates of both types; bf16 at a small size only where it is hopeless."""
    import torch

    small = {kind: product_rate(kind, SMALL_SIDE) for kind in ("fp32", "bf16")}
    is_useful = small["bf16"] > USELESS * small["fp32"]
    return {
        "fp32": product_rate("fp32", SIDE),
        "bf16": product_rate("bf16", SIDE) if is_useful else small["bf16"],
        "bf16_side": SIDE if is_useful else SMALL_SIDE,
        "bf16_is_useful": is_useful,
        "threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }


def measure_apart(threads: int) -> dict[str, Any]:
    """The same in a process of its own, whose threads end with it."""
    command = [sys.executable, "-m", "peers.machine"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[1])}
    return json.loads(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)


def higher(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The better rates of two measurements, as at the start and at the end of a comparison."""
    kinds = ("fp32", "bf16") if one["bf16_side"] == other["bf16_side"] else ("fp32",)
    return one | {kind: max(one[kind], other[kind]) for kind in kinds}


def describe(command: str, seed: int) -> dict[str, str]:
    """What it takes to run this again."""
    names = ("malmoi", "torch", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return {
        "command": command,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "seed": str(seed),
        "versions": f"Python {platform.python_version()}, {versions}",
        "machine": f"{processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end",
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
