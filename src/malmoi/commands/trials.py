"""What a finished run is asked for a comparison: the test set, its speed, its memory, where it looks.

In: run folders and test pairs. Out: a `Trial` for each run, kept in a file so that a comparison that was stopped asks
only for what is missing; `Speed` for each system, measured in turn so that a busy machine is busy for all of them.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from malmoi.checkpoint import WEIGHTS_FILE
from malmoi.commands.folder import RunFolder
from malmoi.commands.material import Validation
from malmoi.config.run import RunConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import DataError
from malmoi.evaluation.evaluate import measure_likelihood
from malmoi.explain.replay import replay
from malmoi.explain.subject import open_subject
from malmoi.explain.words import Side, Span, make_side, merge
from malmoi.files import measure, write_atomically
from malmoi.log import get_logger
from malmoi.report.findings import AttentionPicture
from malmoi.translate import Translator

ROUNDS = 3
TIMED_SENTENCES = 64
TIMED_ALONE = 8
LONGEST_PICTURE = 24
"""Words or symbols on a side of a picture of attention: more cannot be read."""


@dataclass(frozen=True)
class Trial:
    """One run on the test set. `model` is a hash of its weights, `settings` what the run was given."""

    model: str
    settings: dict[str, Any]
    test: str
    outputs: list[str]
    num_output_tokens: int
    perplexity_per_token: float | None
    num_cut: int
    """Outputs that reached their length limit."""


@dataclass(frozen=True)
class Speed:
    """Decoding, medians over rounds."""

    sentences_per_second: float
    output_tokens_per_second: float
    milliseconds_per_sentence: float
    """One sentence alone."""
    decoder: str
    """`engine` or `torch`."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a process that does nothing but two updates on the largest batch; None where nobody can tell.

    `before`: with Python and torch, before there is a model. `device`: of an accelerator's memory.
    """

    before: int | None
    peak: int | None
    device: int | None


def weights_hash(run: RunFolder) -> str:
    """By which a finished model is known again."""
    return measure(run.model / WEIGHTS_FILE)[1]


def load_translator(run: RunFolder, config: RunConfig) -> Translator:
    """The finished model on the device that it was trained on."""
    return Translator.load(run.model, device=config.training.device, threads=config.training.threads)


def find_trial(place: Path, settings: Mapping[str, Any], test: str) -> Trial | None:
    """The record of a run with the same settings on the same test set, if there is one."""
    if not place.exists():
        return None
    try:
        trial = Trial(**cast(dict[str, Any], json.loads(place.read_bytes())))
    except (ValueError, TypeError, RecursionError) as error:
        get_logger().warning("%s: damaged (%s); this run is tested again", place, error)
        return None
    return trial if trial.settings == settings and trial.test == test else None


def make_trial(
    run: RunFolder, config: RunConfig, settings: Mapping[str, Any], test: Validation, test_hash: str, place: Path
) -> Trial:
    """Translate the test set with the model's own search, and write down what came of it."""
    translator = load_translator(run, config)
    translator.tell = False
    translations = translator.translate(test.sources)
    try:
        answers = [right[0] for right in test.references.answers]
        perplexity = measure_likelihood(translator, test.sources, answers).perplexity_per_token
    except DataError as error:
        get_logger().warning("%s: no perplexity, %s", run.path, error)
        perplexity = None
    trial = Trial(
        model=weights_hash(run),
        settings=dict(settings),
        test=test_hash,
        outputs=[one.text for one in translations],
        num_output_tokens=sum(len(one.tokens) for one in translations),
        perplexity_per_token=perplexity if perplexity is not None and np.isfinite(perplexity) else None,
        num_cut=sum(not one.finished for one in translations),
    )
    write_atomically(place, json.dumps(asdict(trial), ensure_ascii=False, indent=1).encode() + b"\n")
    return trial


def measure_speeds(runs: Sequence[tuple[RunFolder, RunConfig]], sources: Sequence[str]) -> list[Speed]:
    """Decode the same sentences in turn: each round asks every system once."""
    translators = [load_translator(*run) for run in runs]
    stride = max(1, len(sources) // TIMED_SENTENCES)
    some = list(sources[::stride][:TIMED_SENTENCES])
    alone = some[:: max(1, len(some) // TIMED_ALONE)][:TIMED_ALONE]
    together: list[list[tuple[float, int]]] = [[] for _ in translators]
    single: list[list[float]] = [[] for _ in translators]
    for translator in translators:
        translator.tell = False
        translator.translate(some[:2])
    for _ in range(ROUNDS):
        for place, translator in enumerate(translators):
            seconds, num_tokens = timed(translator, some)
            together[place].append((seconds, num_tokens))
            single[place] += [timed(translator, [one])[0] for one in alone]
    return [
        Speed(
            len(some) / statistics.median(seconds for seconds, _ in rounds),
            rounds[0][1] / statistics.median(seconds for seconds, _ in rounds),
            1000 * statistics.median(ones),
            "torch" if isinstance(translator.scorer_for(translator.decoding), ModelScorer) else "engine",
        )
        for translator, rounds, ones in zip(translators, together, single, strict=True)
    ]


def timed(translator: Translator, texts: Sequence[str]) -> tuple[float, int]:
    """Seconds and output tokens."""
    start = time.perf_counter()
    translations = translator.translate(texts)
    return time.perf_counter() - start, sum(len(one.tokens) for one in translations)


def measure_footprint(run: RunFolder) -> Footprint:
    """What training takes, told by a process of its own: memory that another system left behind is not counted."""
    command = [sys.executable, "-m", "malmoi.commands.footprint", str(run.path)]
    result = subprocess.run(command, capture_output=True, check=False)
    try:
        return Footprint(**json.loads(result.stdout))
    except (ValueError, TypeError):
        words = result.stderr.decode(errors="replace").strip().splitlines()
        get_logger().warning("%s: its memory could not be measured (%s)", run.path, words[-1] if words else "no answer")
        return Footprint(None, None, None)


def picture_attention(run: RunFolder, name: str, number: int, source: str, output: str) -> AttentionPicture | None:
    """Where the words of a system's own output look in the source: the mean of all layers and heads.

    None for a system without attention, and for sentences that are too long for a picture. The output is cut into
    tokens as its text is; a search may have cut it otherwise.
    """
    subject = open_subject(run.model)
    maybe_pair = subject.maybe_pair(source, output)
    if maybe_pair is None:
        return None
    (replayed,) = replay(subject.network, [maybe_pair[0]], [maybe_pair[1]])
    layers = [weights.mean(0) for key, weights in replayed.attention.items() if key.endswith("cross")]
    source_side = make_side(subject.tokenizers.source, maybe_pair[0])
    target_side = make_side(subject.tokenizers.target, maybe_pair[1])
    columns, rows = parts_of(source_side), parts_of(target_side)
    if not layers or max(len(columns), len(rows)) > LONGEST_PICTURE:
        return None
    weights = merge(np.mean(layers, axis=0), rows, columns)
    values = tuple(tuple(round(float(value), 4) for value in row) for row in weights)
    return AttentionPicture(name, number, target_side.names(rows), source_side.names(columns), values)


def parts_of(side: Side) -> tuple[Span, ...]:
    """Words with the end symbol; the tokens of a text that is one word."""
    if len(side.text_spans) > 1:
        return tuple(side.spans)
    return tuple((place, place + 1) for place in range(len(side.ids)))
