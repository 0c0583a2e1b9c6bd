"""What a comparison of systems found: plain values, from which the page and the JSON are made.

In: nothing. Out: dataclasses; `Findings.to_json` is what `malmoi compare --json` prints, with its fields as keys. The
page shows no number that does not stand there.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from malmoi.evaluation.systems import Quality


@dataclass(frozen=True)
class Point:
    """One validation of a run: where it stood (seconds of wall clock, validations included), and what came out.

    `loss`: negative log-likelihood per token in nats; `score`: the metric that validation decoded, None without one.
    """

    step: int
    target_tokens: int
    seconds: float
    loss: float | None
    score: float | None


@dataclass(frozen=True)
class RunFindings:
    """One training. `weights` says what the finished model was made from, `data` is the hash of what it read."""

    folder: str
    seed: int
    steps: int
    target_tokens: int
    seconds: float
    training_tokens_per_second: float | None
    """Validation left out."""
    ended_by: str
    weights: str
    data: str
    perplexity_per_token: float | None
    num_cut: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Cost:
    """What a system takes; None where it could not be measured. Of several seeds the mean, or the first."""

    num_parameters: int
    model_bytes: int
    training_seconds: float
    target_tokens: float
    training_tokens_per_second: float | None
    sentences_per_second: float
    output_tokens_per_second: float
    milliseconds_per_sentence: float
    decoder: str
    """What computed the search: `engine` (native code) or `torch`."""
    peak_bytes: int | None
    """Of a process that trains it."""
    bytes_before: int | None
    """Of the same process before there was a model."""
    device_bytes: int | None


@dataclass(frozen=True)
class Encoder:
    """What the encoder of a system makes of a batch (the table of the text that the systems are told by).

    `gives`: the shape of what it hands to the decoder; `steps`: operations that have to wait for each other;
    `path`: how many of them lie between the last word that is said and the first source word.
    """

    kind: str
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    steps: int
    path: int


@dataclass(frozen=True)
class SystemFindings:
    """One system: its name for programs and for people, its main settings, its trainings, what it takes."""

    name: str
    label: str
    settings: Mapping[str, str]
    encoder: Encoder
    cost: Cost
    runs: tuple[RunFindings, ...]


@dataclass(frozen=True)
class DataFindings:
    """What all systems were trained and tested on. `is_equal`: the same stores for all, by their hashes."""

    description: tuple[str, ...]
    num_pairs: int
    num_validation: int
    num_test: int
    is_test_held_out: bool
    source_vocabulary: int
    target_vocabulary: int
    tokenizers: str
    is_equal: bool


@dataclass(frozen=True)
class Example:
    """A test pair with the outputs of all systems (of the first seed), by name."""

    number: int
    source: str
    references: tuple[str, ...]
    outputs: Mapping[str, str]
    scores: Mapping[str, float]


@dataclass(frozen=True)
class AttentionPicture:
    """Where the words that a system says (`rows`) look in the source (`columns`): weights by row."""

    system: str
    number: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Findings:
    """All that was found. `rule`: tokens, time, parameters, or given (runs that were there already)."""

    malmoi: str
    rule: str
    num_seeds: int
    surroundings: Mapping[str, str]
    data: DataFindings
    systems: tuple[SystemFindings, ...]
    curve_label: str | None
    """What `Point.score` is."""
    curve_is_better_higher: bool
    quality: Quality
    evenly: tuple[Example, ...]
    apart: tuple[Example, ...]
    attention: tuple[AttentionPicture, ...]
    commands: tuple[tuple[str, str], ...]
    """A command that works as it stands, and the key of the words that say what for."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)
