"""A signal is heard whatever the run is doing, and what it leaves can be resumed exactly."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training_toys import ToyRun

from malmoi.models.interface import Seq2Seq
from malmoi.training.signals import StopSignals

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
NUMBERS = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (getattr(signal, "SIGUSR1", 0), 138)]


def once(number: int) -> Callable[..., None]:
    """Sends a signal the first time it is called."""
    left = [number]

    def send(*_: Any) -> None:
        if left:
            signal.raise_signal(left.pop())

    return send


def in_validation(run: ToyRun, number: int) -> None:
    left = [number]

    def evaluate(network: Seq2Seq) -> dict[str, float]:
        if left:
            signal.raise_signal(left.pop())
            raise AssertionError("the signal did not cut the work short")
        return {}

    run.evaluate = evaluate


def in_step(run: ToyRun, number: int) -> None:
    send = once(number)
    original = run.open_stream

    def open_stream(state: Any) -> Any:
        stream = original(state)
        batch_state = stream.state

        def state_and_signal() -> Any:
            # Called right after an update.
            if stream.position == 4:
                send()
            return batch_state()

        stream.state = state_and_signal  # type: ignore[method-assign]
        return stream

    run.open_stream = open_stream  # type: ignore[method-assign]


def while_loading(run: ToyRun, number: int) -> None:
    send = once(number)
    original = run.open_stream

    def open_stream(state: Any) -> Any:
        stream = original(state)
        stream.batches = WaitingList(stream.batches, send, 3)
        return stream

    run.open_stream = open_stream  # type: ignore[method-assign]


class WaitingList(list[Any]):
    """The batch at one place never comes, but a signal does."""

    def __init__(self, batches: Any, send: Callable[..., None], place: int) -> None:
        super().__init__(batches)
        self.send, self.place = send, place

    def __getitem__(self, place: Any) -> Any:
        if place == self.place:
            self.send()
        return super().__getitem__(place)


def while_saving(run: ToyRun, number: int) -> None:
    send = once(number)
    original = run.save_model

    def save_model(*arguments: Any) -> None:
        send()
        original(*arguments)

    run.save_model = save_model  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [(in_step, *pair) for pair in NUMBERS]
    + [(moment, *NUMBERS[0]) for moment in (in_validation, while_loading, while_saving)],
)
def test_first_signal(tmp_path: Path, moment: Callable[[ToyRun, int], None], number: int, status: int) -> None:
    """goodfire-ai/spd#677 and #741; Lightning-AI/pytorch-lightning#1455."""
    settings: dict[str, Any] = {"max_steps": 12, "validate_every": 5}
    before = signal.getsignal(number)
    run = ToyRun(tmp_path / "run", **settings)
    moment(run, number)
    outcome = run.trainer().run()
    assert outcome.exit_status == status
    assert outcome.reason == "signal"
    assert outcome.step < 12
    assert signal.getsignal(number) == before
    assert all(stream.closed for stream in run.streams)
    resumed = ToyRun(tmp_path / "run", **settings)
    assert resumed.trainer().run().exit_status == 0
    whole = ToyRun(tmp_path / "whole", **settings)
    whole.trainer().run()
    assert all(torch.equal(resumed.weights()[name], tensor) for name, tensor in whole.weights().items())
    assert resumed.checkpoints() == whole.checkpoints()


def test_signal_at_start_up(tmp_path: Path) -> None:
    """goodfire-ai/spd#677: whoever prepares data may set the handlers before the run begins."""
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        run = ToyRun(tmp_path / "run")
        run.signals = signals
        outcome = run.trainer().run()
    assert (outcome.exit_status, outcome.step) == (143, 0)
    assert run.seen == []


@pytest.mark.parametrize("moment", [in_step, while_saving])
def test_second_signal_stops_at_once(tmp_path: Path, moment: Callable[[ToyRun, int], None]) -> None:
    """goodfire-ai/spd#741: and the states on the disk stay whole."""
    settings: dict[str, Any] = {"max_steps": 6, "validate_every": 5, "save_every": 1}
    run = ToyRun(tmp_path / "run", **settings)
    moment(run, signal.SIGTERM)
    trainer = run.trainer()
    original = trainer.record.store.save

    def save(*arguments: Any) -> Any:
        if trainer.signals.received is not None:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    trainer.record.store.save = save  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stopped:
        trainer.run()
    assert stopped.value.code == 130
    assert signal.getsignal(signal.SIGINT) == before
    resumed = ToyRun(tmp_path / "run", **settings)
    resumed.trainer().run()
    whole = ToyRun(tmp_path / "whole", **settings)
    whole.trainer().run()
    assert all(torch.equal(resumed.weights()[name], tensor) for name, tensor in whole.weights().items())


def test_work_that_ends_before_a_signal_keeps_its_result() -> None:
    with StopSignals() as signals:
        assert signals.cut_short(lambda: 5) == 5
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        assert signals.cut_short(lambda: 5) is None
