"""A toy run of which each rank trains its share, for `tests/rank_scenarios.py`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from malmoi.data.batch import Batch
from malmoi.models.interface import Seq2Seq
from malmoi.training.ranks import Ranks
from malmoi.training.shards import whole
from malmoi.training.trainer import Trainer
from malmoi.training.validation import Divide, Validation
from tests.training_toys import Pair, ToyRun, toy_batch, toy_network, toy_pairs

Found = dict[str, Any]
# Rows per batch: with two ranks one has more, with one row some have none, with four ranks most have none.
ROWS = (5, 1, 3, 8, 2, 4, 7)


def part_of(pairs: Sequence[Pair], ranks: Ranks) -> Batch:
    """A rank's share of a batch."""
    mine = pairs[ranks.part]
    return toy_batch(mine) if mine else toy_batch(pairs[:1]).without_targets()


def value_of(network: Seq2Seq, text: str) -> str:
    """Stands for a translation: a number that depends on the weights and the text."""
    batch = toy_batch(toy_pairs([3 + int(text) % 4], seed=int(text)))
    hidden = network(batch.source_BS, batch.source_lengths_B, batch.target_input_BT)
    return f"{text} {hidden.double().norm().item():.9f}"


class RankRun(ToyRun):
    """A toy run of which each rank trains its share."""

    def __init__(self, folder: Path, ranks: Ranks, **settings: Any) -> None:
        super().__init__(folder, **{"lr": 0.002, "epsilon": 1e-6, "max_steps": 6, "clip_norm": 0.5, **settings})
        self.ranks = ranks
        self.dropout = 0.0
        self.double = True
        self.num_texts = 61
        self.texts: list[str] = []
        whole_batches = [toy_pairs([1 + (7 * row) % 6 for row in range(rows)], seed=rows) for rows in ROWS]
        self.batches = [part_of(pairs, ranks) for pairs in whole_batches]
        held_out = toy_pairs([1 + number % 7 for number in range(61)], seed=61)
        self.held_out = [toy_batch(held_out[first : first + 9]) for first in range(0, 61, 9)]
        # The first rank's start values count, wherever they come from.
        self.build: Callable[[], Seq2Seq] = lambda: toy_network(seed=1 + ranks.rank)

    def evaluate_texts(self, network: Seq2Seq, divide: Divide) -> dict[str, float]:
        self.texts = divide(
            [str(number) for number in range(self.num_texts)], lambda some: [value_of(network, one) for one in some]
        )
        if self.evaluate is not None:
            return self.evaluate(network)
        return {"bleu": sum(float(text.split()[1]) for text in self.texts)}

    def trainer(self, **overrides: Any) -> Trainer:
        from malmoi.config.training import TrainingConfig

        self.network = self.build().double() if self.double else self.build()
        self.folder.mkdir(exist_ok=True)
        return Trainer(
            self.network,
            TrainingConfig(**{**self.settings, **overrides}),
            self.folder,
            self.open_stream,
            self.save_model,
            validation=Validation(self.held_out, 300, self.evaluate_texts),
            longest=6,
            ranks=self.ranks,
        )

    def go(self, **overrides: Any) -> Found:
        """Train, and tell what every rank may compare."""
        trainer = self.trainer(**overrides)
        outcome = trainer.run()
        weights = {name: whole(tensor) for name, tensor in trainer.network.state_dict().items()}
        self.ranks.wait()
        rows = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return {
            "outcomes": self.ranks.merge([[outcome.reason, outcome.step, outcome.exit_status, outcome.rollbacks]]),
            "skipped": outcome.skipped,
            "losses": [row["loss"] for row in rows if "loss" in row],
            "norms": [row["gradient_norm"] for row in rows if "loss" in row],
            "valid": [[row["valid_loss"], row.get("valid_bleu")] for row in rows if "valid_loss" in row],
            "tokens": outcome.target_tokens,
            "weights": {name: tensor.flatten().tolist() for name, tensor in weights.items()},
            "texts": self.texts,
        }
