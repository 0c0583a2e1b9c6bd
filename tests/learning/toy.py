"""Three tasks on made-up symbols, learned the way a run learns and answered by greedy search.

In: a model's settings, a task, a seed. Out: the share of new sources that are answered without a fault.

    python -m tests.learning.toy         measures every case over several seeds, for the docstring of the tests
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import ModelConfig, RnnConfig, TransformerConfig
from malmoi.config.training import TrainingConfig
from malmoi.data.batch import collate
from malmoi.data.batching import BatchPlan
from malmoi.data.store import Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.decoding.interface import Request
from malmoi.decoding.scorer import ModelScorer
from malmoi.decoding.search import search
from malmoi.models.build import build_model
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.schedule import learning_rate
from malmoi.training.step import Updater

END = 1
FIRST_SYMBOL = 2
NUM_SYMBOLS = 10
VOCABULARY = FIRST_SYMBOL + NUM_SYMBOLS
NUM_TRAINING, NUM_NEW = 1500, 200
SEEDS = range(1, 6)

Symbols = tuple[int, ...]
TASKS: dict[str, Callable[[Symbols], Symbols]] = {
    "copy": lambda symbols: symbols,
    "reverse": lambda symbols: symbols[::-1],
    "sort": lambda symbols: tuple(sorted(symbols)),
}
RNN_SIZES = {"width": 32, "hidden": 64, "dropout": 0.0}
MODELS: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(
        width=32, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=64, dropout=0.0
    ),
    "seq2seq": RnnConfig(attention="none", **RNN_SIZES),
    "additive": RnnConfig(attention="additive", **RNN_SIZES),
    "dot": RnnConfig(attention="dot", **RNN_SIZES),
}


@dataclass(frozen=True)
class Case:
    """A model, a task, the lengths of its sources and the number of updates."""

    model: str
    task: str
    shortest: int
    longest: int
    num_steps: int


# How much is learned in so few updates was measured, see `test_learning.py`.
CASES = (
    Case("transformer", "copy", 2, 5, 250),
    Case("transformer", "reverse", 2, 5, 350),
    Case("transformer", "sort", 2, 5, 250),
    Case("seq2seq", "copy", 2, 4, 350),
    Case("seq2seq", "sort", 2, 4, 350),
    Case("additive", "copy", 2, 4, 200),
    Case("additive", "reverse", 2, 4, 200),
    Case("additive", "sort", 2, 4, 200),
    Case("dot", "copy", 2, 5, 250),
    Case("dot", "reverse", 2, 5, 250),
    Case("dot", "sort", 2, 5, 250),
)


def draw_sources(case: Case, seed: int) -> tuple[list[Symbols], list[Symbols]]:
    """Different sources to learn from, and new ones that are not among them."""
    randomness = np.random.default_rng(seed)
    sources: dict[Symbols, None] = {}
    while len(sources) < NUM_TRAINING + NUM_NEW:
        length = int(randomness.integers(case.shortest, case.longest + 1))
        sources[tuple(randomness.integers(FIRST_SYMBOL, VOCABULARY, length).tolist())] = None
    drawn = list(sources)
    order = randomness.permutation(len(drawn))
    return [drawn[number] for number in order[NUM_NEW:]], [drawn[number] for number in order[:NUM_NEW]]


def write_store(folder: Path, sources: list[Symbols], task: Callable[[Symbols], Symbols]) -> Store:
    """The pairs of a task as a store."""
    lengths = np.array([len(source) + 1 for source in sources])
    source_ids = np.concatenate([[*source, END] for source in sources])
    target_ids = np.concatenate([[*task(source), END] for source in sources])
    with StoreWriter(folder, VOCABULARY, VOCABULARY) as writer:
        writer.add(source_ids, lengths, target_ids, lengths, np.arange(1, len(sources) + 1))
        writer.finish(key="toy", description="toy", inputs={}, weight=1.0, cleaning={})
    return Store.open(folder)


def learn(case: Case, seed: int, folder: Path) -> float:
    """Train for the case's number of steps, then the share of new sources whose answer is right to the last symbol."""
    task = TASKS[case.task]
    training_sources, new_sources = draw_sources(case, seed)
    store = write_store(folder / "store", training_sources, task)
    config = TrainingConfig(lr=0.005, warmup_steps=30, batch_tokens=400, clip_norm=1.0, seed=seed)
    network = build_model(MODELS[case.model], VOCABULARY, VOCABULARY, seed)
    parameters = trainable_parameters(network)
    model = ModelWithLoss(network, config.label_smoothing).train()
    updater = Updater(model, parameters, Adam(parameters, config), clip_norm=config.clip_norm)
    plan = BatchPlan([store], config.batch_tokens, seed)
    with BatchStream(plan, lambda indices, *_: collate([store], indices, VOCABULARY, VOCABULARY)) as stream:
        for step in range(1, case.num_steps + 1):
            _, _, batch = next(stream)
            updater.update(batch, learning_rate(step, config, network.width), (seed, step))
    requests = [Request((*source, END)) for source in new_sources]
    answers = search(ModelScorer(network.eval()), requests, DecodingConfig(beam_size=1), [0])
    right = sum(best.ids == (*task(source), END) for (best, *_), source in zip(answers, new_sources, strict=True))
    return right / len(new_sources)


def measure(case: Case) -> str:
    """One line: the shares over the seeds, their mean and standard deviation, seconds of one run."""
    shares: list[float] = []
    began = time.process_time()
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            shares.append(learn(case, seed, Path(folder)))
    seconds = (time.process_time() - began) / len(SEEDS)
    mean, deviation = statistics.mean(shares), statistics.stdev(shares)
    listed = " ".join(f"{share:.3f}" for share in shares)
    name = f"{case.model} {case.task}, lengths {case.shortest} to {case.longest}, {case.num_steps} updates"
    return f"{name}: {mean:.3f} +- {deviation:.4f}, {seconds:.1f} s [{listed}]"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in CASES:
        sys.stdout.write(f"{measure(chosen)}\n")
