"""What is captured is what was computed: of every layer and head, alone as in a batch, without dropout."""

from typing import Any

import numpy as np
import pytest
import torch

from malmoi.config.model import ModelConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.explain.influence import drops, without
from malmoi.explain.replay import replay
from malmoi.models.attention import Mask, causal_mask
from malmoi.models.interface import Seq2Seq, Trace
from malmoi.models.transformer import Transformer
from reference.models import MODELS, TRANSFORMERS, build, small_rnn, small_transformer

SOURCES = [(2, 3, 4, 5, 1), (3, 1), (4, 4, 2, 1), (6, 5, 4, 3, 2, 2, 1), (7, 2, 1)]
TARGETS = [(3, 2, 1), (4, 5, 6, 7, 1), (2, 1), (5, 1), (3, 3, 3, 3)]


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_rows_sum_to_one_and_a_batch_changes_nothing(config: ModelConfig) -> None:
    """pytorch/pytorch#42929, #34537 and #47583; facebookresearch/fairseq#3365: weights after dropout, averaged, or none
    at all. The model is left in training mode on purpose."""
    network = build(config.model_copy(update={"dropout": 0.5}), dtype=torch.float32).train()
    together = replay(network, SOURCES, TARGETS, 2)
    assert network.training
    for source, target, found in zip(SOURCES, TARGETS, together, strict=True):
        (alone,) = replay(network, [source], [target], 2)
        assert np.allclose(alone.log_probs, found.log_probs, atol=1e-5)
        assert alone.attention.keys() == found.attention.keys()
        for name, weights in found.attention.items():
            rows = len(source) if name.startswith("encoder") else len(target)
            columns = len(target) if name.startswith("decoder") and name.endswith("self") else len(source)
            assert weights.shape[1:] == (rows, columns)
            assert np.allclose(weights.sum(-1), 1.0, atol=1e-5)
            assert np.allclose(weights, alone.attention[name], atol=1e-5)
            if name.startswith("decoder") and name.endswith("self"):
                assert not np.triu(weights, 1).any()


def test_every_layer_and_head_is_there() -> None:
    (found,) = replay(build(small_transformer(encoder_layers=3), dtype=torch.float32), SOURCES[:1], TARGETS[:1])
    assert {name: weights.shape for name, weights in found.attention.items()} == {
        "encoder.0.self": (2, 5, 5),
        "encoder.1.self": (2, 5, 5),
        "encoder.2.self": (2, 5, 5),
        "decoder.0.self": (2, 3, 3),
        "decoder.0.cross": (2, 3, 5),
        "decoder.1.self": (2, 3, 3),
        "decoder.1.cross": (2, 3, 5),
    }
    (additive,) = replay(build(small_rnn(attention="additive"), dtype=torch.float32), SOURCES[:1], TARGETS[:1])
    assert [weights.shape for weights in additive.attention.values()] == [(1, 3, 5)]
    (plain,) = replay(build(small_rnn(attention="none"), dtype=torch.float32), SOURCES[:1], TARGETS[:1])
    assert plain.attention == {}


@pytest.mark.parametrize("length", [5, 80])
@pytest.mark.parametrize("is_causal", [False, True])
def test_captured_weights_times_values_are_what_the_fused_way_gives(length: int, is_causal: bool) -> None:
    """At the sizes of both fast ways: the kernel for short sentences, and torch's fused operation."""
    network = build(small_transformer(), dtype=torch.float32)
    assert isinstance(network, Transformer)
    attention: Any = network.decoder.stack[0].self_attention
    states_BTD = torch.randn(1, length, 8, generator=torch.Generator().manual_seed(length))
    mask = causal_mask(length, torch.float32, torch.device("cpu")) if is_causal else Mask()
    with torch.no_grad():
        fused_BTD = attention(states_BTD, mask)
        trace = Trace()
        attention(states_BTD, mask, trace, "seen")
        _, _, value_BTD = attention.input(states_BTD).chunk(3, dim=-1)
        value_BNTH = value_BTD.view(1, length, 2, 4).transpose(1, 2)
        mixed_BTD = (trace.weights["seen"] @ value_BNTH).transpose(1, 2).reshape(1, length, 8)
        assert torch.allclose(attention.output(mixed_BTD), fused_BTD, atol=1e-5)


@pytest.mark.parametrize("config", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_a_replay_scores_as_the_fused_pass_does(config: ModelConfig) -> None:
    network = build(config, dtype=torch.float32)
    source = torch.randint(2, 11, (1, 60), generator=torch.Generator().manual_seed(1))[:, : config_length(network)]
    ids = tuple(source[0].tolist())
    (found,) = replay(network, [ids], [ids])
    length, ids_1S = np.array([len(ids)]), source.numpy()
    fast = ModelScorer(network).score_targets(ids_1S, length, ids_1S, length)
    assert np.allclose(found.log_probs, fast[0], atol=1e-4)


def config_length(network: Seq2Seq) -> int:
    return network.max_positions or 60


def test_runners_up_are_the_most_likely_others() -> None:
    network = build(small_transformer(), dtype=torch.float32)
    (found,) = replay(network, SOURCES[:1], TARGETS[:1], 3)
    with torch.no_grad():
        hidden = network(torch.tensor([SOURCES[0]]), torch.tensor([5]), torch.tensor([[network.start_id, 3, 2]]))
        probabilities = (hidden[0] @ network.output_weight_VD.T).softmax(-1).numpy()
    for place, (token, others) in enumerate(zip(TARGETS[0], found.runners_up, strict=True)):
        expected = [index for index in np.argsort(-probabilities[place]).tolist() if index != token][:3]
        assert [index for index, _ in others] == expected
        assert np.allclose([one for _, one in others], probabilities[place][expected], atol=1e-5)
        assert abs(np.exp(found.log_probs[place]) - probabilities[place][token]) < 1e-5


def test_leaving_out_is_measured_word_by_word() -> None:
    network = build(small_transformer(), dtype=torch.float32)
    source, target = SOURCES[0], TARGETS[0]
    (whole,) = replay(network, [source], [target])
    found = drops(ModelScorer(network), source, target, whole.log_probs, [(0, 2), (2, 4)])
    for row, span in enumerate(((0, 2), (2, 4))):
        (rest,) = replay(network, [without(source, span)], [target])
        assert np.allclose(found[row], whole.log_probs - rest.log_probs, atol=1e-5)
    assert np.abs(found).max() > 1e-3
    assert without(source, (0, 2)) == (4, 5, 1)
    assert drops(ModelScorer(network), source, target, whole.log_probs, []).shape == (0, 3)
