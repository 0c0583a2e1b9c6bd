"""Models against slow models, against torch's own, and against themselves one step at a time."""

import numpy as np
import pytest
import torch
from torch import Tensor

from malmoi.config.model import ModelConfig
from malmoi.models.interface import DecoderState, Seq2Seq, Trace
from reference.models import MODELS, NUM_IDS, TRANSFORMERS, build, draw_batch, reference_hidden, small_transformer

EACH_MODEL = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def steps(model: Seq2Seq, state: DecoderState, target_RT: Tensor) -> tuple[Tensor, DecoderState]:
    """Hidden states of one step after the other, and the state after them."""
    hidden: list[Tensor] = []
    for token_R in target_RT.unbind(1):
        hidden_RD, state = model.step(token_R, state)
        hidden.append(hidden_RD)
    return torch.stack(hidden, dim=1), state


@EACH_MODEL
def test_equals_the_reference(config: ModelConfig) -> None:
    """Each sentence of a padded batch equals the slow model, which knows of no batch and no padding."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([5, 1, 7], 6)
    hidden_BTD = model(source_BS, lengths_B, target_BT).detach().numpy()
    for row, length in enumerate(lengths_B.tolist()):
        expected = reference_hidden(model, config, source_BS[row, :length].tolist(), target_BT[row].tolist())
        np.testing.assert_allclose(hidden_BTD[row], expected, rtol=0, atol=1e-10)


@EACH_MODEL
def test_steps_equal_forward(config: ModelConfig) -> None:
    """At every position, with a source without a token among the others."""
    source_BS, lengths_B, target_BT = draw_batch([5, 0, 7], 20 if config.architecture == "rnn" else 16)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        model = build(config, dtype=dtype)
        hidden_BTD = model(source_BS, lengths_B, target_BT)
        # Search drops nothing, even from a model that was left in training mode.
        model.train()
        stepped_BTD, _ = steps(model, model.start(model.encode(source_BS, lengths_B)), target_BT)
        torch.testing.assert_close(stepped_BTD, hidden_BTD, rtol=0, atol=tolerance)


@EACH_MODEL
def test_rows_can_be_moved(config: ModelConfig) -> None:
    """Repeated, reordered and dropped rows, whole sentences among them, go on as their own pasts say."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([3, 7, 5], 8)
    before_RT, after_RT = target_BT[:, :4], target_BT[:, 4:]
    _, state = steps(model, model.start(model.encode(source_BS, lengths_B)), before_RT)
    for rows in ([0, 0, 1, 1, 2, 2], [2, 2, 0, 1, 2], [1, 1], [0], [2, 0]):
        rows_R = torch.tensor(rows)
        # Other tokens for each row, so that two rows of one sentence are told apart.
        after = (after_RT[rows_R] + torch.arange(len(rows))[:, None]) % NUM_IDS
        moved_RTD, moved = steps(model, state.select(rows_R), after)
        whole = torch.cat([before_RT[rows_R], after], dim=1)
        expected_RTD = model(source_BS[rows_R], lengths_B[rows_R], whole)[:, 4:]
        torch.testing.assert_close(moved_RTD, expected_RTD, rtol=0, atol=1e-9)
        assert moved.num_rows == len(rows)


