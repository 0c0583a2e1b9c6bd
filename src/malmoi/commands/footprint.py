"""How much memory training takes: `python -m malmoi.commands.footprint RUN`.

In: a run folder. Out: one JSON object on standard output with the keys before, peak, device (bytes, or null). The
process makes two updates on the largest batch of the first epoch and ends; nothing is written.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from malmoi.commands.folder import RunFolder
from malmoi.commands.results import write_json
from malmoi.commands.train import check_machine, reopen
from malmoi.data.batch import BatchMaker
from malmoi.data.batching import BatchPlan
from malmoi.device import choose_device
from malmoi.errors import CheckpointError
from malmoi.models.build import build_model
from malmoi.training.objective import model_with_loss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.step import Updater

NUM_UPDATES = 2


def main() -> None:
    """Measure the run that the command line names."""
    write_json(measure_run(RunFolder(Path(sys.argv[1]))))


def measure_run(run: RunFolder) -> dict[str, int | None]:
    """Bytes before there is a model, and the most until the last update is done."""
    config = run.read_config()
    material = None if config is None else reopen(run, config, goes_on=False)
    if config is None or material is None:
        raise CheckpointError(f"{run.path}: no run with its data")
    check_machine(config)
    training, device = config.training, choose_device(config.training.device)
    plan = BatchPlan(material.train, training.batch_tokens, training.seed)
    epoch = plan.window(0)
    largest = max(range(len(epoch)), key=lambda place: int(plan.costs(epoch[place]).max()) * len(epoch[place]))
    maker = BatchMaker(material.train, material.tokenizers, training.seed)
    batch = maker(np.asarray(epoch[largest]), 0, largest).to(device)
    before = peak_bytes()
    network = build_model(config.model, material.tokenizers.source.size, material.tokenizers.target.size).to(device)
    if training.recompute:
        network.recompute_layers()
    model = model_with_loss(network, training).train()
    parameters = trainable_parameters(network)
    updater = Updater(model, parameters, Adam(parameters, training), micro_batch_tokens=training.micro_batch_tokens)
    for number in range(NUM_UPDATES):
        updater.update(batch, 0.0, (training.seed, number))
    on_device = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return {"before": before, "peak": peak_bytes(), "device": on_device}


def peak_bytes() -> int | None:
    """The most memory that this process has had; None where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():
        # `ru_maxrss` of Linux may be that of the process that started this one.
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return None
    resource: Any = import_module("resource")
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else 1024 * most


if __name__ == "__main__":
    main()
