"""Start values, ties, and what is refused when a model is built."""

import math

import pytest
import torch
from torch import Tensor, nn

from malmoi.config.model import ModelConfig, TransformerConfig
from malmoi.errors import ConfigError
from malmoi.models.build import build_model, plan_positions
from malmoi.models.dropout import RandomBits
from malmoi.models.interface import Seq2Seq
from malmoi.models.transformer import Transformer
from reference.models import MODELS, NUM_IDS, small_rnn, small_transformer


def weights(model: Seq2Seq) -> dict[str, Tensor]:
    return model.state_dict()


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_start_values_come_from_the_seed_alone(config: ModelConfig) -> None:
    """The same seed gives the same model whatever torch's generator did before, and leaves it as it was."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = build_model(config, NUM_IDS, NUM_IDS, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second, third = build_model(config, NUM_IDS, NUM_IDS, seed=4), build_model(config, NUM_IDS, NUM_IDS, seed=5)
    assert all(torch.equal(second.state_dict()[name], tensor) for name, tensor in first.state_dict().items())
    assert not torch.equal(first.target_embedding.weight, third.target_embedding.weight)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in first.state_dict().values())


def test_transformers_begin_as_in_the_papers_code() -> None:
    """Embeddings normal with d^-1/2; each of Q, K, V uniform by its own fan; biases 0, norms 1.

    What a sublayer adds is divided by the root of their number: 2 in each layer of the encoder, 3 in the decoder's.
    """
    width = 64
    config = TransformerConfig(width=width, heads=4, encoder_layers=2, decoder_layers=1, feed_forward=128)
    num_sublayers = {"encoder": 4, "decoder": 3}
    model = build_model(config, 500, 500)
    for name, tensor in weights(model).items():
        if "embedding" in name:
            assert tensor.std().item() == pytest.approx(width**-0.5, rel=0.02)
            assert abs(tensor.mean().item()) < 5 * width**-0.5 / math.sqrt(tensor.numel())
        elif name.endswith("norm.weight"):
            assert bool((tensor == 1).all())
        elif name.endswith("bias"):
            assert bool((tensor == 0).all())
        else:
            rows = {"input": 3, "key_value": 2}.get(name.split(".")[-2], 1)
            for part in tensor.chunk(rows):
                bound = math.sqrt(6 / (part.size(0) + part.size(1)))
                if name.split(".")[-2] in ("output", "outer"):
                    bound /= math.sqrt(num_sublayers[name.split(".")[0]])
                assert bound * 0.98 < part.abs().max().item() <= bound
                assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_cells_begin_orthogonal(cell: str) -> None:
    model = build_model(small_rnn(cell=cell, attention="additive"), NUM_IDS, NUM_IDS)
    gates = 4 if cell == "lstm" else 3
    recurrent = [name for name in weights(model) if "weight_hh" in name or name == "decoder.cell.state.weight"]
    assert len(recurrent) == 2 * 2 + 3
    for name in recurrent:
        for part in weights(model)[name].chunk(gates):
            torch.testing.assert_close(part @ part.T, torch.eye(len(part)), rtol=0, atol=1e-5)
    total = {name: tensor for name, tensor in weights(model).items() if "bias_ih" in name}
    for name, bias in total.items():
        both = bias + weights(model)[name.replace("_ih_", "_hh_")]
        expected = [1.0 if cell == "lstm" and gate == 1 else 0.0 for gate in range(gates)]
        assert [part.unique().tolist() for part in both.chunk(gates)] == [[value] for value in expected]
    bias = weights(model)["decoder.cell.state.bias"].chunk(gates)
    assert [part.unique().tolist() for part in bias] == [
        [1.0 if cell == "lstm" and g == 1 else 0.0] for g in range(gates)
    ]


@pytest.mark.parametrize("make", [small_transformer, small_rnn])
def test_ties(make: object) -> None:
    assert callable(make)
    model = build_model(make(tying="all"), 7, 7)
    assert model.source_embedding.weight is model.target_embedding.weight
    assert model.output_weight_VD.data_ptr() == model.target_embedding.weight.data_ptr()
    model = build_model(make(tying="target"), 5, 7)
    assert (model.source_embedding.num_embeddings, model.target_embedding.num_embeddings) == (6, 8)
    assert model.output_weight_VD.data_ptr() == model.target_embedding.weight.data_ptr()
    model = build_model(make(tying="none", output_bias=True), 5, 7)
    assert model.output_weight_VD.data_ptr() != model.target_embedding.weight.data_ptr()
    assert model.output_bias_V is not None and model.output_bias_V.shape == (7,)
    for tied in ("all", "target", "none"):
        model = build_model(make(tying=tied), 7, 7)
        assert model.output_weight_VD.shape == (7, model.width)
        assert model.start_id == 7


def test_one_embedding_for_two_vocabularies_is_refused() -> None:
    """OpenNMT/OpenNMT-py#453, #461, facebookresearch/fairseq#4325."""
    for config in (small_transformer(tying="all"), small_rnn(tying="all")):
        with pytest.raises(ConfigError, match="one shared vocabulary"):
            build_model(config, 5, 7)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_every_parameter_learns(config: ModelConfig) -> None:
    """No parameter is left out of the computation."""
    model = build_model(config, NUM_IDS, NUM_IDS)
    generator = torch.Generator().manual_seed(1)
    # All ids and all distances occur.
    source_BS = torch.randint(0, NUM_IDS, (8, 9), generator=generator)
    target_BT = torch.cat([torch.full((8, 1), NUM_IDS), source_BS], dim=1)
    hidden_BTD = model(source_BS, torch.full((8,), 9), target_BT)
    logits = hidden_BTD @ model.output_weight_VD.T + (0.0 if model.output_bias_V is None else model.output_bias_V)
    logits.log_softmax(-1)[..., 0].sum().backward()
    unmoved = [n for n, p in model.named_parameters() if p.grad is None or float(p.grad.abs().max()) < 1e-12]
    assert unmoved == []


def test_the_base_model_has_the_papers_size() -> None:
    """Table 3: 65 million parameters with 37,000 shared ids."""
    with torch.device("meta"):
        config = TransformerConfig()
        model = Transformer(config, plan_positions(config), 37000, 37000, RandomBits(1))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6) in (63, 64, 65)


def test_modules_say_what_they_drop() -> None:
    model = build_model(small_transformer(dropout=0.25), 5, 5)
    assert "probability=0.25" in repr(model)
    assert isinstance(model, nn.Module)


def test_places_of_a_sentence_stay_apart_at_the_start() -> None:
    """Small sublayers give a mean cosine of 0.37 here; full-size ones give 0.96, and nothing to choose from."""
    config = TransformerConfig(width=64, heads=4, encoder_layers=6, decoder_layers=1, feed_forward=128)
    network = build_model(config, 200, 200).eval()
    source_BS = torch.randint(2, 200, (8, 12), generator=torch.Generator().manual_seed(1))
    lengths_B = torch.full((8,), 12)
    assert isinstance(network, Transformer)
    with torch.no_grad():
        memory_BSD, _ = network.read(source_BS, lengths_B, None)
    cosines = torch.nn.functional.cosine_similarity(memory_BSD[:, :, None], memory_BSD[:, None], dim=-1)
    assert float(cosines.mean()) < 0.6
