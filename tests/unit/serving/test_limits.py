"""What a request may ask for."""

from typing import Any

import pytest

from malmoi.config.decoding import DecodingConfig
from malmoi.serving.limits import LEAST_LOG_PROBABILITY, RefusedError, ServingConfig, bounded_options, finite, settle

LIMITS = ServingConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_size", 100_000),
        ("beam_size", 0),
        ("beam_size", -1),
        ("beam_size", 2.5),
        ("beam_size", True),
        ("beam_size", "5"),
        ("beam_size", 10**400),
        ("max_length", 10**9),
        ("min_length", 1001),
        ("length_alpha", float("nan")),
        ("length_alpha", float("inf")),
        ("length_alpha", -0.1),
        ("length_alpha", None),
        ("length_penalty", "other"),
        ("merge_equal_texts", 1),
        ("batch_tokens", 5),
        ("precision", "int8"),
        ("method", "sample"),
        ("", 1),
        ("\ud800", 1),
    ],
)
def test_what_is_out_of_bounds_is_refused(name: str, value: Any) -> None:
    """Cf. LibreTranslate/LibreTranslate#978."""
    with pytest.raises(RefusedError) as refused:
        bounded_options({name: value}, LIMITS)
    assert refused.value.status == 400
    refused.value.message.encode("utf-8")


@pytest.mark.parametrize("n_best", [0, 11, -1, 10_000])
def test_so_many_outputs_are_refused(n_best: int) -> None:
    with pytest.raises(RefusedError, match="from 1 to 10"):
        bounded_options({}, LIMITS, n_best=n_best)


def test_options_go_above_the_models_own() -> None:
    stored = DecodingConfig(beam_size=3, length_alpha=0.5)
    options = bounded_options({"length_alpha": 0}, LIMITS)
    assert settle(stored, options, 0) == DecodingConfig(beam_size=3, length_alpha=0.0)
    assert settle(stored, bounded_options({}, LIMITS, n_best=4), 77) == DecodingConfig(
        beam_size=4, n_best=4, length_alpha=0.5, batch_tokens=77
    )


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(RefusedError, match="n_best"):
        settle(DecodingConfig(), bounded_options({"beam_size": 2}, LIMITS, n_best=3), 0)
    with pytest.raises(RefusedError, match="groups"):
        settle(DecodingConfig(), bounded_options({"diverse_groups": 3}, LIMITS), 0)


def test_every_score_is_a_number() -> None:
    values = [finite(value) for value in (float("-inf"), float("nan"), float("inf"), -1e9, -0.5)]
    assert values == [LEAST_LOG_PROBABILITY] * 4 + [-0.5]
