"""From a run's checkpoints to its finished model.

In: checkpoints, validation text, what the run was made from. Out: a model folder whose card says what the model is,
what it was trained on and how well it does, and holds sentences by which any copy can prove itself.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from malmoi.checkpoint import Model, average_models, load_model, save_model
from malmoi.commands.folder import RunFolder
from malmoi.commands.material import Material, Validation
from malmoi.commands.proof import write_proof
from malmoi.config.run import RunConfig, StoredConfig
from malmoi.config.training import Metric
from malmoi.data.store import Store
from malmoi.decoding.scorer import ModelScorer
from malmoi.device import choose_device
from malmoi.errors import CheckpointError
from malmoi.evaluation.evaluate import Report, evaluate_model
from malmoi.log import get_logger
from malmoi.training.checkpoints import Checkpoint, is_better, rank
from malmoi.translate import Translator

AVERAGED = ".tmp-average"
PROOF_SENTENCES = 5
REPORT_PAIRS = 1000
"""Pairs of validation that the finished model translates with its own search; more take long and change little."""


@dataclass(frozen=True)
class Candidate:
    """A model that may become the finished one, and how it does on validation text."""

    name: str
    model: Model
    translator: Translator
    report: Report


def finish(
    folder: RunFolder,
    config: RunConfig,
    material: Material,
    checkpoints: Sequence[Checkpoint],
    progress: dict[str, Any],
) -> Report:
    """Write RUN/model: the average of the last checkpoints or the best one, whichever does better on validation.

    `checkpoints` are those of the run by step, one at least; a damaged one is named and left out. `progress` is what
    the card tells of the run: its steps and the like. Returns the finished model's scores. Raises `CheckpointError`
    where no checkpoint can be read.
    """
    validation = material.validation.spread(config.training.validation_pairs or REPORT_PAIRS)
    sound = [one for one in checkpoints if is_sound(folder.checkpoints / one.name)]
    ranked = rank(sound, config.training.best_metric)
    if not ranked:
        raise CheckpointError(
            f"{folder.checkpoints}: none of these checkpoints can be read, so there is no model to finish; "
            "put one back from a copy, or train on with a higher limit"
        )
    best = folder.checkpoints / ranked[0].name
    candidates = [measured(best.name, best, config, validation, material)]
    last = sound[-config.training.average :] if config.training.average > 1 else []
    if len(last) > 1:
        averaged = folder.path / AVERAGED
        shutil.rmtree(averaged, ignore_errors=True)
        average_models([folder.checkpoints / one.name for one in last], averaged)
        name = f"mean of {len(last)} checkpoints, {last[0].name} to {last[-1].name}"
        candidates.append(measured(name, averaged, config, validation, material))
        shutil.rmtree(averaged)
    chosen = choose(candidates, config.training.best_metric)
    stored = StoredConfig(text=config.text, model=config.model, decoding=config.decoding)
    card = make_card(chosen, material, validation, progress)
    save_model(folder.model, stored, chosen.model.network, material.tokenizers, card)
    get_logger().info("finished model: %s, in %s", chosen.name, folder.model)
    return chosen.report


def is_sound(checkpoint: Path) -> bool:
    """Whether a checkpoint can be read; if not, a warning names it: one bad file must not cost the others."""
    try:
        load_model(checkpoint)
    except CheckpointError as error:
        get_logger().warning("%s; this checkpoint is left out of the finished model", error)
        return False
    return True


def measured(name: str, path: Path, config: RunConfig, validation: Validation, material: Material) -> Candidate:
    """Load a model onto the run's device and evaluate it with the search that it will have."""
    model = load_model(path, choose_device(config.training.device))
    # Lines of validation are not told one by one.
    translator = Translator(ModelScorer(model.network.eval()), material.tokenizers, config.decoding, tell=False)
    metrics: tuple[Metric, ...] = ("loss", *(metric for metric in config.training.metrics if metric != "loss"))
    report = evaluate_model(translator, validation.sources, validation.references, metrics=metrics, system=name)
    return Candidate(name, model, translator, report)


def choose(candidates: Sequence[Candidate], metric: Metric) -> Candidate:
    """The best by the run's own measure; of equal ones the first."""
    chosen = candidates[0]
    for candidate in candidates[1:]:
        ours, theirs = value_of(candidate.report, metric), value_of(chosen.report, metric)
        get_logger().info("%s: %s %.4f; %s: %.4f", chosen.name, metric, theirs, candidate.name, ours)
        if is_better(metric, ours, theirs):
            chosen = candidate
    return chosen


def value_of(report: Report, metric: Metric) -> float:
    """One metric of a report; `loss` is the negative log-likelihood per token."""
    if metric == "loss":
        assert report.likelihood is not None
        return report.likelihood.negative_log_likelihood / report.likelihood.num_tokens
    return next(score.value for score in report.scores if score.metric == metric)


def make_card(
    chosen: Candidate, material: Material, validation: Validation, progress: dict[str, Any]
) -> dict[str, Any]:
    """What the model folder says of itself, with stable keys."""
    network = chosen.model.network
    report = chosen.report
    return {
        "malmoi": version("malmoi"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **progress,
        "weights": chosen.name,
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "max_source_tokens": longest_source(material),
        "data": [describe_store(store) for store in material.train],
        "valid": [describe_store(store) for store in material.valid],
        "scores": [score.to_json() for score in report.scores],
        "perplexity_per_token": report.likelihood.perplexity_per_token if report.likelihood else None,
        "perplexity_per_character": report.likelihood.perplexity_per_character if report.likelihood else None,
        "sentences": write_proof(chosen.translator, proof_sources(validation)),
    }


def proof_sources(validation: Validation) -> list[str]:
    """A few different sources, spread over the validation text."""
    different = list(dict.fromkeys(validation.sources))
    stride = max(1, len(different) // PROOF_SENTENCES)
    return different[::stride][:PROOF_SENTENCES]


def longest_source(material: Material) -> int:
    """Tokens of the longest source of training, end symbol included."""
    return max(store.longest_source for store in material.train)


def describe_store(store: Store) -> dict[str, Any]:
    """A corpus as the card names it: files without their folders, which say nothing to others."""
    manifest = store.manifest
    return {
        "description": " + ".join(Path(name).name for name in manifest.inputs) or manifest.description,
        "pairs": store.num_pairs,
        "weight": store.weight,
        "files": [
            {"name": Path(name).name, "size": record.size, "blake2b": record.hash}
            for name, record in manifest.inputs.items()
        ],
        "cleaning": manifest.cleaning,
    }
