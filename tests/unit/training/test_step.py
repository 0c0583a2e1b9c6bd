"""One update: summed over micro-batches, divided once, checked, clipped."""

from typing import Any

import pytest
import torch
from tests.training_toys import limit_memory, toy_batch, toy_network, toy_pairs
from torch import Tensor

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.ranks import Ranks
from malmoi.training.step import Updater

# Sides with the end symbol are 2 to 9 long; the last group is not full in any cut.
BATCH = toy_batch(toy_pairs([1, 2, 3, 5, 6, 7, 8, 8, 4]))


def updater(micro_batch_tokens: int = 0, clip_norm: float = 0.0, dropout: float = 0.0, double: bool = True) -> Updater:
    network = toy_network(dropout)
    if double:
        network.double()
    parameters = trainable_parameters(network)
    optimizer = Adam(parameters, TrainingConfig())
    return Updater(
        ModelWithLoss(network, 0.1),
        parameters,
        optimizer,
        micro_batch_tokens=micro_batch_tokens,
        clip_norm=clip_norm,
    )


def gradients(one: Updater) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in one.parameters.items() if parameter.grad is not None}


@pytest.mark.parametrize("micro_batch_tokens", [9, 20, 40])
def test_parts_equal_the_whole(micro_batch_tokens: int) -> None:
    """huggingface/transformers#35203 and #34191; OpenNMT/OpenNMT-py#2209; meta-pytorch/torchtune#1875."""
    whole, parts = updater(), updater(micro_batch_tokens)
    assert len(BATCH.split(micro_batch_tokens)) > 1
    wanted, found = whole.update(BATCH, 0.01, (1, 1)), parts.update(BATCH, 0.01, (1, 1))
    assert found.loss == pytest.approx(wanted.loss, rel=1e-12)
    assert found.nll == pytest.approx(wanted.nll, rel=1e-12)
    assert found.num_tokens == wanted.num_tokens == 53
    assert found.norm == pytest.approx(wanted.norm, rel=1e-12)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("backward", [False, True])
def test_what_does_not_fit_is_split_and_tried_again(backward: bool, caplog: pytest.LogCaptureFixture) -> None:
    """At the same effective size, with one line for each split, and once for all."""
    whole, parts = updater(), updater()
    limit_memory(parts.model.network, 25, backward=backward)
    wanted = whole.update(BATCH, 0.01, (1, 1))
    with caplog.at_level("WARNING", logger="malmoi"):
        found = parts.update(BATCH, 0.01, (1, 1))
    # 81 tokens, then 40, then 20.
    assert [record.getMessage().split(" did")[0] for record in caplog.records] == [
        "micro-batches of 81 tokens",
        "micro-batches of 36 tokens",
    ]
    assert parts.micro_batch_tokens == 18
    assert (found.num_tokens, found.maybe_fault) == (wanted.num_tokens, None)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-12)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, rtol=0, atol=1e-12)
    caplog.clear()
    parts.update(BATCH, 0.01, (1, 2))
    assert not caplog.records


def test_what_a_failed_try_has_made_does_not_count() -> None:
    """Its first part fits, its second does not."""
    whole, parts = updater(), updater(30)
    limit_memory(parts.model.network, 26)
    whole.update(BATCH, 0.01, (1, 1))
    parts.update(BATCH, 0.01, (1, 1))
    assert parts.micro_batch_tokens == 13
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, rtol=0, atol=1e-12)


def test_after_a_split_dropout_is_that_of_smaller_parts() -> None:
    split, small = updater(dropout=0.3), updater(18, dropout=0.3)
    limit_memory(split.model.network, 25)
    for step in (1, 2):
        results = [one.update(BATCH, 0.01, (1, step)) for one in (split, small)]
        assert results[0] == results[1]
    assert all(torch.equal(small.parameters[name], parameter) for name, parameter in split.parameters.items())


def test_a_single_pair_that_does_not_fit_is_told() -> None:
    one = updater()
    limit_memory(one.model.network, 6)
    with pytest.raises(ConfigError, match=r"too small for a single pair of 9 tokens.*max_tokens"):
        one.update(BATCH, 0.01, (1, 1))


class Both(Ranks):
    """Two ranks of which the other one always says the same."""

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        return [numbers, numbers]


def test_where_others_cannot_be_told_the_error_says_what_to_do() -> None:
    """As with a model in pieces, whose ranks wait for each other in each layer."""
    one = updater()
    one.ranks, one.may_run_out = Both(0, 2), True
    limit_memory(one.model.network, 25)
    with pytest.raises(ConfigError, match=r"CUDA out of memory.*smaller training.micro_batch_tokens.*last saved"):
        one.update(BATCH, 0.01, (1, 1))


