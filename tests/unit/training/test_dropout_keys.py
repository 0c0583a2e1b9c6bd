"""Which bits of dropout an update draws: those of its own key."""

from pathlib import Path

import pytest

from training_toys import ToyRun


def keys_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> list[tuple[int, ...]]:
    trainer = ToyRun(folder, max_steps=4, micro_batch_tokens=12, seed=seed).trainer()
    bits, keys = trainer.network.bits, list[tuple[int, ...]]()
    reseed = bits.reseed

    def listen(*key: int) -> None:
        keys.append(key)
        reseed(*key)

    monkeypatch.setattr(bits, "reseed", listen)
    trainer.run()
    return keys


def test_every_part_of_every_update_has_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key for all, the same places would be dropped in every update; seeds must not share keys either."""
    first, second = (keys_of_a_run(tmp_path / str(seed), monkeypatch, seed) for seed in (1, 2))
    assert len(first) > 4
    assert len({*first, *second}) == len(first) + len(second)
