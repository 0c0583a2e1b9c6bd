"""From finished runs and what they made of the test pairs to `Findings`.

In: run folders, trials, test pairs. Out: all that the report of a comparison shows.
"""

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from malmoi.checkpoint import WEIGHTS_FILE, load_card
from malmoi.commands.folder import RunFolder
from malmoi.commands.material import Material, Validation
from malmoi.commands.systems import Plan
from malmoi.commands.train import reopen
from malmoi.commands.trials import Footprint, Speed, Trial, measure_footprint, measure_speeds, picture_attention
from malmoi.config.model import RnnConfig
from malmoi.config.run import RunConfig
from malmoi.config.text import TextConfig
from malmoi.config.training import higher_is_better
from malmoi.device import choose_device, set_threads
from malmoi.errors import CheckpointError, ConfigError
from malmoi.evaluation.evaluate import default_metrics, default_symbols, text_metrics
from malmoi.evaluation.metrics import LABELS, MetricOptions, TextMetric
from malmoi.evaluation.systems import Chosen, Quality, compare_systems
from malmoi.files import hash_bytes
from malmoi.log import get_logger
from malmoi.report.curves import read_metrics
from malmoi.report.findings import (
    AttentionPicture,
    Cost,
    DataFindings,
    Encoder,
    Example,
    Findings,
    Point,
    RunFindings,
    SystemFindings,
)
from malmoi.training.surroundings import describe_surroundings

NUM_PICTURES = 3


@dataclass(frozen=True)
class Contestant:
    """One finished run of a system."""

    system: str
    label: str
    seed: int
    run: RunFolder
    config: RunConfig


Entry = tuple[Contestant, Trial]


def gather(plan: Plan, test: Validation, entries: Sequence[Entry], *, out: Path) -> Findings:
    """Measure what has to be measured still, and put everything together; `entries` are ordered by system."""
    by_system: dict[str, list[Entry]] = {}
    for entry in entries:
        by_system.setdefault(entry[0].system, []).append(entry)
    first = entries[0][0].config
    materials = {one.run.path: material_of(one) for one, _ in entries}
    material = materials[entries[0][0].run.path]
    symbols = default_symbols(material.tokenizers)
    if any(default_symbols(one.tokenizers) != symbols for one in materials.values()):
        raise ConfigError("some of these systems say symbols between spaces, others text: their outputs are not alike")
    curve = curve_metric(first)
    # The one that checkpoints are chosen by comes first.
    metrics = sorted(text_metrics(first.training.metrics) or default_metrics(symbols), key=lambda one: one != curve)
    quality = compare_systems(
        {name: [trial.outputs for _, trial in mine] for name, mine in by_system.items()},
        test.sources,
        test.references,
        metrics=metrics,
        options=MetricOptions(symbols=symbols),
    )
    get_logger().info("measuring speed and memory")
    firsts = [mine[0][0] for mine in by_system.values()]
    speeds = measure_speeds([(one.run, one.config) for one in firsts], test.sources)
    footprints = [measure_footprint(one.run) for one in firsts]
    hashes = {path: data_hash(one) for path, one in materials.items()}
    systems = tuple(
        system_findings(mine, speed, footprint, materials[mine[0][0].run.path], hashes, curve)
        for mine, speed, footprint in zip(by_system.values(), speeds, footprints, strict=True)
    )
    set_threads(first.training.threads)
    outputs = {name: mine[0][1].outputs for name, mine in by_system.items()}
    evenly = make_examples(quality.evenly, test, outputs)
    return Findings(
        malmoi=version("malmoi"),
        rule=plan.rule,
        num_seeds=plan.num_seeds,
        surroundings=describe_surroundings(choose_device(first.training.device)),
        data=DataFindings(
            description=tuple(Path(store.manifest.description).name for store in material.train),
            num_pairs=sum(store.num_pairs for store in material.train),
            num_validation=sum(store.num_pairs for store in material.valid),
            num_test=len(test.sources),
            is_test_held_out=not plan.test,
            source_vocabulary=material.tokenizers.source.size,
            target_vocabulary=material.tokenizers.target.size,
            tokenizers=describe_text(first.text),
            is_equal=len(set(hashes.values())) == 1,
        ),
        systems=systems,
        curve_label=None if curve is None else LABELS[curve],
        curve_is_better_higher=curve is None or higher_is_better(curve),
        quality=quality,
        evenly=evenly,
        apart=make_examples(quality.apart, test, outputs),
        attention=make_pictures(firsts, evenly),
        commands=next_commands(quality, plan, entries, out, test),
    )


