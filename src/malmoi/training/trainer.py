"""The loop from the first update to the last, through validation, checkpoints, saved states, signals and rescues.

In: a network, settings, a run folder, a stream of batches, and functions of whoever wires rooms together: decode and
score a model, write a model folder. Out: an `Outcome`; in the folder `metrics.jsonl`, `state/`, `checkpoints/`.

All that decides what comes next stands in a `RunState`, and what is due is decided from it alone. So a run that goes
on from a saved state takes the very turns that it would have taken without a stop, and so do the ranks of one run, each
of which goes this way with the same state: what they cannot know alone they ask each other (`agreement`).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch
from malmoi.device import choose_device
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.models.interface import Seq2Seq
from malmoi.training.agreement import Agreement
from malmoi.training.checkpoints import Checkpoint, choose_kept, is_better, rank
from malmoi.training.health import RESCUE_FACTOR, TrainingError, check_skips, check_validation
from malmoi.training.memory import choose_micro_batch
from malmoi.training.meters import Meter, Row
from malmoi.training.objective import model_with_loss
from malmoi.training.optimizer import Adam, WeightAverage, freeze_parameters, trainable_parameters
from malmoi.training.outcome import Outcome, Progress, Reason, limit_reached, share_done
from malmoi.training.parallel import Whole, distribute
from malmoi.training.ranks import ALONE, Ranks
from malmoi.training.record import Record, SaveModel
from malmoi.training.resume import name_differences
from malmoi.training.schedule import learning_rate, peak_rate
from malmoi.training.signals import StopSignals
from malmoi.training.snapshot import collect, network_tensors, restore
from malmoi.training.state import RunState, SavedNumbers
from malmoi.training.step import Updater
from malmoi.training.surroundings import describe_surroundings
from malmoi.training.validation import Validation, validate

ENDED: Reason = "data"


class Stream(Protocol):
    """Batches with (epoch, position), without end or to the end of the data; `data.batching.BatchStream` is one.

    A rank's stream gives this rank's share of each batch.
    """

    num_batches: int
    """In the present epoch."""

    def __next__(self) -> tuple[int, int, Batch]: ...

    def state(self) -> dict[str, Any]:
        """JSON from which `open_stream` goes on after the last batch that was handed out."""
        ...

    def close(self) -> None: ...


class Trainer:
    """One run in one folder, begun or resumed; in every rank of the run there is one."""

    def __init__(
        self,
        network: Seq2Seq,
        config: TrainingConfig,
        folder: Path,
        open_stream: Callable[[dict[str, Any] | None], Stream],
        save_model: SaveModel,
        *,
        validation: Validation | None = None,
        longest: int = 256,
        ranks: Ranks = ALONE,
        signals: StopSignals | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        """`longest`: tokens of the longest side of a pair, for `fit_memory`. `signals`: already entered, if given.

        Raises `ConfigError` for settings that cannot work with this network on this machine.
        """
        needs_text = validation is not None and validation.evaluate is not None
        if config.best_metric != "loss" and not needs_text:
            raise ConfigError(f"best_metric is {config.best_metric}, which needs validation with decoded text")
        peak_rate(config, network.width)
        self.config, self.longest, self.ranks, self.network = config, longest, ranks, network
        self.device = choose_device(config.device)
        freeze_parameters(network, config.freeze)
        if config.recompute:
            network.recompute_layers()
        is_sharded = ranks.count > 1 and config.parallel == "fsdp"
        self.whole = Whole(network, will_be_sharded=is_sharded and needs_text)
        self.model = model_with_loss(network, config, self.device)
        distributed = distribute(self.model, config.parallel, ranks, self.device)
        self.parameters = trainable_parameters(network)
        self.optimizer = Adam(self.parameters, config)
        self.average = WeightAverage(self.parameters, config.average_decay) if config.average_decay else None
        self.updater = Updater(
            self.model,
            self.parameters,
            self.optimizer,
            maybe_distributed=distributed,
            ranks=ranks,
            clip_norm=config.clip_norm,
        )
        self.open_stream, self.validation = open_stream, validation
        self.own_signals = StopSignals(is_launched=ranks.count > 1) if signals is None else None
        self.signals = signals or self.own_signals or StopSignals()
        self.agreement = Agreement(ranks, self.signals, lambda: self.seconds)
        self.on_progress = on_progress
        self.surroundings = describe_surroundings(self.device, ranks.count)
        self.record = Record(folder, save_model, ranks, self.surroundings, config.model_dump(mode="json"))
        self.record.on_row = on_row
        self.run_state = RunState()
        self.stream: Stream | None = None
        self.last_row: Row = {}
        self.seconds_before, self.started = 0.0, time.monotonic()

    def run(self) -> Outcome:
        """Train until a limit or a signal; resumes by itself where the folder holds a state."""
        self.started = time.monotonic()
        with self.own_signals or nullcontext():
            try:
                self.begin()
                self.agreement.agree()
                while True:
                    try:
                        maybe_reason = self.take_turn()
                    except TrainingError as failure:
                        self.roll_back(failure)
                        continue
                    if maybe_reason is not None:
                        return self.outcome(maybe_reason)
            finally:
                self.close_stream()

    @property
    def seconds(self) -> float:
        """Time of the run up to now, over all its starts."""
        return self.seconds_before + time.monotonic() - self.started

    # Beginning, resuming, going back

    def begin(self) -> None:
        """Go on from the newest state, or save the first one."""
        self.model.train()
        found = self.record.open()
        if found is None:
            micro_batch_tokens = choose_micro_batch(self.model, self.config, self.longest, self.device, self.ranks)
            self.run_state.micro_batch_tokens = self.updater.micro_batch_tokens = micro_batch_tokens
            self.save_state()
            return
        numbers, tensors = found
        self.take_state(numbers, tensors)
        self.seconds_before = numbers.run.seconds
        name_differences(numbers, self.record.training_settings, self.surroundings)
        get_logger().info("going on from step %d (%s)", numbers.run.step, numbers.folder)

    def take_state(self, numbers: SavedNumbers, tensors: Mapping[str, Tensor]) -> None:
        """Put everything back to where it was, and drop what was written since."""
        restore(tensors, str(numbers.folder), self.network, self.optimizer, self.average)
        self.close_stream()
        self.run_state = self.record.rewind(numbers.run)
        given = self.config.micro_batch_tokens
        if not self.config.fit_memory and numbers.training.get("micro_batch_tokens") != given:
            self.run_state.micro_batch_tokens = given
        self.updater.micro_batch_tokens = self.run_state.micro_batch_tokens

    def roll_back(self, failure: TrainingError) -> None:
        """Go back to the last good state with a lower rate; the second time the failure stands."""
        found = None if self.run_state.rollbacks else self.record.newest(good=True)
        if found is None:
            raise TrainingError(
                f"{failure}; going back with a lower rate did not help, so training ends here. Try a lower "
                "training.lr, a larger warmup_steps, clip_norm = 1, and look at the data for lines that do not belong"
            ) from failure
        numbers, tensors = found
        skipped = self.run_state.skipped
        self.take_state(numbers, tensors)
        self.run_state.rollbacks += 1
        self.run_state.skipped = skipped
        self.run_state.factor *= RESCUE_FACTOR
        get_logger().warning(
            "%s; going back to step %d, from now on with %g times the rate", failure, numbers.run.step, RESCUE_FACTOR
        )
        self.write_row({"event": "rollback", "reason": str(failure), "factor": self.run_state.factor})
        # At once, so that whatever happens next no restart goes back twice.
        self.save_state()

    # The loop

    def take_turn(self) -> Reason | None:
        """What is due since the last update, then the next update; a reason when the run is over."""
        run, config = self.run_state, self.config
        if self.agreement.signal is not None:
            self.save_state()
            self.agreement.announce(f"state of step {run.step} saved, run left; the same command goes on from there")
            return "signal"
        if run.step % config.validate_every == 0 and run.validated_step != run.step and not self.validate():
            return None
        maybe_reason = limit_reached(run, self.agreement.seconds, config)
        if maybe_reason is None:
            is_save_due = run.step % (config.save_every or config.validate_every) == 0
            if is_save_due and not self.record.is_saved(run):
                self.save_state()
            maybe_reason = self.train_on_next()
        return self.finish(maybe_reason) if maybe_reason is not None else None

    def train_on_next(self) -> Reason | None:
        """One update; a reason if there is nothing left to train on, None also if a signal came while waiting."""
        began = time.monotonic()
        if self.stream is None:
            self.stream = self.open_stream(self.run_state.stream)
        stream = self.stream
        # None after a signal: the batch is not lost, as a run that leaves goes on from the last one used.
        item = self.agreement.cut_short(lambda: next(stream, ENDED))
        if item is None:
            return None
        if isinstance(item, str):
            return ENDED
        epoch, position, batch = item
        if self.config.max_epochs is not None and epoch >= self.config.max_epochs:
            return "max_epochs"
        self.train_on(epoch, batch)
        self.run_state.stream = stream.state()
        self.after_update(began, epoch + (position + 1) / max(1, stream.num_batches))
        return None

    def train_on(self, epoch: int, batch: Batch) -> None:
        """Update the weights and the counters; an update that is not finite moves nothing but its own counter."""
        run = self.run_state
        run.epoch = epoch
        rate = self.rate_of(run.step + 1)
        result = self.updater.update(batch, rate, (self.config.seed, run.step + 1))
        run.micro_batch_tokens = self.updater.micro_batch_tokens
        if result.maybe_fault is not None:
            run.skipped += 1
            run.skipped_in_row += 1
            get_logger().warning("update %d skipped: %s (%d so far)", run.step + 1, result.maybe_fault, run.skipped)
            check_skips(run, result.maybe_fault)
            return
        run.step += 1
        run.skipped_in_row = 0
        run.target_tokens += result.num_tokens
        run.meter.add(result)
        if self.average is not None:
            self.average.update(run.step)

    def rate_of(self, step: int) -> float:
        """The learning rate of an update."""
        return learning_rate(step, self.config, self.network.width) * self.run_state.factor

    def after_update(self, began: float, epochs: float) -> None:
        """A row when it is due, and word to whoever shows how far the run is."""
        run = self.run_state
        run.meter.seconds += time.monotonic() - began
        if run.meter.num_updates and run.step % self.config.log_every == 0:
            self.write_training_row()
            run.meter = Meter()
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    step=run.step,
                    epoch=run.epoch + 1,
                    target_tokens=run.target_tokens,
                    seconds=self.seconds,
                    lr=self.rate_of(max(1, run.step)),
                    loss=self.last_row.get("loss"),
                    target_tokens_per_second=self.last_row.get("target_tokens_per_second"),
                    share=share_done(run, self.seconds, epochs, self.config),
                )
            )

    def finish(self, reason: Reason) -> Reason | None:
        """Last row, validation, checkpoint and state; None if a signal came in between."""
        run = self.run_state
        if run.meter.num_updates and run.logged_step != run.step:
            # The sums go on, so that a run whose limits are raised later has the rows of one long run.
            self.write_training_row()
        if run.step and run.validated_step != run.step and not self.validate():
            return None
        self.save_state()
        return reason

    def outcome(self, reason: Reason) -> Outcome:
        """What to tell the caller, once all that the run leaves is written: no rank goes before."""
        self.ranks.wait()
        run = self.run_state
        ranked = rank(run.checkpoints, self.config.best_metric)
        return Outcome(
            reason=reason,
            signal_number=self.agreement.signal if reason == "signal" else None,
            step=run.step,
            epoch=run.epoch + 1,
            target_tokens=run.target_tokens,
            seconds=self.seconds,
            skipped=run.skipped,
            rollbacks=run.rollbacks,
            best=ranked[0] if ranked else None,
            checkpoints=tuple(run.checkpoints),
        )

    # Validation and what is written

    def validate(self) -> bool:
        """Metrics, a row, a checkpoint; False if a signal cut it short, and then nothing has changed.

        Raises `TrainingError` where the model is broken. Averaged weights, where there are any, are the ones that are
        validated and saved.
        """
        run = self.run_state
        with self.average.in_place() if self.average is not None else nullcontext():
            metrics: dict[str, float] = {}
            if self.validation is not None:
                maybe_metrics = self.measure(self.validation)
                if maybe_metrics is None:
                    return False
                metrics = maybe_metrics
                self.write_row({f"valid_{name}": value for name, value in metrics.items()})
                check_validation(run, metrics, self.config.warmup_steps)
                self.note_best(metrics)
            run.validated_step = run.step
            self.write_checkpoint(metrics)
        return True

    def measure(self, validation: Validation) -> dict[str, float] | None:
        """Metrics of the weights that the network holds now; the model goes on in training mode."""
        network = self.whole.take(self.device)
        try:
            return validate(self.model, network, validation, self.device, self.agreement)
        finally:
            self.whole.give_back()
            self.model.train()

    def note_best(self, metrics: Mapping[str, float]) -> None:
        """Count the validations since the best one."""
        run, name = self.run_state, self.config.best_metric
        if name not in metrics:
            raise ConfigError(f"best_metric is {name}, but validation gave only {', '.join(sorted(metrics))}")
        if is_better(name, metrics[name], run.best_value):
            run.best_value, run.best_step, run.stale_validations = metrics[name], run.step, 0
        else:
            run.stale_validations += 1

    def write_checkpoint(self, metrics: dict[str, float]) -> None:
        """Save the model if it is among those to keep; those that are not go with the next saved state."""
        run, config = self.run_state, self.config
        new = Checkpoint(run.step, f"step-{run.step:08d}", metrics)
        others = [checkpoint for checkpoint in run.checkpoints if checkpoint.step != run.step]
        kept, superfluous = choose_kept([*others, new], config.best_metric, config.keep_last, config.keep_best)
        if new in kept:
            self.record.write_checkpoint(new, network_tensors(self.network))
        run.checkpoints = kept
        self.record.condemn(superfluous)

    def save_state(self) -> None:
        """A state to go on from, unless the newest one says the same."""
        self.run_state.seconds = self.seconds
        self.record.save_state(self.run_state, lambda: collect(self.network, self.optimizer, self.average))

    def write_training_row(self) -> None:
        """The sums since the last row, per token."""
        run = self.run_state
        run.logged_step = run.step
        self.last_row = {**run.meter.row(), "lr": self.rate_of(run.step)}
        self.write_row(self.last_row)

    def write_row(self, values: Mapping[str, Any]) -> None:
        """A row of `metrics.jsonl`."""
        run = self.run_state
        common = {"step": run.step, "epoch": run.epoch + 1}
        row = {**common, **values, "target_tokens": run.target_tokens, "seconds": round(self.seconds, 3)}
        self.record.write_row(row)
        run.num_rows += 1

    def close_stream(self) -> None:
        """Let the stream's threads end; the next batch opens it anew at the run's place."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
