"""Validation: each pair once, by its tokens, with nothing left behind."""

import gc
import math
from pathlib import Path

import pytest
import torch
from tests.training_toys import ToyRun, toy_batch, toy_network, toy_pairs

from malmoi.data.batch import Batch
from malmoi.errors import DataError
from malmoi.training.agreement import Agreement
from malmoi.training.objective import ModelWithLoss
from malmoi.training.ranks import Ranks
from malmoi.training.signals import StopSignals
from malmoi.training.validation import Validation, validate

CPU = torch.device("cpu")


def alone() -> Agreement:
    return Agreement(Ranks(), StopSignals(), lambda: 0.0)


def metrics_of(model: ModelWithLoss, validation: Validation) -> dict[str, float]:
    found = validate(model, model.network, validation, CPU, alone())
    assert found is not None
    return found


def test_loss_equals_the_training_path_without_dropout() -> None:
    """pytorch/pytorch#128209 and #106630: with and without gradients, in both modes."""
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    model = ModelWithLoss(toy_network(dropout=0.0), 0.1)
    model.train()
    trained = model(batch)
    with torch.inference_mode():
        inferred = model(batch)
    found = metrics_of(model, Validation([batch], 21))
    wanted = trained.nll.item() / 21
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    assert inferred.nll.item() / 21 == pytest.approx(wanted, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-5)


def test_dropout_is_off_and_perplexity_per_character_counts_characters() -> None:
    batch = toy_batch(toy_pairs([2, 5, 9, 1]))
    model = ModelWithLoss(toy_network(dropout=0.5), 0.1)
    found = metrics_of(model, Validation([batch], 42))
    assert found == metrics_of(model, Validation([batch], 42))
    assert found["perplexity_per_character"] == pytest.approx(math.exp(found["loss"] * 21 / 42))
    assert not model.network.training


def test_each_of_61_lines_counts_once_however_they_are_batched() -> None:
    """pytorch/pytorch#25162 and #22584."""
    pairs = toy_pairs([1 + number % 7 for number in range(61)])
    model = ModelWithLoss(toy_network(), 0.1)
    results: list[float] = []
    for size in (1, 7, 61):
        batches = [toy_batch(pairs[first : first + size]) for first in range(0, 61, size)]
        assert sum(batch.num_target_tokens for batch in batches) == sum(len(target) for _, target in pairs)
        results.append(metrics_of(model, Validation(batches, 300))["loss"])
    assert results == pytest.approx([results[0]] * 3, rel=1e-5)


def test_no_pairs_is_told() -> None:
    with pytest.raises(DataError, match="no pairs"):
        metrics_of(ModelWithLoss(toy_network(), 0.1), Validation([], 0))


def num_tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter))


def test_nothing_is_kept_from_step_to_step(tmp_path: Path) -> None:
    """facebookresearch/fairseq#2255; OpenNMT/OpenNMT-py#476; huggingface/transformers#11011.

    Live tensors are counted, which tells more exactly than the memory of the process whether graphs are kept.
    """
    run = ToyRun(tmp_path / "run", max_steps=30, validate_every=15, log_every=7)
    trainer = run.trainer()
    after_steps: list[int] = []
    trainer.on_progress = lambda progress: after_steps.append(num_tensors()) if progress.step % 10 == 3 else None
    in_validation: list[tuple[int, bool]] = []

    class Watched:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, number: int) -> Batch:
            if number in (6, 16, 26):
                in_validation.append((num_tensors(), torch.is_grad_enabled()))
            return run.held_out[0]

    trainer.validation = Validation(Watched(), 100)
    trainer.run()
    assert len(after_steps) == 3 and len(in_validation) == 6
    assert len(set(after_steps)) == 1
    assert len({count for count, _ in in_validation[:3]}) == 1
    assert not any(with_gradients for _, with_gradients in in_validation)
