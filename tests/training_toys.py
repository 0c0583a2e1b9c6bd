"""Small things to train on, shared by tests of the training room."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from malmoi.config.model import TransformerConfig
from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch, batch_of_rows
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from malmoi.training.signals import StopSignals
from malmoi.training.trainer import Trainer
from malmoi.training.validation import Divide, Validation

VOCABULARY = 20
END = 1
Pair = tuple[list[int], list[int]]


def toy_network(dropout: float = 0.0, seed: int = 1, **settings: Any) -> Seq2Seq:
    table = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 32, **settings}
    return build_model(TransformerConfig(dropout=dropout, **table), VOCABULARY, VOCABULARY, seed)


def toy_pairs(lengths: Sequence[int], seed: int = 0) -> list[Pair]:
    """Pairs with so many words each (the end symbol comes on top); the target is the source backwards."""
    randomness = np.random.default_rng(seed)
    words = [[int(word) for word in randomness.integers(2, VOCABULARY, length)] for length in lengths]
    return [([*source, END], [*source[::-1], END]) for source in words]


def toy_batch(pairs: Sequence[Pair], first_line: int = 1) -> Batch:
    lines = np.arange(first_line, first_line + len(pairs), dtype=np.int64)
    return batch_of_rows(
        [source for source, _ in pairs], [target for _, target in pairs], lines, VOCABULARY, VOCABULARY
    )


def limit_memory(network: Seq2Seq, limit: int, *, backward: bool = False) -> None:
    """Let a pass run out of memory, as CUDA would say it, where its pairs times their longest side are above the limit.

    In its forward half, or in the midst of its backward half.
    """

    def raise_error(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    def look(_module: Any, inputs: Any, output: Tensor) -> None:
        source_BS, _, target_BT = inputs[:3]
        if source_BS.shape[0] * max(source_BS.shape[1], target_BT.shape[1]) > limit:
            if backward and output.requires_grad:
                output.register_hook(raise_error)
            else:
                raise_error()

    network.register_forward_hook(look)


class ToyStream:
    """Epochs over a list of batches in an order that depends on the epoch alone; remembers the lines it gave."""

    def __init__(self, batches: Sequence[Batch], state: Mapping[str, Any] | None, seen: list[list[int]]) -> None:
        self.batches = batches
        self.epoch, self.position = (int(state["epoch"]), int(state["position"])) if state else (0, 0)
        self.num_batches = len(batches)
        self.seen = seen
        self.closed = False

    def __next__(self) -> tuple[int, int, Batch]:
        if self.position == len(self.batches):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng(self.epoch).permutation(len(self.batches))
        batch = self.batches[order[self.position]]
        self.seen.append([int(line) for line in batch.lines_B])
        self.position += 1
        return self.epoch, self.position - 1, batch

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def close(self) -> None:
        self.closed = True


class ToyRun:
    """A run in a folder, to be started as often as wanted, each time with a network built anew."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {
            "lr": 0.01,
            "warmup_steps": 10,
            "device": "cpu",
            "log_every": 1,
            "validate_every": 1000,
            "max_steps": 20,
            **settings,
        }
        # Nine batches an epoch.
        self.batches = [toy_batch(toy_pairs([2, 5, 3, 4], seed=number), 1 + 4 * number) for number in range(9)]
        self.held_out = [toy_batch(toy_pairs([3, 4], seed=100 + number)) for number in range(2)]
        self.evaluate: Any = None
        self.with_validation = True
        self.dropout = 0.2
        self.seen: list[list[int]] = []
        self.network: Seq2Seq
        self.signals: StopSignals | None = None
        self.streams: list[ToyStream] = []
        self.saved: list[int] = []

    def open_stream(self, state: dict[str, Any] | None) -> ToyStream:
        self.streams.append(ToyStream(self.batches, state, self.seen))
        return self.streams[-1]

    def save_model(self, folder: Path, step: int, weights: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        folder.mkdir(parents=True)
        save_file(dict(weights), folder / "model.safetensors")
        self.saved.append(step)

    def evaluate_texts(self, network: Seq2Seq, divide: Divide) -> dict[str, float]:
        """`evaluate` as the work that is done on texts."""
        (found,) = divide(["text"], lambda _: [json.dumps(self.evaluate(network))])
        return json.loads(found)

    def trainer(self, **overrides: Any) -> Trainer:
        self.network = toy_network(self.dropout)
        self.folder.mkdir(exist_ok=True)
        num_characters = 14 + 4
        evaluate = self.evaluate_texts if self.evaluate is not None else None
        validation = Validation(self.held_out, num_characters, evaluate) if self.with_validation else None
        return Trainer(
            self.network,
            TrainingConfig(**{**self.settings, **overrides}),
            self.folder,
            self.open_stream,
            self.save_model,
            validation=validation,
            longest=6,
            signals=self.signals,
        )

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.network.state_dict().items()}

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in (self.folder / "checkpoints").iterdir())
