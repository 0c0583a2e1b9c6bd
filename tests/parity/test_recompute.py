"""Layers that are computed again in the backward pass give the same gradients to the last bit, and keep less."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from malmoi.config.run import RunConfig
from malmoi.errors import ConfigError
from malmoi.models.interface import Seq2Seq
from malmoi.settings import validate
from reference.models import TRANSFORMERS, build, draw_batch, small_rnn, small_transformer
from training_toys import ToyRun

DROPOUTS = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
CONFIGS = {
    **{name: config.model_copy(update=DROPOUTS) for name, config in TRANSFORMERS.items()},
    "without-attention-dropout": small_transformer(dropout=0.3),
    "no-dropout": small_transformer(),
}


def pass_once(model: Seq2Seq, precision: torch.dtype | None = None) -> dict[str, Tensor]:
    """Hidden states and all gradients of one pass in training mode."""
    model.train()
    model.zero_grad(set_to_none=True)
    model.bits.reseed(7, 1)
    with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
        hidden_BTD = model(*draw_batch([6, 4, 7], 9))
        hidden_BTD.float().sin().sum().backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"hidden": hidden_BTD.detach(), **gradients}


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_the_same_to_the_last_bit(name: str, precision: torch.dtype | None) -> None:
    """What is computed again sees the dropout of the first time, in both precisions."""
    kept, again = build(CONFIGS[name]).float(), build(CONFIGS[name]).float()
    again.recompute_layers()
    mine, theirs = pass_once(kept, precision), pass_once(again, precision)
    assert mine.keys() == theirs.keys() and len(mine) > 10
    for part, value in mine.items():
        assert torch.equal(value, theirs[part]), part


def num_kept(model: Seq2Seq, places: int) -> int:
    """Bytes that a pass keeps for the backward pass, each piece of memory once, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        hidden_BTD = model(*draw_batch([places] * 4, places))
    # What lies inside a layer that is computed again never comes here: it goes to hooks of its own.
    assert hidden_BTD.requires_grad
    return sum(found.values())


def test_a_layer_keeps_what_it_was_given_and_no_more() -> None:
    """So each further layer costs one state for each of its sides, whatever is inside."""
    sizes: dict[bool, list[int]] = {False: [], True: []}
    for recomputes in sizes:
        for layers in (2, 4, 6):
            model = build(small_transformer(encoder_layers=layers, decoder_layers=layers, **DROPOUTS)).float()
            if recomputes:
                model.recompute_layers()
            sizes[recomputes].append(num_kept(model, 40))
    state = 4 * 40 * small_transformer().width * 4
    assert {after - before for before, after in pairwise(sizes[True])} == {4 * state}
    assert all(after - before > 40 * state for before, after in pairwise(sizes[False]))


def count_passes(layer: torch.nn.Module) -> list[bool]:
    """Whether each pass of a layer, as it begins, is one with gradients."""
    found: list[bool] = []
    layer.register_forward_pre_hook(lambda *_: found.append(torch.is_grad_enabled()))
    return found


def test_a_whole_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    weights: list[dict[str, Tensor]] = []
    passes: list[int] = []
    for recompute in (False, True):
        run = ToyRun(tmp_path / str(recompute), max_steps=6, micro_batch_tokens=12, recompute=recompute)
        run.dropout = 0.2
        trainer = run.trainer()
        begun = count_passes(layers_of(trainer.network)[0])
        trainer.run()
        weights.append(trainer.network.state_dict())
        passes.append(sum(begun))
    assert passes[1] == 2 * passes[0]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def layers_of(model: Seq2Seq) -> list[torch.nn.Module]:
    return [
        module for name, module in model.named_modules() if name.startswith("encoder.layers.") and name.count(".") == 2
    ]


def test_an_rnn_is_refused_before_anything_begins() -> None:
    settings = {"model": {"architecture": "rnn"}, "training": {"recompute": True}}
    with pytest.raises(ConfigError, match=r"training\.recompute: the steps of an rnn are kept"):
        validate(RunConfig, settings, "the settings")
    with pytest.raises(ConfigError, match="no layers that can be computed again"):
        build(small_rnn()).recompute_layers()


def test_a_pass_without_gradients_computes_once() -> None:
    """Validation does not pay for it."""
    model = build(small_transformer()).float()
    model.recompute_layers()
    begun = count_passes(layers_of(model)[0])
    with torch.no_grad():
        model(*draw_batch([3, 2], 4))
    assert begun == [False]
    model(*draw_batch([3, 2], 4)).sum().backward()
    assert begun == [False, True, True]
