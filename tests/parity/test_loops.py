"""The recurrent loops with a hand-written gradient against torch's layers and the plain loop, trained by autograd."""

import pytest
import torch
from torch import Tensor

from malmoi.config.model import RnnConfig
from malmoi.models import recurrent, rnn
from malmoi.models.interface import Seq2Seq, Trace
from malmoi.models.loops import HalfTurn, RunAttentive
from reference.models import RNNS, build, draw_batch, small_rnn

EACH_RNN = pytest.mark.parametrize("config", RNNS.values(), ids=RNNS.keys())


def results(model: Seq2Seq, lengths: list[int], num_target: int = 6) -> dict[str, Tensor]:
    """Hidden states, and gradients by name, of a pass in training mode."""
    model.zero_grad()
    model.bits.reseed(1, 2)
    hidden_BTD = model(*draw_batch(lengths, num_target))
    (hidden_BTD + 0.3 * hidden_BTD.sin()).square().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"hidden": hidden_BTD.detach(), **found}


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on torch's layers and the plain loop."""
    for module in (recurrent, rnn):
        monkeypatch.setattr(module, "may_run", lambda _: False)


@pytest.mark.parametrize("lengths", [[5, 0, 7, 2], [4, 4, 4], [1]], ids=["padded", "even", "single"])
@EACH_RNN
def test_equal_the_plain_ones(config: RnnConfig, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and all gradients, with a sentence without a token, and with dropout."""
    model = build(config.model_copy(update={"dropout": 0.3})).train()
    found = results(model, lengths)
    plainly(monkeypatch)
    wanted = results(model, lengths)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("factor", [1.0, 300.0])
def test_large_exponents_do_not_overflow(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 too: where keys and queries are so large that exponentials would be infinite, the sum is taken first.

    An overflow would be no number, or a half turn off; rounding alone is well below the bound.
    """
    model = build(small_rnn(attention="additive"), dtype=torch.float32).train()
    with torch.no_grad():
        model.get_parameter("decoder.cell.key.weight").mul_(factor)
        model.get_parameter("decoder.cell.query.weight").mul_(factor)
    found = results(model, [5, 7, 2])
    plainly(monkeypatch)
    for name, tensor in results(model, [5, 7, 2]).items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(
            found[name], tensor, rtol=0, atol=1e-3 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("size", [0.5, 15.0, 40.0])
def test_half_a_turn_is_that_of_tanh(size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    keys_BSA, query_BA = (size * torch.randn(shape, generator=generator) for shape in ((3, 4, 5), (3, 5)))
    half_BSA = torch.empty_like(keys_BSA)
    half = HalfTurn(keys_BSA)
    assert (half.maybe_exp_BSA is None) == (float(keys_BSA.abs().max()) > 20)
    half.into(half_BSA, query_BA)
    wanted_BSA = (1 - torch.tanh(keys_BSA.double() + query_BA.double()[:, None])) / 2
    torch.testing.assert_close(half_BSA.double(), wanted_BSA, rtol=0, atol=1e-6)


def test_weights_of_the_loop_are_traced() -> None:
    """The same as step by step, which looks by the plain formula."""
    model = build(small_rnn(attention="additive"))
    source_BS, lengths_B, target_BT = draw_batch([5, 3], 4)
    whole = Trace()
    model(source_BS, lengths_B, target_BT, whole)
    state = model.start(model.encode(source_BS, lengths_B), keep_attention=True)
    for place, token_R in enumerate(target_BT.unbind(1)):
        _, state = model.step(token_R, state)
        torch.testing.assert_close(state.attention_RS, whole.weights["decoder.cross"][:, 0, place], rtol=0, atol=1e-9)


def test_the_loop_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all of the above compares one thing with itself."""
    model = build(small_rnn(attention="additive")).train()
    calls: list[int] = []
    apply = RunAttentive.apply
    monkeypatch.setattr(RunAttentive, "apply", lambda *words: calls.append(1) or apply(*words))
    results(model, [5, 3])
    assert calls == [1]
