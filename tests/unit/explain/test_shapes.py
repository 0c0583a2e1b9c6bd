"""The boxes of a model, calculated from its settings, against the model itself."""

import pytest

from malmoi.config.model import ModelConfig, TransformerConfig
from malmoi.explain.shapes import count_multiply_adds, count_parameters, model_boxes
from malmoi.models.build import count_parameters as count_really
from reference.models import MODELS


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_parameters_of_the_boxes_add_up_to_those_of_the_model(config: ModelConfig) -> None:
    sizes = (23, 23) if config.tying == "all" else (23, 31)
    assert count_parameters(model_boxes(config, *sizes, 5, 7)) == count_really(config, *sizes)


def test_the_papers_base_model() -> None:
    """65 million parameters with its 37,000 shared ids (table 3), of which 19 million are the embedding."""
    boxes = model_boxes(TransformerConfig(), 37000, 37000, 10, 12)
    assert round(count_parameters(boxes) / 1e6) == 63
    kinds = [box.kind for box in boxes]
    assert kinds.count("self") == kinds.count("masked") == kinds.count("cross") == 1
    (cross,) = [box for box in boxes if box.kind == "cross"]
    assert (cross.heads, cross.repeat) == (8, 6)
    assert [step.shape for step in cross.steps if step.formula.startswith("Q_i")] == [(12, 64)]
    # Queries and output for 12 tokens, keys and values for 10, and twice each pair of them.
    assert cross.multiply_adds == (2 * 12 + 2 * 10) * 512**2 + 2 * 12 * 10 * 512


def test_multiplications_grow_with_the_sentence() -> None:
    config = TransformerConfig(width=8, heads=2, feed_forward=12)
    short, long = (count_multiply_adds(model_boxes(config, 9, 9, length, length)) for length in (4, 8))
    assert 2 * short < long < 4 * short
