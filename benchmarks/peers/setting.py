"""What all contestants of one comparison have in common, and what a single turn is given. Standard library only.

`Size` says which model; `Setting` is one turn: files, threads, precision, batch. A contestant file turns a `Setting`
into the command line and the config file of its toolkit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Precision = Literal["fp32", "bf16"]
SizeName = Literal["tiny", "paper-base", "rnn"]
BatchCounts = Literal["as malmoi", "target tokens", "otherwise"]
"""`as malmoi`: sentences times the longest side among them, batches of like length; `otherwise` is scaled by trial."""
Command = list[str]

DROPOUT = 0.3
SMOOTHING = 0.1
RATE = 1e-3
BETAS = (0.9, 0.98)
NEVER = 1_000_000
"""An update that no turn reaches: nothing is validated, saved or logged meanwhile."""


def launched(python: str, processes: int, words: Command) -> Command:
    """`python …`, or the same in several processes by torchrun."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    return [python, *launch, *words]


@dataclass(frozen=True)
class Size:
    """A Transformer, or for `rnn` Seq2Seq with additive attention, `width` being that of its embeddings."""

    name: SizeName
    layers: int
    width: int
    heads: int
    hidden: int
    """Feed-forward size; of an RNN the size of the decoder's state and of both directions of the encoder together."""

    @property
    def is_rnn(self) -> bool:
        return self.name == "rnn"


SIZES: dict[SizeName, Size] = {
    "tiny": Size("tiny", 4, 128, 4, 256),
    "paper-base": Size("paper-base", 6, 512, 8, 2048),
    "rnn": Size("rnn", 1, 256, 1, 512),
}


@dataclass(frozen=True)
class Corpus:
    """Text that is tokenised already, tokens between single spaces, and its words, most frequent first."""

    description: str
    train_source: Path
    train_target: Path
    valid_source: Path
    valid_target: Path
    vocabulary: Path
    """One word a line: all words of both sides of the training text."""
    num_pairs: int
    num_words: int
    num_target_tokens: int
    """With one end symbol a sentence, as everywhere here."""


@dataclass(frozen=True)
class Setting:
    """One turn."""

    size: Size
    corpus: Corpus
    prepared: Path
    """What the contestant made of the corpus, once."""
    folder: Path
    """Empty at the start of the turn."""
    record: Path
    """Where the probe writes; a rank adds its number."""
    precision: Precision
    threads: int
    processes: int
    batch_tokens: int
    """As the contestant counts them."""
    seed: int


@dataclass(frozen=True)
class Update:
    """What one update of the weights consumed, and when it was over (a clock whose zero does not matter)."""

    seconds: float
    tokens: int
    loss: float | None


@dataclass(frozen=True)
class Contestant:
    """Who takes part, and how it is started."""

    name: str
    label: str
    requirements: tuple[str, ...]
    """Exact versions beside torch; empty: it runs where this script runs."""
    sizes: frozenset[SizeName]
    precisions: tuple[Precision, ...]
    processes: tuple[int, ...]
    """Numbers of processes that are tried."""
    prepare: Callable[[Setting, str], list[Command]]
    """Writes config files into `prepared`; the commands to run there once. The text is the path of its Python."""
    command: Callable[[Setting, str], Command]
    """Writes what the turn needs into `folder`; the command of the turn."""
    updates: Callable[[Setting], list[Update]]
    """What has been recorded so far."""
    batch_counts: BatchCounts
    """What its own size of a batch counts."""
    counted: str
    """How the target tokens are counted."""
    differs: str
    """What it does otherwise than malmoi."""
