"""Training itself: the trainer wired to batches, checkpoints, validation, and to whoever watches.

In: a run folder, its config and material, a network. Out: the trainer's `Outcome`; rows of `metrics.jsonl` in words.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from malmoi.checkpoint import save_model
from malmoi.commands.folder import RunFolder
from malmoi.commands.material import Material
from malmoi.commands.progress import Bar
from malmoi.config.run import RunConfig, StoredConfig
from malmoi.data.batch import BatchMaker, ValidationBatches
from malmoi.data.batching import BEGINNING, BatchPlan, in_order
from malmoi.data.stream import BatchStream
from malmoi.evaluation.evaluate import make_validation
from malmoi.log import get_logger
from malmoi.models.interface import Seq2Seq
from malmoi.training.meters import Row
from malmoi.training.outcome import Outcome, Progress
from malmoi.training.ranks import ALONE, Ranks
from malmoi.training.trainer import Trainer
from malmoi.training.validation import Validation


def run_trainer(
    run: RunFolder, config: RunConfig, material: Material, network: Seq2Seq, bar: Bar, ranks: Ranks = ALONE
) -> Outcome:
    """Wire the trainer to the other rooms and let it run."""
    training, tokenizers = config.training, material.tokenizers
    longest = config.cleaning.max_tokens
    maker = BatchMaker(material.train, tokenizers, training.seed, config.text.sampling, longest, ranks.part)
    stored = StoredConfig(text=config.text, model=config.model, decoding=config.decoding)

    def open_stream(state: dict[str, Any] | None) -> BatchStream:
        plan = BatchPlan(material.train, training.batch_tokens, training.seed, stages=config.stages)
        return BatchStream(plan, maker, plan.resume(state) if state is not None else BEGINNING)

    def save(folder: Path, step: int, weights: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        save_model(folder, stored, weights, tokenizers, {"steps": step, "metrics": dict(metrics)})

    def show(progress: Progress) -> None:
        speed = progress.target_tokens_per_second
        loss = f"loss {progress.loss:.3f}, " if progress.loss is not None else ""
        bar(progress.share or 0.0, f"step {progress.step:,}, {loss}" + (f"{speed:,.0f} tokens/s" if speed else ""))

    with ExitStack() as stack:
        listeners: list[Callable[[Row], None]] = [log_row]
        if training.tensorboard and ranks.is_first:
            listeners.append(tensorboard(run.path / "tensorboard", stack))

        def listen(row: Row) -> None:
            for listener in listeners:
                listener(row)

        trainer = Trainer(
            network,
            training,
            run.path,
            open_stream,
            save,
            validation=make_trainer_validation(config, material),
            longest=longest_side(material),
            ranks=ranks,
            on_progress=show,
            on_row=listen,
        )
        return trainer.run()


def make_trainer_validation(config: RunConfig, material: Material) -> Validation:
    """Loss on all validation pairs, other metrics on as many as are wanted."""
    training, tokenizers = config.training, material.tokenizers
    text = material.validation.spread(training.validation_pairs)
    decoding = config.decoding.model_copy(
        update={"method": "beam", "beam_size": training.validation_beam, "n_best": 1, "diverse_groups": 1}
    )
    evaluate = make_validation(tokenizers, text.sources, text.references, metrics=training.metrics, decoding=decoding)
    return Validation(
        batches=ValidationBatches(material.valid, tokenizers, in_order(material.valid, training.batch_tokens)),
        num_characters=sum(len(right[0]) + 1 for right in material.validation.references.answers),
        evaluate=evaluate if set(training.metrics) - {"loss"} else None,
    )


def longest_side(material: Material) -> int:
    """Tokens of the longest side of any training pair."""
    return max(max(store.longest_source, store.longest_target) for store in material.train)


def log_row(row: Row) -> None:
    """A row of `metrics.jsonl` in words."""
    values = {key.removeprefix("valid_"): value for key, value in row.items() if isinstance(value, float)}
    del values["seconds"]
    words = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    if any(key.startswith("valid_") for key in row):
        get_logger().info("step %d, validation: %s", row["step"], words)
    elif "event" not in row:
        get_logger().info("step %d: %s", row["step"], words)


def tensorboard(folder: Path, stack: ExitStack) -> Callable[[Row], None]:
    """Rows for TensorBoard, beside `metrics.jsonl`."""
    from tensorboardX import SummaryWriter

    writer = stack.enter_context(SummaryWriter(str(folder)))

    def write(row: Row) -> None:
        for key, value in row.items():
            if isinstance(value, float):
                writer.add_scalar(key.replace("valid_", "validation/"), value, row["step"])

    return write
