"""What a turn is asked and what it answers, and the arithmetic on it. Standard library only.

In: JSON from `decode.py`. Out: `Cell`s, figures of one beam with one size of batches.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """One turn of a system, in a process of its own."""

    system: str
    model: str
    """A folder of malmoi's, or of CTranslate2's copy; of Hugging Face, its sizes in JSON."""
    precision: str
    workers: int
    """Batches that are worked on at once."""
    threads: int
    """Of each of them."""
    sources: str
    """A file of sentences, one a line."""
    beam: int
    batch_sizes: tuple[int, ...]
    num_tokens: int
    """Tokens that each output has, 0: as many as the model likes."""
    num_single: int
    """Sentences that are translated one by one."""
    seconds: float
    """Batches of each size are translated until so long has passed, but one pass is never cut."""
    outputs: str
    """Where outputs are written, empty: nowhere."""
    seed: int

    @classmethod
    def read(cls, path: Path) -> "Task":
        told = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**told, "batch_sizes": tuple(told["batch_sizes"])})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass(frozen=True)
class Output:
    """A translation; tokens are counted without the end symbol."""

    num_tokens: int
    text: str


class System(Protocol):
    """A model that is loaded."""

    versions: str

    def translate(self, texts: Sequence[str], beam: int, batch_size: int) -> list[Output]:
        """Outputs in the order of the texts; however the system sorts them is its own affair."""
        ...


@dataclass(frozen=True)
class Cell:
    """Figures of one size of batches."""

    batch_size: int
    tokens_per_second: float
    sentences_per_second: float
    num_sentences: int


def measure(
    system: System, texts: Sequence[str], task: Task, batch_size: int, clock: Callable[[], float]
) -> tuple[Cell, list[Output]]:
    """Passes over all texts until the time is up; whole passes, so that the mixture of lengths is the same."""
    began = clock()
    num_tokens = num_sentences = 0
    while True:
        outputs = system.translate(texts, task.beam, batch_size)
        num_tokens += sum(one.num_tokens for one in outputs)
        num_sentences += len(outputs)
        passed = clock() - began
        if passed >= task.seconds:
            return Cell(batch_size, num_tokens / passed, num_sentences / passed, num_sentences), outputs


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all is not above (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


def splits(cores: int) -> list[tuple[int, int]]:
    """Ways to give all cores to batches at once and threads in each: 1 x n, n x 1, and those between."""
    return [(workers, cores // workers) for workers in range(1, cores + 1) if cores % workers == 0]


def wrong_lengths(outputs: Sequence[Output], wanted: int) -> int:
    """How many outputs do not have the wanted tokens; 0 wants nothing."""
    return sum(one.num_tokens != wanted for one in outputs) if wanted else 0


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios round by round, which a machine whose speed drifts disturbs less than that of medians."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=False))


def from_json(told: dict[str, Any]) -> list[Cell]:
    return [Cell(**one) for one in told["cells"]]