def material_of(one: Contestant) -> Material:
    """What a run was trained on."""
    material = reopen(one.run, one.config, goes_on=False)
    if material is None:
        raise CheckpointError(f"{one.run.path}: its data is not there any more")
    return material


def data_hash(material: Material) -> str:
    """Changes with any id of any store, of training and of validation."""
    stores = [store.manifest for store in (*material.train, *material.valid)]
    records = [[(name, one.size, one.hash) for name, one in sorted(each.files.items())] for each in stores]
    return hash_bytes(json.dumps(records).encode())


def curve_metric(config: RunConfig) -> TextMetric | None:
    """The metric of learning curves: the one that checkpoints are chosen by, else the first that needs text."""
    metrics = text_metrics(config.training.metrics)
    for metric in metrics:
        if metric == config.training.best_metric:
            return metric
    return metrics[0] if metrics else None


def system_findings(
    mine: Sequence[Entry],
    speed: Speed,
    footprint: Footprint,
    material: Material,
    hashes: Mapping[Path, str],
    curve: TextMetric | None,
) -> SystemFindings:
    """One system with its runs; costs that differ between seeds are means."""
    one = mine[0][0]
    runs = tuple(run_findings(contestant, trial, hashes[contestant.run.path], curve) for contestant, trial in mine)
    training_speeds = [run.training_tokens_per_second for run in runs if run.training_tokens_per_second is not None]
    return SystemFindings(
        name=one.system,
        label=one.label,
        settings=main_settings(one.config),
        encoder=describe_encoder(one.config, material),
        cost=Cost(
            num_parameters=int(load_card(one.run.model / "card.json")["num_parameters"]),
            model_bytes=(one.run.model / WEIGHTS_FILE).stat().st_size,
            training_seconds=statistics.fmean(run.seconds for run in runs),
            target_tokens=statistics.fmean(run.target_tokens for run in runs),
            training_tokens_per_second=statistics.fmean(training_speeds) if training_speeds else None,
            sentences_per_second=speed.sentences_per_second,
            output_tokens_per_second=speed.output_tokens_per_second,
            milliseconds_per_sentence=speed.milliseconds_per_sentence,
            decoder=speed.decoder,
            peak_bytes=footprint.peak,
            bytes_before=footprint.before,
            device_bytes=footprint.device,
        ),
        runs=runs,
    )


def run_findings(one: Contestant, trial: Trial, data: str, curve: TextMetric | None) -> RunFindings:
    """What the run folder says of its training."""
    card = load_card(one.run.model / "card.json")
    rows = read_metrics(one.run.metrics)
    points = tuple(
        Point(row["step"], row["target_tokens"], row["seconds"], row.get("valid_loss"), row.get(f"valid_{curve}"))
        for row in rows
        if any(key.startswith("valid_") for key in row)
    )
    return RunFindings(
        folder=one.run.path.name,
        seed=one.seed,
        steps=int(card["steps"]),
        target_tokens=int(card["target_tokens"]),
        seconds=float(card["seconds"]),
        training_tokens_per_second=updates_speed(rows),
        ended_by=str(card["ended_by"]),
        weights=str(card["weights"]),
        data=data,
        perplexity_per_token=trial.perplexity_per_token,
        num_cut=trial.num_cut,
        points=points,
    )


