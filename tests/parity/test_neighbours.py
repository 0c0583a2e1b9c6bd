"""Padding, neighbours, modes and types never matter: all models, all kinds of masks."""

import pytest
import torch
from torch import Tensor

from malmoi.config.model import ModelConfig
from malmoi.models.interface import Seq2Seq, Trace
from reference.models import MODELS, NUM_IDS, RNNS, build, draw_batch

EACH_MODEL = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def loss(model: Seq2Seq, hidden_BTD: Tensor) -> Tensor:
    """Some function of all scores, to have gradients."""
    bias_V = model.output_bias_V
    logits_BTV = hidden_BTD @ model.output_weight_VD.T + (0.0 if bias_V is None else bias_V)
    return logits_BTV.log_softmax(-1).square().sum()


@EACH_MODEL
def test_neighbours_never_matter(config: ModelConfig) -> None:
    """Alone, in a batch, in another order, beside a longer stranger: the same in float64 to 1e-9.

    OpenNMT/OpenNMT-py#2208, facebookresearch/fairseq#3078, freewym/espresso#52.
    """
    model = build(config)
    lengths = [5, 3, 1, 4]
    source_BS, lengths_B, target_BT = draw_batch(lengths, 6, num_places=9)
    alone = [
        model(source_BS[row : row + 1, :length], lengths_B[row : row + 1], target_BT[row : row + 1])[0]
        for row, length in enumerate(lengths)
    ]
    order = torch.tensor([2, 0, 3, 1])
    together_BTD = model(source_BS[order], lengths_B[order], target_BT[order])
    stranger_BS, stranger_B, stranger_BT = draw_batch([14], 6, seed=8)
    wide_BS = torch.nn.functional.pad(source_BS, (0, 5), value=NUM_IDS)
    beside_BTD = model(
        torch.cat([stranger_BS, wide_BS]), torch.cat([stranger_B, lengths_B]), torch.cat([stranger_BT, target_BT])
    )
    for place, row in enumerate(order.tolist()):
        torch.testing.assert_close(together_BTD[place], alone[row], rtol=0, atol=1e-9)
        torch.testing.assert_close(beside_BTD[row + 1], alone[row], rtol=0, atol=1e-9)


@EACH_MODEL
def test_padding_never_matters(config: ModelConfig) -> None:
    """Other ids in padded places, and huge embeddings for them, change nothing, bit for bit.

    pytorch/pytorch#90534, #86120.
    """
    model = build(config, dtype=torch.float32)
    source_BS, lengths_B, target_BT = draw_batch([5, 2, 7], 6)
    # The last id fills the padding and stands nowhere else.
    source_BS = source_BS.clamp(max=NUM_IDS - 2)
    target_BT[:, 1:].clamp_(max=NUM_IDS - 2)
    target_lengths_B = torch.tensor([6, 3, 1])
    filled_BS = source_BS.masked_fill(torch.arange(7) >= lengths_B[:, None], NUM_IDS - 1)
    filled_BT = target_BT.masked_fill(torch.arange(6) >= target_lengths_B[:, None], NUM_IDS - 1)
    expected_BTD = model(source_BS, lengths_B, target_BT).detach()
    with torch.no_grad():
        model.source_embedding.weight[NUM_IDS - 1] = 1e4
        model.target_embedding.weight[NUM_IDS - 1] = 1e4
    changed_BTD = model(filled_BS, lengths_B, filled_BT).detach()
    for row, length in enumerate(target_lengths_B.tolist()):
        assert torch.equal(changed_BTD[row, :length], expected_BTD[row, :length])


