"""One turn of one system: `python -m decoders.turn TASK.json` loads it, measures, and prints one JSON object.

In: a `Task`. Out: cells for each size of batches, seconds for each single sentence, seconds to load, highest resident
memory. Runs in the environment of its system; needs the standard library beside it.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from decoders.task import System, Task, measure, wrong_lengths

WARM_UP = 8


def load(task: Task) -> System:
    """The system that the task names; each is imported only where it is asked for."""
    if task.system.startswith("malmoi-"):
        from decoders.malmoi import Malmoi

        return Malmoi(task)
    if task.system.startswith("ctranslate2"):
        from decoders.ctranslate2 import CTranslate2

        return CTranslate2(task)
    from decoders.huggingface import HuggingFace

    return HuggingFace(task)


def highest_memory() -> int:
    """Bytes of resident memory that this process had at most; `ru_maxrss` may be that of the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii").split("\n")
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def main(path: str) -> None:
    task = Task.read(Path(path))
    texts = Path(task.sources).read_text(encoding="utf-8").split("\n")[:-1]
    began = time.perf_counter()
    system = load(task)
    loaded = time.perf_counter() - began
    system.translate(texts[:WARM_UP], task.beam, WARM_UP)
    cells, num_wrong, outputs = [], 0, []
    for batch_size in task.batch_sizes:
        cell, outputs = measure(system, texts, task, batch_size, time.perf_counter)
        num_wrong += wrong_lengths(outputs, task.num_tokens)
        cells.append(asdict(cell))
    if task.outputs:
        Path(task.outputs).write_text("".join(f"{one.text}\n" for one in outputs), encoding="utf-8")
    single: list[float] = []
    for text in texts[: task.num_single]:
        began = time.perf_counter()
        num_wrong += wrong_lengths(system.translate([text], task.beam, 1), task.num_tokens)
        single.append(time.perf_counter() - began)
    told = {
        "cells": cells,
        "single": single,
        "loaded": loaded,
        "peak_bytes": highest_memory(),
        "num_wrong": num_wrong,
        "versions": system.versions,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
