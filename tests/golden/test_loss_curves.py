"""The losses of 20 updates are those that were stored: whatever changes training changes them.

`python -m tests.golden.make curves` makes them anew.
"""

import json

import pytest

from golden.make import CURVES, SYSTEMS, largest_difference, loss_curve

# Kernels of other CPUs sum in another order, which changes the last digits. The same updates in float64 are within
# 1.4e-7 of the stored ones, so this leaves room for seventy times as much; a dropped term of the loss, another start
# value or another bit of dropout moves a loss by more than 1e-3.
TOLERANCE = 1e-5


@pytest.mark.parametrize("name", SYSTEMS)
def test_losses_are_the_stored_ones(name: str) -> None:
    wanted = json.loads(CURVES.read_text(encoding="utf-8"))[name]
    assert largest_difference(loss_curve(SYSTEMS[name]), wanted) < TOLERANCE


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_curves_show_learning(name: str) -> None:
    wanted = json.loads(CURVES.read_text(encoding="utf-8"))[name]
    assert sum(wanted[-5:]) < sum(wanted[:5])
