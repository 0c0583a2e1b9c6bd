"""Devices, threads and memory."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training_toys import toy_network

from malmoi.data.batch import Batch
from malmoi.device import choose_device, set_threads
from malmoi.errors import ConfigError
from malmoi.training import memory
from malmoi.training.objective import ModelWithLoss
from malmoi.training.surroundings import describe_surroundings

CPU = torch.device("cpu")


def test_a_device_asked_for_by_name_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ConfigError, match="device is cuda"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="device is mps"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"


def test_threads() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == 2
        assert set_threads(0) == 2
        with pytest.raises(ConfigError, match="at most 4096"):
            set_threads(10**20)
        assert describe_surroundings(CPU)["threads"] == "2"
    finally:
        torch.set_num_threads(before)


def test_memory_of_a_cpu_bounds_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelWithLoss(toy_network(), 0.1)
    sizes: list[int] = []
    for free in (2**40, 2**24, 2**22):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: free)
        sizes.append(memory.find_micro_batch_tokens(model, 10_000, 50, CPU))
    assert sizes[0] == 10_000
    assert 10_000 > sizes[1] > sizes[2] >= 50
    assert all(parameter.grad is None for parameter in model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="fit_memory"):
        memory.find_micro_batch_tokens(model, 10_000, 50, CPU)
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    assert memory.find_micro_batch_tokens(model, 10_000, 50, CPU) == 10_000


def test_an_accelerator_is_tried_with_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelWithLoss(toy_network(), 0.1)
    tried: list[int] = []

    def try_pass(_: ModelWithLoss, batch: Batch) -> None:
        tried.append(batch.source_BS.numel())
        if tried[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(memory, "try_pass", try_pass)
    limit = 300
    assert memory.try_sizes(model, 1600, 100, CPU) == 200
    assert tried == [1600, 800, 400, 200]
    limit = 50
    with pytest.raises(ConfigError, match="not even a pair of 100 tokens fits"):
        memory.try_sizes(model, 1600, 100, CPU)


def test_one_try_is_a_whole_pass() -> None:
    model = ModelWithLoss(toy_network(), 0.1)
    memory.try_pass(model, memory.probe_batch(model, 3, 8))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("limit", "free"), [(None, 3_000_000 * 1024), ("max", 3_000_000 * 1024), ("2000000000", 1_999_000_000), ("99", 0)]
)
def test_free_memory_is_the_systems_or_what_a_container_leaves(
    limit: str | None, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemFree: 5 kB\nMemAvailable: 3000000 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).name)
    assert memory.free_memory() == free


def test_files_kept_in_memory_do_not_count_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that has read its data once would look full for ever."""
    for name, text in (("max", "9000"), ("current", "8000"), ("stat", "anon 1000\ninactive_file 5000\nactive_file 2")):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).name)
    assert memory.free_memory() == 6000


def test_free_memory_is_unknown_where_no_file_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).name)
    assert memory.free_memory() is None


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    """Elsewhere than with glibc the answer is no, and nothing happens."""
    script = "from malmoi.device import keep_freed_memory; print(keep_freed_memory())"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == str(platform.libc_ver()[0] == "glibc")
