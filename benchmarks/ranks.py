"""One process with two threads, or two processes with one thread each (DDP over gloo)? In turn within one run.

    python benchmarks/ranks.py
    python benchmarks/ranks.py --rounds 9 --json

Both train the 4+4 layer, 128-wide Transformer on the same drawn batches of 4,096 tokens, of
which each of two processes takes every other row. A figure is target tokens per second of whole updates, all processes
together; the median over the rounds, and of the quotient of two figures that stand side by side. The processor time
of both is told too: where others compute on the same cores, it says more than the clock.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from malmoi.config.model import TransformerConfig
from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch, batch_of_rows
from malmoi.device import keep_freed_memory
from malmoi.models.build import build_model
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.parallel import distribute
from malmoi.training.ranks import Ranks, join_ranks
from malmoi.training.step import Updater

WIDTH, LAYERS, SMOOTHING = 128, 4, 0.1
BATCH_TOKENS = 4096
NUM_IDS = 10_000
KINDS = {"1 process, 2 threads": (1, 2), "2 processes, 1 thread": (2, 1)}


def drawn_batches(count: int, num_ids: int) -> list[Batch]:
    """Random ids with lengths as sentences have them, of like length within a batch."""
    random = np.random.default_rng(1)
    batches: list[Batch] = []
    for middle in random.integers(9, 24, count):
        rows = BATCH_TOKENS // int(middle + 2)
        targets = [random.integers(2, num_ids, length) for length in random.integers(middle, middle + 2, rows)]
        sources = [random.integers(2, num_ids, length) for length in random.integers(middle - 3, middle + 3, rows)]
        batches.append(batch_of_rows(sources, targets, np.arange(1, rows + 1, dtype=np.int64), num_ids, num_ids))
    return batches


def share(batch: Batch, ranks: Ranks) -> Batch:
    """Every other row for each of two."""
    return Batch(
        **{name: getattr(batch, name)[ranks.part] for name in ("source_BS", "target_input_BT", "target_output_BT")},
        source_lengths_B=batch.source_lengths_B[ranks.part],
        target_lengths_B=batch.target_lengths_B[ranks.part],
        lines_B=batch.lines_B[ranks.part],
        num_target_tokens=int(batch.target_lengths_B[ranks.part].sum()),
    )


def serve(environment: dict[str, str], num_threads: int, count: int, pipe: Connection) -> None:
    """One process: train on all batches whenever it is told to, and answer with the processor's seconds."""
    os.environ.update(environment)
    torch.set_num_threads(num_threads)
    keep_freed_memory()
    with join_ranks(environment) as ranks:
        config = TransformerConfig(
            width=WIDTH, heads=4, encoder_layers=LAYERS, decoder_layers=LAYERS, feed_forward=256, dropout=0.3
        )
        model = ModelWithLoss(build_model(config, NUM_IDS, NUM_IDS).train(), SMOOTHING)
        distributed = distribute(model, "ddp", ranks, torch.device("cpu"))
        parameters = trainable_parameters(model.network)
        optimizer = Adam(parameters, TrainingConfig())
        updater = Updater(model, parameters, optimizer, maybe_distributed=distributed, ranks=ranks)
        batches = [share(batch, ranks) for batch in drawn_batches(count, NUM_IDS)]
        while pipe.recv():
            began = time.process_time()
            for number, batch in enumerate(batches):
                updater.update(batch, 1e-4, (1, number))
            pipe.send(time.process_time() - began)


class Contestant:
    """The processes of one kind."""

    def __init__(self, num_processes: int, num_threads: int, count: int) -> None:
        context = get_context("spawn")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self.pipes: list[Connection] = []
        for rank in range(num_processes):
            words: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            words |= {"WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
            ours, theirs = context.Pipe()
            environment = {name: str(value) for name, value in words.items()}
            context.Process(target=serve, args=(environment, num_threads, count, theirs), daemon=True).start()
            self.pipes.append(ours)

    def run(self) -> tuple[float, float]:
        """Seconds by the clock and of processors for all batches."""
        began = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(True)
        spent = sum(pipe.recv() for pipe in self.pipes)
        return time.perf_counter() - began, spent

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="updates per round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    contestants = {name: Contestant(*kind, arguments.batches) for name, kind in KINDS.items()}
    rounds = [{name: one.run() for name, one in contestants.items()} for _ in range(arguments.rounds + 1)][1:]
    for one in contestants.values():
        one.close()
    num_tokens = sum(batch.num_target_tokens for batch in drawn_batches(arguments.batches, NUM_IDS))
    speeds = {name: [num_tokens / one[name][0] for one in rounds] for name in KINDS}
    report = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "target_tokens_per_second": {name: round(statistics.median(values)) for name, values in speeds.items()},
        "processor_seconds": {name: round(statistics.median(one[name][1] for one in rounds), 2) for name in KINDS},
        "two_processes_over_one": round(
            statistics.median(two / one for one, two in zip(*speeds.values(), strict=True)), 3
        ),
        "all": {name: [round(value) for value in values] for name, values in speeds.items()},
    }
    print(
        json.dumps(report, indent=1)
        if arguments.json
        else "\n".join(f"{key}: {value}" for key, value in report.items())
    )


if __name__ == "__main__":
    main()
