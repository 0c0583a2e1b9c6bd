"""A model folder that was stored once loads in every later version and says the same, byte for byte.

`python -m tests.golden.make model` makes it anew, which breaks this promise: only with a new format.
"""

import subprocess
import sys

import pytest

from golden.make import MODEL, SMALLEST_MARGIN, SOURCE_LINES, TARGET_LINES
from malmoi.text.lines import read_lines
from malmoi.translate import Translator


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load(MODEL, device="cpu")


def test_the_stored_model_says_the_same(translator: Translator) -> None:
    found = translator.translate(list(read_lines(SOURCE_LINES)))
    assert [one.text for one in found] == list(read_lines(TARGET_LINES))


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 12}, {"batch_tokens": 1}, {"batch_tokens": 100}])
def test_it_says_so_whatever_the_beam_and_the_batch(translator: Translator, options: dict[str, int]) -> None:
    found = translator.translate(list(read_lines(SOURCE_LINES)), options=options)
    assert [one.text for one in found] == list(read_lines(TARGET_LINES))


def test_no_difference_of_kernels_can_change_it(translator: Translator) -> None:
    """Scores of the best output and the next one are further apart than any kernel could bring together."""
    for one in translator.translate(list(read_lines(SOURCE_LINES)), options={"n_best": 2}):
        (other,) = one.alternatives
        assert one.score is not None and other.score is not None
        assert one.score - other.score > SMALLEST_MARGIN


def test_the_command_line_says_the_same() -> None:
    command = [sys.executable, "-m", "malmoi", "translate", str(MODEL), str(SOURCE_LINES)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == TARGET_LINES.read_bytes()