def updates_speed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Target tokens per second of updates alone, over the whole run."""
    tokens, seconds, before = 0, 0.0, 0
    for row in rows:
        speed = row.get("target_tokens_per_second")
        if "lr" in row and speed:
            here = row["target_tokens"] - before
            tokens, seconds, before = tokens + here, seconds + here / speed, row["target_tokens"]
    return tokens / seconds if seconds else None


def main_settings(config: RunConfig) -> dict[str, str]:
    """Settings of the model, and those of training and decoding that change what is learned, as words."""
    model = {f"model.{key}": value for key, value in config.model.model_dump(mode="json").items()}
    kept = (
        *("batch_tokens", "optimizer", "lr", "schedule", "warmup_steps", "clip_norm", "precision"),
        *("label_smoothing", "consistency"),
        *("max_steps", "max_epochs", "max_target_tokens", "max_minutes", "validate_every", "best_metric", "average"),
    )
    training = {f"training.{key}": getattr(config.training, key) for key in kept}
    decoding = {
        f"decoding.{key}": getattr(config.decoding, key) for key in ("beam_size", "length_penalty", "length_alpha")
    }
    return {key: str(value) for key, value in {**model, **training, **decoding}.items() if value is not None}


def describe_text(text: TextConfig) -> str:
    """Kinds of tokenisers."""
    kinds = text.source_kind if text.source_kind == text.target_kind else f"{text.source_kind}, {text.target_kind}"
    return f"{kinds}; shared" if text.shared_vocabulary else str(kinds)


def describe_encoder(config: RunConfig, material: Material) -> Encoder:
    """Sizes for a typical batch: sentences of median length, as many as a batch holds."""
    model = config.model
    source = np.concatenate([store.source_lengths for store in material.train])
    target = np.concatenate([store.target_lengths for store in material.train])
    length = int(np.median(source))
    batch = max(1, config.training.batch_tokens // max(length, int(np.median(target))))
    takes = (batch, length, model.width)
    if not isinstance(model, RnnConfig):
        # Every layer looks at all words at once; the decoder looks back in one step.
        return Encoder("attention", takes, takes, model.encoder_layers, model.encoder_layers + 1)
    steps = length + model.encoder_layers - 1
    if model.attention == "none":
        # The last output word is as many steps away from what was handed over as the output has words.
        return Encoder("last", takes, (batch, model.hidden), steps, steps + int(np.median(target)))
    return Encoder("all", takes, (batch, length, model.hidden), steps, 2)


def make_examples(
    chosen: Sequence[Chosen], test: Validation, outputs: Mapping[str, Sequence[str]]
) -> tuple[Example, ...]:
    """Test pairs with what each system said."""
    return tuple(
        Example(
            one.number,
            test.sources[one.number - 1],
            test.references.answers[one.number - 1],
            {name: texts[one.number - 1] for name, texts in outputs.items()},
            one.scores,
        )
        for one in chosen
    )


def make_pictures(firsts: Sequence[Contestant], examples: Sequence[Example]) -> tuple[AttentionPicture, ...]:
    """The first of the examples of which every system with attention gives a picture."""
    looking = [
        one for one in firsts if not isinstance(one.config.model, RnnConfig) or one.config.model.attention != "none"
    ]
    found: list[AttentionPicture] = []
    for example in examples:
        if len(found) < NUM_PICTURES * len(looking):
            said = [(one, example.source, example.outputs[one.system]) for one in looking]
            pictures = [picture_attention(one.run, one.system, example.number, *texts) for one, *texts in said]
            if all(picture is not None for picture in pictures):
                found += cast(list[AttentionPicture], pictures)
    return tuple(found)


def next_commands(
    quality: Quality, plan: Plan, entries: Sequence[Entry], out: Path, test: Validation
) -> tuple[tuple[str, str], ...]:
    """Commands that work as they stand."""
    sign = 1 if next(iter(quality.scores.values()))[0].higher_is_better else -1
    best = max(quality.scores, key=lambda name: sign * quality.scores[name][0].mean)
    path = next(one.run.path for one, _ in entries if one.system == best)
    run = path if plan.runs else out / "runs" / path.name
    config = entries[0][0].config.training
    limits = {
        f"training.{key}": value
        for key in ("max_steps", "max_epochs", "max_target_tokens", "max_minutes")
        if (value := getattr(config, key)) is not None
    }
    longer = " ".join(
        f"{key}={2 * value:g}" if isinstance(value, float) else f"{key}={2 * value}" for key, value in limits.items()
    )
    sentence = min(test.sources, key=lambda one: abs(len(one) - 40))
    found = [
        (f"malmoi translate {quoted(str(run))} FILE", "translate"),
        (f"malmoi explain {quoted(str(run))} {quoted(sentence)}", "explain"),
    ]
    if plan.runs:
        return tuple(found)
    again = f"malmoi compare --out {quoted(str(out))}"
    if limits:
        found.append((f"{again} {longer}", "again"))
    return (*found, (f"{again} --seeds {plan.num_seeds + 1}", "seeds"))


def quoted(word: str) -> str:
    """A word as a shell takes it."""
    return shlex.quote(word)