@EACH_MODEL
def test_sentences_can_join_later(config: ModelConfig) -> None:
    """New sentences enter a running batch; a batch that is left by the old ones goes on as well."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([3, 6], 7, seed=5)
    other_BS, other_lengths_B, other_BT = draw_batch([8, 0, 2], 7, seed=6)
    _, old = steps(model, model.start(model.encode(source_BS, lengths_B)), target_BT[:, :3])
    _, new = steps(model, model.start(model.encode(other_BS, other_lengths_B)), other_BT[:, :1])
    joined = old.append(new).select(torch.tensor([1, 4, 0, 2, 2, 3]))
    tokens = [torch.stack([target_BT[1, 3 + t], other_BT[2, 1 + t], target_BT[0, 3 + t], other_BT[0, 1 + t],
                           other_BT[0, 1 + t], other_BT[1, 1 + t]]) for t in range(3)]  # fmt: skip
    joined_RTD, joined = steps(model, joined, torch.stack(tokens, dim=1))
    mine_BTD = model(source_BS, lengths_B, target_BT)
    theirs_BTD = model(other_BS, other_lengths_B, other_BT)
    expected = torch.stack([mine_BTD[1, 3:6], theirs_BTD[2, 1:4], mine_BTD[0, 3:6], theirs_BTD[0, 1:4],
                            theirs_BTD[0, 1:4], theirs_BTD[1, 1:4]])  # fmt: skip
    torch.testing.assert_close(joined_RTD, expected, rtol=0, atol=1e-9)
    left_RTD, _ = steps(model, joined.select(torch.tensor([1, 3])), torch.stack([other_BT[2, 4:], other_BT[0, 4:]]))
    torch.testing.assert_close(left_RTD, torch.stack([theirs_BTD[2, 4:], theirs_BTD[0, 4:]]), rtol=0, atol=1e-9)


@EACH_MODEL
def test_a_state_stays_valid(config: ModelConfig) -> None:
    """Two continuations of one state do not disturb each other."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([4, 6], 6)
    other_BT = target_BT.clone()
    other_BT[:, 3:] = (other_BT[:, 3:] + 1) % NUM_IDS
    _, state = steps(model, model.start(model.encode(source_BS, lengths_B)), target_BT[:, :3])
    _, first = steps(model, state, target_BT[:, 3:5])
    other_RTD, _ = steps(model, state, other_BT[:, 3:])
    first_RTD, _ = steps(model, first, target_BT[:, 5:])
    torch.testing.assert_close(other_RTD, model(source_BS, lengths_B, other_BT)[:, 3:], rtol=0, atol=1e-9)
    torch.testing.assert_close(first_RTD, model(source_BS, lengths_B, target_BT)[:, 5:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_equals_torch_transformer(place: str) -> None:
    """torch.nn.Transformer with the same weights gives the same hidden states and gradients."""
    config = small_transformer(norm_place=place, positions="none", width=16, heads=4)
    model = build(config)
    theirs = torch.nn.Transformer(
        16, 4, 2, 2, 12, dropout=0.0, batch_first=True, norm_first=place == "pre", dtype=torch.float64
    )
    if place == "post":
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(map_to_torch(model.state_dict()))
    source_BS, lengths_B, target_BT = draw_batch([5, 3, 7], 6)
    source = (model.source_embedding(source_BS) * 4.0).detach().requires_grad_()
    target = model.target_embedding(target_BT) * 4.0
    padding_BS = torch.arange(7) >= lengths_B[:, None]
    causal_TT = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = theirs(
        source, target, tgt_mask=causal_TT, src_key_padding_mask=padding_BS, memory_key_padding_mask=padding_BS
    )
    hidden_BTD = model(source_BS, lengths_B, target_BT)
    torch.testing.assert_close(hidden_BTD, expected, rtol=0, atol=1e-10)
    expected.sin().sum().backward()
    hidden_BTD.sin().sum().backward()
    for name, gradient in map_to_torch({n: p.grad for n, p in model.named_parameters() if p.grad is not None}).items():
        torch.testing.assert_close(theirs.get_parameter(name).grad, gradient, rtol=0, atol=1e-9)


def map_to_torch(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our names to those of torch.nn.Transformer; its cross-attention holds the query's rows first as well."""
    mapped: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        parts = name.split(".")
        if parts[0] not in ("encoder", "decoder"):
            continue
        kind = parts[-1]
        if parts[1] == "norm":
            mapped[name] = tensor
            continue
        layer, block = ".".join(parts[:3]), ".".join(parts[3:-1])
        norms = ["self_residual.norm", "cross_residual.norm", "feed_forward_residual.norm"]
        if parts[0] == "encoder":
            norms.remove("cross_residual.norm")
        match block:
            case "self_attention.input":
                mapped[f"{layer}.self_attn.in_proj_{kind}"] = tensor
            case "self_attention.output":
                mapped[f"{layer}.self_attn.out_proj.{kind}"] = tensor
            case "cross_attention.query":
                key_value = weights[name.replace("query", "key_value")]
                mapped[f"{layer}.multihead_attn.in_proj_{kind}"] = torch.cat([tensor, key_value])
            case "cross_attention.output":
                mapped[f"{layer}.multihead_attn.out_proj.{kind}"] = tensor
            case "feed_forward.inner":
                mapped[f"{layer}.linear1.{kind}"] = tensor
            case "feed_forward.outer":
                mapped[f"{layer}.linear2.{kind}"] = tensor
            case "cross_attention.key_value":
                pass
            case _:
                mapped[f"{layer}.norm{norms.index(block) + 1}.{kind}"] = tensor
    return mapped


@pytest.mark.parametrize("config", TRANSFORMERS.values(), ids=TRANSFORMERS.keys())
def test_long_sentences_take_the_fused_path(config: ModelConfig) -> None:
    """Above the size where the open formula is faster, the result is the same as in a trace, which is always open."""
    if config.architecture == "transformer" and config.positions == "learned":
        config = config.model_copy(update={"max_positions": 64})
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([40, 1, 0], 36)
    fused_BTD = model(source_BS, lengths_B, target_BT)
    torch.testing.assert_close(fused_BTD, model(source_BS, lengths_B, target_BT, Trace()), rtol=0, atol=1e-10)
