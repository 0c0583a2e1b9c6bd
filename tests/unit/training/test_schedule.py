"""The learning rate is a pure function of the step."""

from itertools import pairwise
from typing import Any

import pytest

from malmoi.config.training import TrainingConfig
from malmoi.errors import ConfigError
from malmoi.training.schedule import learning_rate, peak_rate

KINDS = pytest.mark.parametrize("kind", ["paper", "inverse_sqrt", "cosine", "constant"])


def rates(width: int = 512, steps: int = 40, **settings: Any) -> list[float]:
    config = TrainingConfig(max_steps=steps, **settings)
    return [learning_rate(step, config, width) for step in range(1, steps + 1)]


def test_the_paper_schedule_is_equation_3() -> None:
    """Vaswani et al. (2017), equation 3: d^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    wanted = [512**-0.5 * min(step**-0.5, step * 10**-1.5) for step in range(1, 41)]
    assert rates(warmup_steps=10) == pytest.approx(wanted, rel=1e-12)


@KINDS
def test_lr_is_the_peak_and_stands_at_the_end_of_the_warm_up(kind: str) -> None:
    """Lightning-AI/pytorch-lightning#1772; pytorch/pytorch#60265: not one step before or after."""
    found = rates(schedule=kind, lr=0.3, warmup_steps=10)
    assert found[9] == 0.3 == max(found)
    assert found[:10] == pytest.approx([0.03 * step for step in range(1, 11)])
    assert found[0] > 0
    if kind != "constant":
        assert all(later < earlier for earlier, later in pairwise(found[9:]))
        assert found[-1] > 0
    else:
        assert set(found[9:]) == {0.3}


@KINDS
def test_warm_up_0_starts_at_the_peak(kind: str) -> None:
    """OpenNMT/OpenNMT-py#1190 and pytorch/pytorch#29697: no division by zero, no rate of zero."""
    found = rates(schedule=kind, lr=0.3, warmup_steps=0)
    assert found[0] == 0.3 == max(found)
    assert min(found) > 0


def test_inverse_sqrt_and_cosine_halve_where_they_should() -> None:
    assert rates(schedule="inverse_sqrt", lr=0.4, warmup_steps=10)[39] == pytest.approx(0.2)
    assert rates(schedule="cosine", lr=0.4, warmup_steps=1, steps=40)[20] == pytest.approx(0.2)
    config = TrainingConfig(schedule="cosine", lr=0.4, warmup_steps=1, max_steps=40)
    assert learning_rate(41, config, 512) == pytest.approx(0.0, abs=1e-12)


def test_a_rate_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.lr"):
        peak_rate(TrainingConfig(schedule="constant", warmup_steps=0), 512)


def test_steps_count_from_1() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, TrainingConfig(), 512)
