"""Deep recurrent systems say what they said when such models were stored: which encoder layer a decoder layer begins
from is part of the format.

The weights follow a formula, so that the numbers hang on no generator. `python -m tests.golden.test_recurrent_states`
prints the numbers anew.
"""

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

from malmoi.config.model import RnnConfig
from malmoi.models.build import build_model

STORED = Path(__file__).parent / "recurrent_states.json"
DEPTHS = ((2, 2), (3, 3), (1, 2), (2, 3))
SYSTEMS = {
    f"{attention}-{cell}-{encoder}-{decoder}": RnnConfig(
        attention=attention,  # type: ignore[arg-type]
        cell=cell,  # type: ignore[arg-type]
        width=4,
        hidden=6,
        encoder_layers=encoder,
        decoder_layers=decoder,
    )
    for attention, cell, (encoder, decoder) in itertools.product(("none", "additive", "dot"), ("gru", "lstm"), DEPTHS)
}


def hidden_sums(config: RnnConfig) -> list[float]:
    """Sums of the hidden states at each of three target places, after a source of four tokens."""
    network = build_model(config, 7, 7).double().eval()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.8 * torch.sin(1.7 * places + number)).view_as(parameter))
        hidden_BTD = network(torch.tensor([[2, 5, 3, 1]]), torch.tensor([4]), torch.tensor([[7, 4, 2]]))
    return hidden_BTD[0].sum(-1).tolist()


@pytest.mark.parametrize("name", SYSTEMS)
def test_deep_systems_say_the_same(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert hidden_sums(SYSTEMS[name]) == pytest.approx(stored[name], rel=0, abs=1e-9)


def test_the_stored_numbers_tell_systems_and_places_apart() -> None:
    stored: dict[str, list[float]] = json.loads(STORED.read_text(encoding="utf-8"))
    assert stored.keys() == SYSTEMS.keys()
    assert len({round(value, 6) for values in stored.values() for value in values}) == 3 * len(SYSTEMS)


if __name__ == "__main__":
    sums = {name: [round(value, 12) for value in hidden_sums(config)] for name, config in SYSTEMS.items()}
    sys.stdout.write(json.dumps(sums, indent=1) + "\n")
