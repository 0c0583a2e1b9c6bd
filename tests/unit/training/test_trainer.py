"""The loop: what is due when, when it ends, what it keeps, and how it gets out of trouble."""

import json
import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training_toys import ToyRun

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.models.interface import Seq2Seq
from malmoi.training.health import TrainingError
from malmoi.training.outcome import Progress
from malmoi.training.trainer import Trainer


def rows_of(run: ToyRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def metric_by_step(run: ToyRun, values: dict[int, float], name: str = "bleu") -> Trainer:
    """A trainer whose validation gives these values at these steps."""
    trainers: list[Trainer] = []

    def evaluate(network: Seq2Seq) -> dict[str, float]:
        assert not network.training
        return {name: values[trainers[0].run_state.step]}

    run.evaluate = evaluate
    trainers.append(run.trainer())
    return trainers[0]


# What is written and when


@pytest.mark.parametrize(("every", "wanted"), [(3, [3, 6, 9, 12, 15, 18]), (9, [9, 18]), (4, [4, 8, 12, 16, 18])])
def test_checkpoints_at_each_multiple_and_at_the_end(tmp_path: Path, every: int, wanted: list[int]) -> None:
    """facebookresearch/fairseq#2230: nine steps an epoch, two epochs."""
    run = ToyRun(tmp_path / "run", max_steps=None, max_epochs=2, validate_every=every, keep_last=99)
    outcome = run.trainer().run()
    assert (outcome.reason, outcome.step, outcome.epoch) == ("max_epochs", 18, 2)
    assert run.checkpoints() == run.saved == wanted
    assert [row["step"] for row in rows_of(run) if "valid_loss" in row] == wanted
    # The last one told that a third epoch would begin.
    assert len(run.seen) == 19


def test_a_last_step_that_is_no_multiple(tmp_path: Path) -> None:
    """facebookresearch/fairseq#2230: states at their own interval, and always at the end."""
    run = ToyRun(tmp_path / "run", max_steps=7, save_every=3, validate_every=5, keep_last=99)
    run.trainer().run()
    assert run.checkpoints() == [5, 7]
    steps = [int(path.name.split("-")[1]) for path in sorted((run.folder / "state").iterdir())]
    assert steps == [6, 7]


def test_rows_have_the_documented_keys(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", max_steps=6, log_every=3, validate_every=6)
    run.trainer().run()
    rows = rows_of(run)
    training = {
        "step",
        "epoch",
        "loss",
        "nll",
        "lr",
        "gradient_norm",
        "target_tokens",
        "target_tokens_per_second",
        "seconds",
    }
    assert [set(row) for row in rows[:2]] == [training, training]
    assert [row["step"] for row in rows] == [3, 6, 6]
    assert {"valid_loss", "valid_perplexity", "valid_perplexity_per_character", "step", "epoch"} <= set(rows[2])
    assert rows[0]["epoch"] == 1
    assert rows[1]["target_tokens"] == 6 * (14 + 4)
    assert rows[2]["valid_perplexity"] == pytest.approx(math.exp(rows[2]["valid_loss"]))


def test_the_logged_loss_is_per_token_over_all_steps_since_the_row_before(tmp_path: Path) -> None:
    """OpenNMT/OpenNMT-py#2209: weighted by tokens."""
    each, every = ToyRun(tmp_path / "each", max_steps=4), ToyRun(tmp_path / "every", max_steps=4, log_every=4)
    for run in (each, every):
        run.batches = [batch.rows(0, 1 + number % 3) for number, batch in enumerate(run.batches)]
        run.trainer().run()
    single = [row for row in rows_of(each) if "loss" in row]
    tokens = [now["target_tokens"] - (single[i - 1]["target_tokens"] if i else 0) for i, now in enumerate(single)]
    assert len(set(tokens)) > 1
    wanted = sum(row["loss"] * count for row, count in zip(single, tokens, strict=True)) / sum(tokens)
    assert rows_of(every)[0]["loss"] == pytest.approx(wanted, rel=1e-9)


def test_progress_and_rows_are_told(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", max_steps=4)
    trainer = run.trainer()
    seen: list[Progress] = []
    rows: list[Any] = []
    trainer.on_progress, trainer.record.on_row = seen.append, rows.append
    trainer.run()
    assert [progress.step for progress in seen] == [1, 2, 3, 4]
    assert [progress.share for progress in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]


# When it ends


def test_limits(tmp_path: Path) -> None:
    tokens = ToyRun(tmp_path / "tokens", max_steps=None, max_target_tokens=50)
    outcome = tokens.trainer().run()
    assert (outcome.reason, outcome.step, outcome.target_tokens) == ("max_target_tokens", 3, 54)
    minutes = ToyRun(tmp_path / "minutes", max_steps=None, max_minutes=10)
    trainer = minutes.trainer(max_steps=2)
    trainer.run()
    late = minutes.trainer()
    # Time counts over all starts of a run.
    state = late.record.store.newest()
    assert state is not None and 0 < state[0].run.seconds < 600
    original = late.begin

    def begin() -> None:
        original()
        late.seconds_before = 700

    late.begin = begin  # type: ignore[method-assign]
    assert (late.run().reason, late.run_state.step) == ("max_minutes", 2)


def test_early_stopping_counts_validations_without_a_better_value(tmp_path: Path) -> None:
    run = ToyRun(
        tmp_path / "run", validate_every=1, metrics=("loss", "bleu"), best_metric="bleu", patience=2, keep_last=1
    )
    outcome = metric_by_step(run, {1: 5.0, 2: 7.0, 3: 6.0, 4: 7.5, 5: 7.5, 6: 1.0, 7: 99.0}).run()
    assert (outcome.reason, outcome.step) == ("patience", 6)
    assert outcome.best is not None and outcome.best.step == 4
    assert run.checkpoints() == [4, 6]
    assert [checkpoint.step for checkpoint in outcome.checkpoints] == [4, 6]


def test_best_and_last_of_a_metric_where_lower_is_better(tmp_path: Path) -> None:
    run = ToyRun(
        tmp_path / "run",
        validate_every=1,
        metrics=("loss", "ser"),
        best_metric="ser",
        keep_best=2,
        keep_last=2,
        max_steps=6,
    )
    metric_by_step(run, {1: 9.0, 2: 3.0, 3: 8.0, 4: 2.0, 5: 7.0, 6: 6.0}, "ser").run()
    assert run.checkpoints() == [2, 4, 5, 6]


def test_an_old_checkpoint_goes_only_after_the_new_one_is_complete(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#688."""
    run = ToyRun(tmp_path / "run", validate_every=1, max_steps=3, keep_best=0)
    original = run.save_model
    present: list[list[int]] = []

    def save_model(*arguments: Any) -> None:
        original(*arguments)
        present.append(run.checkpoints())

    run.save_model = save_model  # type: ignore[method-assign]
    run.trainer().run()
    assert present == [[1], [1, 2], [2, 3]]
    assert run.checkpoints() == [3]


def test_averaged_weights_are_validated_and_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = ToyRun(tmp_path / "run", average_decay=0.9, max_steps=5)
    trainer = run.trainer()
    trainer.run()
    assert trainer.average is not None
    stored = load_file(run.folder / "checkpoints" / "step-00000005" / "model.safetensors")
    for name, tensor in trainer.average.tensors.items():
        assert torch.equal(stored[name], tensor)
        assert not torch.equal(stored[name], run.weights()[name])


# Trouble


def poison(trainer: Trainer, attempts: Container[int]) -> list[tuple[int, float]]:
    """Make the gradients of these calls infinite; returns (step, rate) of every call."""
    calls: list[tuple[int, float]] = []
    original = trainer.updater.update
    parameter = next(iter(trainer.parameters.values()))

    def update(batch: Any, rate: float, key: tuple[int, ...]) -> Any:
        calls.append((trainer.run_state.step + 1, rate))
        if len(calls) not in attempts:
            return original(batch, rate, key)
        handle = parameter.register_hook(lambda gradient: gradient + torch.inf)
        try:
            return original(batch, rate, key)
        finally:
            handle.remove()

    trainer.updater.update = update  # type: ignore[method-assign]
    return calls


def test_skipped_updates_move_neither_schedule_nor_counters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pytorch/pytorch#55585 and #44511; huggingface/transformers#11144: resumed after step 5."""
    run = ToyRun(tmp_path / "run")
    trainer = run.trainer(max_steps=5)
    calls = poison(trainer, range(1, 4))
    with caplog.at_level("WARNING", logger="malmoi"):
        outcome = trainer.run()
    assert (outcome.step, outcome.skipped, outcome.target_tokens) == (5, 3, 5 * 18)
    assert [step for step, _ in calls] == [1, 1, 1, 1, 2, 3, 4, 5]
    assert [rate for _, rate in calls[2:]] == pytest.approx([0.001, 0.001, 0.002, 0.003, 0.004, 0.005])
    assert caplog.text.count("update 1 skipped: the gradient of") == 3
    assert run.trainer(max_steps=6).run().skipped == 3
    assert [row["lr"] for row in rows_of(run) if "lr" in row] == pytest.approx([0.001 * step for step in range(1, 7)])
    assert len(run.seen) == 9


def test_skips_with_a_sound_update_between_them_are_not_in_a_row(tmp_path: Path) -> None:
    """huggingface/transformers#11144: only an unbroken row means that a run is lost."""
    run = ToyRun(tmp_path / "run", max_steps=3)
    trainer = run.trainer()
    calls = poison(trainer, [*range(1, 9), *range(10, 18)])
    outcome = trainer.run()
    assert (outcome.step, outcome.skipped, outcome.rollbacks) == (3, 16, 0)
    assert len(calls) == 19


def test_many_skips_go_back_once_with_half_the_rate(tmp_path: Path) -> None:
    """huggingface/transformers#11144: the run says what happened, and goes on from the last good state."""
    run = ToyRun(tmp_path / "run", save_every=4, max_steps=12)
    trainer = run.trainer()
    calls = poison(trainer, range(7, 17))
    outcome = trainer.run()
    assert (outcome.step, outcome.rollbacks, outcome.skipped) == (12, 1, 10)
    assert [step for step, _ in calls] == [1, 2, 3, 4, 5, 6, *[7] * 10, 5, 6, 7, 8, 9, 10, 11, 12]
    assert calls[16][1] == pytest.approx(0.5 * 0.005)
    # The batches after the state are the same as the first time.
    assert run.seen[16:19] == run.seen[4:7]
    rows = rows_of(run)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 13))
    assert [row["event"] for row in rows if "event" in row] == ["rollback"]


def test_a_restart_after_going_back_is_exact(tmp_path: Path) -> None:
    """facebookresearch/fairseq#441: the place after a rescue is saved at once."""
    whole, parts = (ToyRun(tmp_path / name, save_every=4, max_steps=8) for name in ("whole", "parts"))
    trainer = whole.trainer()
    poison(trainer, range(7, 17))
    trainer.run()
    broken = parts.trainer()
    poison(broken, range(7, 17))
    original = broken.roll_back

    def roll_back(failure: TrainingError) -> None:
        original(failure)
        raise KeyboardInterrupt

    broken.roll_back = roll_back  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    resumed = parts.trainer()
    assert resumed.run().rollbacks == 1
    assert resumed.run_state.factor == 0.5
    assert all(torch.equal(parts.weights()[name], tensor) for name, tensor in whole.weights().items())


def test_the_second_failure_ends_the_run_by_name(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", save_every=4, max_steps=12)
    trainer = run.trainer()
    poison(trainer, range(7, 1000))
    with pytest.raises(TrainingError, match=r"10 updates in a row after step 4 were not finite .*gradient of"):
        trainer.run()


def test_a_collapse_goes_back_to_a_state_before_it(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", validate_every=2, save_every=1, max_steps=8)
    shares = iter([0.5, 0.9, 0.0, 0.8, 0.9])
    run.evaluate = lambda _network: {"distinct_outputs": next(shares)}
    outcome = run.trainer().run()
    assert (outcome.rollbacks, outcome.step) == (1, 8)
    events = [row for row in rows_of(run) if "event" in row]
    assert events[0]["step"] == 5
    assert "collapsed" in events[0]["reason"] and "same for every source" in events[0]["reason"]


def test_a_model_that_never_said_two_things_goes_back_to_the_start(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", validate_every=5, warmup_steps=10, max_steps=50)
    run.evaluate = lambda _network: {"distinct_outputs": 0.0}
    trainer = run.trainer()
    with pytest.raises(TrainingError, match="collapsed: at step 25"):
        trainer.run()
    assert [row["step"] for row in rows_of(run) if "event" in row] == [0]


def test_the_same_output_early_on_is_no_collapse(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", validate_every=2, warmup_steps=10, max_steps=12)
    shares = iter([0.0, 0.0, 0.05, 0.0, 0.0, 0.5])
    run.evaluate = lambda _network: {"distinct_outputs": next(shares)}
    assert run.trainer().run().rollbacks == 0


def test_a_validation_loss_that_is_no_number(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", validate_every=2, max_steps=4)
    trainer = run.trainer()
    run.evaluate = None
    original = trainer.updater.update

    def update(*arguments: Any) -> Any:
        result = original(*arguments)
        if trainer.run_state.step == 1:
            with torch.no_grad():
                next(iter(trainer.parameters.values()))[3:] = torch.nan
        return result

    trainer.updater.update = update  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="validation loss at step 2 is nan"):
        trainer.run()


def test_settings_that_cannot_work_are_refused_before_training(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", metrics=("loss", "bleu"), best_metric="bleu")
    with pytest.raises(ConfigError, match="needs validation with decoded text"):
        run.trainer()
    with pytest.raises(ConfigError, match="no parameter's name starts with"):
        ToyRun(tmp_path / "other", freeze=("nothing",)).trainer()


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", freeze=("encoder",), max_steps=3)
    trainer = run.trainer()
    before = run.weights()
    trainer.run()
    moved = {name for name, tensor in run.weights().items() if not torch.equal(tensor, before[name])}
    assert moved and not any(name.startswith("encoder") for name in moved)
    assert {name for name in before if not name.startswith("encoder")} == moved
    assert TrainingConfig(**run.settings).freeze == ("encoder",)
