"""Names of parameters are a contract with stored models: a change breaks them and needs a new format."""

from pathlib import Path

import pytest

from malmoi.config.model import ModelConfig
from malmoi.models.build import build_model
from reference.models import NUM_IDS, small_rnn, small_transformer

GOLDEN = Path(__file__).parent / "state_dict_keys"
MODELS: dict[str, ModelConfig] = {
    "transformer": small_transformer(),
    "transformer-pre-learned-untied": small_transformer(
        norm_place="pre", positions="learned", tying="none", output_bias=True
    ),
    "transformer-relative-rms-swiglu": small_transformer(positions="relative", norm="rms", activation="swiglu"),
    "rnn-none-gru": small_rnn(attention="none"),
    "rnn-additive-lstm": small_rnn(attention="additive", cell="lstm"),
    "rnn-dot-gru-one-way": small_rnn(attention="dot", bidirectional=False, tying="target"),
}


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_of_stored_models(name: str) -> None:
    model = build_model(MODELS[name], NUM_IDS, NUM_IDS)
    lines = [f"{key} {' '.join(map(str, tensor.shape))}" for key, tensor in model.state_dict().items()]
    assert sorted(lines) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
