"""What a process makes of torchrun's words, and what one alone answers."""

import logging
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training_toys import toy_batch, toy_network, toy_pairs
from torch.distributed import HashStore

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError, DataError
from malmoi.training.memory import choose_micro_batch
from malmoi.training.objective import ModelWithLoss
from malmoi.training.parallel import Whole
from malmoi.training.ranks import ALONE, RankError, Ranks, is_loss, join_ranks
from malmoi.training.resume import name_differences
from malmoi.training.signals import StopSignals
from malmoi.training.state import RunState, SavedNumbers
from malmoi.training.surroundings import describe_surroundings

CPU = torch.device("cpu")


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_who_was_not_launched_with_others_is_alone(environment: dict[str, str]) -> None:
    """Some clusters set WORLD_SIZE for every job."""
    with join_ranks(environment) as ranks, ranks.first_ahead():
        assert ranks == ALONE
        assert ranks.is_first and ranks.key == ()
        assert ranks.gather(1.5, 2) == [(1.5, 2)]
        assert ranks.merge(["a", "b"]) == ["a", "b"]
        assert ranks.from_first({"a": 1}) == {"a": 1}
        assert [1, 2, 3][ranks.part] == [1, 2, 3]


def test_half_a_launch_is_told() -> None:
    with (
        pytest.raises(ConfigError, match="RANK is set but MASTER_ADDR is not"),
        join_ranks({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}),
    ):
        pass


def test_a_process_alone_does_not_load_what_cuts_into_pieces() -> None:
    """It takes a second."""
    code = "import sys, malmoi.training.trainer; print('torch.distributed.tensor' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_the_others_follow_the_first_or_leave_with_it() -> None:
    """Without meeting: the first may take its time, and may be gone before the others come."""
    for fails in (False, True):
        store = HashStore()
        first, second = (Ranks(rank, 2, store=store) for rank in range(2))
        with suppress(DataError), first.first_ahead():
            if fails:
                raise DataError("no such file")
        if fails:
            with pytest.raises(RankError, match="rank 0 could not prepare the run"), second.first_ahead():
                pass
        else:
            with second.first_ahead():
                pass


def test_parts_are_everything_once() -> None:
    rows = np.arange(7)
    parts = [rows[Ranks(rank, 3).part].tolist() for rank in range(3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
    assert {Ranks(rank, 3).key for rank in range(3)} == {(), (1,), (2,)}


def test_each_process_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    Ranks(0, 2, 0, 2).check_device(torch.device("cuda"))
    Ranks(0, 4, 0, 4).check_device(CPU)
    with pytest.raises(ConfigError, match=r"4 processes on a machine with 2 CUDA device\(s\)"):
        Ranks(0, 4, 0, 4).check_device(torch.device("cuda"))
    with pytest.raises(ConfigError, match="cannot train on mps"):
        Ranks(0, 2, 0, 2).check_device(torch.device("mps"))


def test_errors_of_the_connection_are_told_from_others() -> None:
    assert is_loss(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert is_loss(torch.distributed.DistNetworkError("gone"))
    assert not is_loss(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not isinstance(RankError("gone"), DataError)


def test_a_batch_without_targets_moves_nothing() -> None:
    """pytorch/pytorch#33148, #38174 and #28257: a pass of zero weight, for ranks that have no rows."""
    model = ModelWithLoss(toy_network().double(), 0.1)
    for empty in (
        toy_batch(toy_pairs([3, 5])).without_targets(),
        toy_batch(toy_pairs([3])).without_targets().split(9)[0],
    ):
        result = model(empty)
        assert (result.loss.item(), result.nll.item(), result.num_tokens) == (0.0, 0.0, 0)
        result.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_memory_is_not_tried_with_a_model_in_pieces() -> None:
    config = TrainingConfig(fit_memory=True, parallel="fsdp", device="cpu")
    model = ModelWithLoss(toy_network(), 0.1)
    with pytest.raises(ConfigError, match=r"set training\.micro_batch_tokens"):
        choose_micro_batch(model, config, 5, CPU, Ranks(0, 2))
    assert choose_micro_batch(model, config, 5, CPU, ALONE) > 0


def test_only_a_network_in_pieces_is_copied_to_decode() -> None:
    network = toy_network()
    assert Whole(network, will_be_sharded=False).take(CPU) is network
    copied = Whole(network, will_be_sharded=True)
    with torch.no_grad():
        network.target_embedding.weight.add_(1.0)
    taken = copied.take(CPU)
    assert taken is not network
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(taken.parameters(), network.parameters(), strict=True))


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
def test_a_launcher_may_repeat_itself() -> None:
    """torchrun passes on what its processes have heard already, and once more when the first has left."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with StopSignals(is_launched=True) as signals:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert signals.received == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, before if number == signal.SIGTERM else signal.default_int_handler)
    with StopSignals(is_launched=True):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_ranks_are_named_at_resume(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    saved = SavedNumbers(tmp_path, RunState(), describe_surroundings(CPU, 2), {"parallel": "ddp"}, 0, "")
    with caplog.at_level(logging.WARNING, logger="malmoi"):
        name_differences(saved, {"parallel": "fsdp"}, describe_surroundings(CPU, 4))
    assert "training.parallel was ddp and is now fsdp" in caplog.text
    assert "ranks was 2 and is now 4: batches and learning rates go on exactly" in caplog.text
