"""Small models and batches for the parity tests, and the slow model that each of them must equal."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from malmoi.config.model import ModelConfig, RnnConfig, TransformerConfig
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from reference.recurrent import ReferenceRnn
from reference.transformer import ReferenceTransformer

NUM_IDS = 11


def small_transformer(**settings: object) -> TransformerConfig:
    sizes = {"width": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 12}
    return TransformerConfig.model_validate({**sizes, "relative_distance": 3, "max_positions": 16, **settings})


def small_rnn(**settings: object) -> RnnConfig:
    return RnnConfig.model_validate({"width": 6, "hidden": 8, "encoder_layers": 2, "decoder_layers": 3, **settings})


TRANSFORMERS: dict[str, TransformerConfig] = {
    f"transformer-{positions}-{place}": small_transformer(positions=positions, norm_place=place)
    for positions in ("sinusoidal", "learned", "rotary", "relative", "none")
    for place in ("post", "pre")
}
TRANSFORMERS |= {
    "transformer-rms-swiglu": small_transformer(norm="rms", activation="swiglu", norm_place="pre"),
    "transformer-gelu": small_transformer(activation="gelu", tying="target"),
    "transformer-uneven": small_transformer(encoder_layers=3, decoder_layers=1, tying="none", output_bias=True),
}
RNNS: dict[str, RnnConfig] = {
    f"rnn-{attention}-{cell}": small_rnn(attention=attention, cell=cell)
    for attention in ("none", "additive", "dot")
    for cell in ("gru", "lstm")
}
RNNS |= {
    "rnn-one-way": small_rnn(bidirectional=False, encoder_layers=1, decoder_layers=1, tying="none"),
    "rnn-none-deep-encoder": small_rnn(attention="none", encoder_layers=3, decoder_layers=2),
    "rnn-deep-encoder": small_rnn(attention="dot", encoder_layers=3, decoder_layers=1, tying="target"),
}
MODELS: dict[str, ModelConfig] = {**TRANSFORMERS, **RNNS}


def build(config: ModelConfig, seed: int = 3, dtype: torch.dtype = torch.float64) -> Seq2Seq:
    """A model in evaluation mode whose biases and norms are not at their start values, which would hide mistakes."""
    model = build_model(config, NUM_IDS, NUM_IDS, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def arrays(model: Seq2Seq) -> Mapping[str, NDArray[np.float64]]:
    return {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}


def reference_hidden(
    model: Seq2Seq, config: ModelConfig, source_ids: list[int], target_ids: list[int]
) -> NDArray[np.float64]:
    """What the slow model says for one sentence without padding."""
    if isinstance(config, RnnConfig):
        reference = ReferenceRnn(
            arrays(model),
            config.cell,
            config.attention,
            config.bidirectional,
            config.encoder_layers,
            config.decoder_layers,
        )
        return reference.hidden(source_ids, target_ids)[0]
    transformer = ReferenceTransformer(
        arrays(model),
        config.heads,
        config.encoder_layers,
        config.decoder_layers,
        config.positions,
        config.norm_place,
        config.norm,
        config.activation,
        config.relative_distance,
    )
    return transformer.hidden(source_ids, target_ids)


def draw_batch(
    source_lengths: list[int], num_target: int, seed: int = 5, num_places: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids, padding included: sources (B, S), their lengths, and target inputs (B, T) that start with `<s>`."""
    generator = torch.Generator().manual_seed(seed)
    num_places = num_places or max(source_lengths)
    source_BS = torch.randint(0, NUM_IDS, (len(source_lengths), num_places), generator=generator)
    target_BT = torch.randint(0, NUM_IDS, (len(source_lengths), num_target), generator=generator)
    target_BT[:, 0] = NUM_IDS
    return source_BS, torch.tensor(source_lengths), target_BT