def test_other_errors_of_a_pass_come_out() -> None:
    one = updater()

    def fail(*_: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    one.model.network.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        one.update(BATCH, 0.01, (1, 1))


def test_gradient_is_that_of_the_loss_per_token() -> None:
    """The mean over all tokens of the update, whatever their sentence."""
    one = updater()
    one.update(BATCH, 0.0, (1, 1))
    model = updater().model
    result = model(BATCH)
    (result.loss / BATCH.num_target_tokens).backward()
    wanted = {name: parameter.grad for name, parameter in trainable_parameters(model.network).items()}
    for name, gradient in gradients(one).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("micro_batch_tokens", [0, 20])
def test_clipping_is_on_the_divided_sum_and_the_norm_is_told_before(micro_batch_tokens: int) -> None:
    """milesial/Pytorch-UNet#468; huggingface/accelerate#641: clipped once for each update."""
    free, clipped = updater(micro_batch_tokens), updater(micro_batch_tokens, clip_norm=0.25)
    norm = free.update(BATCH, 0.01, (1, 1)).norm
    assert norm > 0.25
    assert clipped.update(BATCH, 0.01, (1, 1)).norm == pytest.approx(norm, rel=1e-12)
    after = torch.nn.utils.get_total_norm(list(gradients(clipped).values())).item()
    assert after == pytest.approx(0.25, rel=1e-4)
    wide = updater(micro_batch_tokens, clip_norm=norm * 1.01)
    wide.update(BATCH, 0.01, (1, 1))
    assert all(torch.equal(gradients(wide)[name], gradient) for name, gradient in gradients(free).items())


def test_a_nan_moves_nothing_and_is_named() -> None:
    """pytorch/pytorch#55585 and #44511: neither weights nor moments see a gradient that is not finite."""
    one = updater(double=False)
    one.update(BATCH, 0.01, (1, 1))
    before = {name: parameter.detach().clone() for name, parameter in one.parameters.items()}
    moments = {name: one.optimizer.moments[name]["exp_avg"].clone() for name in one.parameters}
    name = next(name for name in one.parameters if "decoder" in name)
    handle = one.parameters[name].register_hook(lambda gradient: gradient * torch.inf)
    result = one.update(BATCH, 0.01, (1, 2))
    handle.remove()
    assert result.maybe_fault == f"the gradient of {name} is not finite"
    for key, parameter in one.parameters.items():
        assert torch.equal(parameter, before[key])
        assert torch.equal(one.optimizer.moments[key]["exp_avg"], moments[key])
        assert one.optimizer.moments[key]["step"].item() == 1


def test_a_nan_loss_is_named() -> None:
    one = updater(double=False)
    with torch.no_grad():
        one.model.network.target_embedding.weight[5] = torch.nan
    assert one.update(BATCH, 0.01, (1, 1)).maybe_fault == "the loss is nan"


def test_dropout_depends_on_the_key_alone() -> None:
    first, again, other = (updater(20, dropout=0.3) for _ in range(3))
    again.model.network.bits.reseed(99)
    losses = [one.update(BATCH, 0.01, key).loss for one, key in ((first, (1, 5)), (again, (1, 5)), (other, (1, 6)))]
    assert losses[0] == losses[1] != losses[2]


def test_bf16_follows_fp32_where_half_precision_would_overflow() -> None:
    """huggingface/transformers#5651, #9295 and #9487; awslabs/sockeye#1051: values above 65504 inside a layer.

    The bound is 2 %: bf16 keeps 8 bits of each product.
    """
    results: list[Any] = []
    peaks: list[float] = []
    for bf16 in (False, True):
        one = updater(double=False)
        one.model.bf16 = bf16
        # The second product of a feed-forward block is scaled until its output is far above what fp16 can hold.
        name, weight = next((name, p) for name, p in one.parameters.items() if p.shape == (16, 32))
        with torch.no_grad():
            weight.mul_(1e6)
        module = one.model.network.get_submodule(name.rpartition(".")[0])
        module.register_forward_hook(lambda _module, _inputs, output: peaks.append(output.detach().abs().max().item()))
        results.append(one.update(BATCH.rows(0, 2), 0.001, (1, 1)))
        assert all(parameter.dtype == torch.float32 for parameter in one.parameters.values())
    assert min(peaks) > 65504
    assert results[0].maybe_fault is None and results[1].maybe_fault is None
    assert results[1].loss == pytest.approx(results[0].loss, rel=0.02)