@EACH_MODEL
def test_a_source_without_a_token_harms_nobody(config: ModelConfig) -> None:
    """Finite values and gradients, and the others' are as without it (pytorch/pytorch#24816, #26098, #119371)."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([5, 0, 7], 6)
    hidden_BTD = model(source_BS, lengths_B, target_BT)
    assert bool(torch.isfinite(hidden_BTD).all())
    loss(model, hidden_BTD).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    others = torch.tensor([0, 2])
    model.zero_grad()
    loss(model, hidden_BTD := model(source_BS, lengths_B, target_BT)[others]).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    expected_BTD = model(source_BS[others], lengths_B[others], target_BT[others])
    loss(model, expected_BTD).backward()
    torch.testing.assert_close(hidden_BTD, expected_BTD, rtol=0, atol=1e-9)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-9)


@EACH_MODEL
def test_modes_agree(config: ModelConfig) -> None:
    """Training without dropout, evaluation, no_grad and inference_mode (pytorch/pytorch#128209, #106630)."""
    model = build(config.model_copy(update={"dropout": 0.0}), dtype=torch.float32)
    source_BS, lengths_B, target_BT = draw_batch([5, 1, 7], 6)
    with torch.inference_mode():
        # First, so that what it leaves behind is used by all the others.
        inferred_BTD = model(source_BS, lengths_B, target_BT).clone()
    with torch.no_grad():
        unrecorded_BTD = model(source_BS, lengths_B, target_BT)
    evaluated_BTD = model(source_BS, lengths_B, target_BT)
    loss(model, evaluated_BTD).backward()
    trained_BTD = model.train()(source_BS, lengths_B, target_BT)
    loss(model, trained_BTD).backward()
    for hidden_BTD in (inferred_BTD, unrecorded_BTD, trained_BTD):
        torch.testing.assert_close(hidden_BTD, evaluated_BTD, rtol=0, atol=1e-6)


@EACH_MODEL
def test_traces_hold_what_was_used(config: ModelConfig) -> None:
    """From a model left in training mode, alone or in a padded batch: rows sum to 1 over the real places.

    pytorch/pytorch#42929, #34537, #47583, facebookresearch/fairseq#3365.
    """
    updates = {"dropout": 0.5} | ({"attention_dropout": 0.5} if config.architecture == "transformer" else {})
    model = build(config.model_copy(update=updates)).train()
    source_BS, lengths_B, target_BT = draw_batch([5, 0, 7, 2], 6)
    trace, alone = Trace(), Trace()
    hidden_BTD = model(source_BS, lengths_B, target_BT, trace)
    model(source_BS[:1, :5], lengths_B[:1], target_BT[:1], alone)
    torch.testing.assert_close(hidden_BTD, model.eval()(source_BS, lengths_B, target_BT), rtol=0, atol=1e-10)
    assert set(trace.weights) == expected_names(config)
    for name, weights_BNTS in trace.weights.items():
        is_decoder_self = name.startswith("decoder") and name.endswith("self")
        real_B = torch.full((4,), 6) if is_decoder_self else lengths_B
        masked_BS = torch.arange(weights_BNTS.size(3)) >= real_B[:, None]
        assert bool((weights_BNTS.permute(0, 3, 1, 2)[masked_BS] == 0.0).all())
        sums_BNT = weights_BNTS.sum(-1)
        torch.testing.assert_close(sums_BNT, (real_B > 0)[:, None, None].expand_as(sums_BNT).double())
        if is_decoder_self:
            assert bool((weights_BNTS.triu(1) == 0.0).all())
        real = alone.weights[name].shape
        torch.testing.assert_close(weights_BNTS[:1, :, : real[2], : real[3]], alone.weights[name], rtol=0, atol=1e-10)


def expected_names(config: ModelConfig) -> set[str]:
    if config.architecture == "rnn":
        return set() if config.attention == "none" else {"decoder.cross"}
    return {f"encoder.{layer}.self" for layer in range(config.encoder_layers)} | {
        f"decoder.{layer}.{kind}" for layer in range(config.decoder_layers) for kind in ("self", "cross")
    }


@EACH_MODEL
def test_steps_trace_what_forward_traces(config: ModelConfig) -> None:
    """For uneven rows as well; the attention that a state keeps is the mean over heads of the last layer."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([5, 0, 7], 4)
    rows_R = torch.tensor([0, 0, 2, 1])
    whole = Trace()
    model(source_BS[rows_R], lengths_B[rows_R], target_BT[rows_R], whole)
    state = model.start(model.encode(source_BS, lengths_B), keep_attention=True).select(rows_R)
    for t in range(4):
        trace = Trace()
        _, kept = model.step(target_BT[rows_R, t], state, trace)
        _, state = model.step(target_BT[rows_R, t], state)
        for name, weights_RNS in trace.weights.items():
            expected = whole.weights[name][:, :, t : t + 1, : weights_RNS.size(3)]
            torch.testing.assert_close(weights_RNS, expected, rtol=0, atol=1e-10)
        cross = [name for name in whole.weights if name.endswith("cross")]
        assert set(trace.weights) == {name for name in whole.weights if name.startswith("decoder")}
        for one in (kept, state):
            if not cross:
                assert one.attention_RS is None
                continue
            assert one.attention_RS is not None
            torch.testing.assert_close(one.attention_RS, whole.weights[cross[-1]][:, :, t].mean(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["transformer-sinusoidal-post", "transformer-rotary-pre", "rnn-additive-gru"])
def test_low_precision_stays_finite(name: str) -> None:
    """A model turned into bf16, an empty source among the others, and outputs that would not fit fp16.

    huggingface/transformers#5651, #9295, #9487, awslabs/sockeye#1051, facebookresearch/fairseq#3575.
    """
    source_BS, lengths_B, target_BT = draw_batch([3, 0], 3)
    model = build(MODELS[name], dtype=torch.float32)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("feed_forward.outer.weight"):
                parameter *= 70_000 / parameter.abs().max()
    expected_BTD = model(source_BS, lengths_B, target_BT)
    low = model.to(torch.bfloat16)
    hidden_BTD = low(source_BS, lengths_B, target_BT)
    assert hidden_BTD.dtype == torch.bfloat16
    assert bool(torch.isfinite(expected_BTD).all()) and bool(torch.isfinite(hidden_BTD).all())
    torch.testing.assert_close(hidden_BTD.float(), expected_BTD, rtol=0.1, atol=0.15)
    trace = Trace()
    low(source_BS, lengths_B, target_BT, trace)
    if "decoder.1.cross" in trace.weights:
        assert bool((trace.weights["decoder.1.cross"][1] == 0).all())


@pytest.mark.parametrize("config", RNNS.values(), ids=RNNS.keys())
def test_an_empty_source_is_zeros_to_an_rnn(config: ModelConfig) -> None:
    """What the decoder gets of it: annotations of zeros, and states that come from biases alone."""
    model = build(config)
    source_BS, lengths_B, target_BT = draw_batch([0, 0, 3], 4)
    hidden_BTD = model(source_BS, lengths_B, target_BT[:1].expand(3, 4))
    torch.testing.assert_close(hidden_BTD[0], hidden_BTD[1], rtol=0, atol=0)
    assert not torch.allclose(hidden_BTD[0], hidden_BTD[2])


def test_wrong_arguments_are_refused() -> None:
    """A mask in the place of lengths, lengths past the end, floats for ids, other numbers of sentences."""
    model = build(MODELS["transformer-sinusoidal-post"])
    source_BS, lengths_B, target_BT = draw_batch([3, 2], 3)
    mask_BS = torch.arange(3) < lengths_B[:, None]
    for arguments in (
        (source_BS, mask_BS, target_BT),
        (source_BS, mask_BS.double(), target_BT),
        (source_BS, lengths_B.double(), target_BT),
        (source_BS, lengths_B + 1, target_BT),
        (source_BS, lengths_B - 3, target_BT),
        (source_BS, lengths_B[:1], target_BT),
        (source_BS.double(), lengths_B, target_BT),
        (source_BS[0], lengths_B, target_BT),
        (source_BS, lengths_B, target_BT[:1]),
        (source_BS, lengths_B, target_BT.int()),
    ):
        with pytest.raises(ValueError, match="must"):
            model(*arguments)
    state = model.start(model.encode(source_BS, lengths_B))
    with pytest.raises(ValueError, match="must"):
        model.step(target_BT[:1, 0], state)
