"""The distance in bits against the definition, written as it reads."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.evaluation.distance import edit_distance


def naive_distance(first: str, second: str) -> int:
    """The recursion that defines the distance: edit the heads or keep them."""

    @cache
    def distance(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return len(first) - i + len(second) - j
        if first[i] == second[j]:
            return distance(i + 1, j + 1)
        return 1 + min(distance(i + 1, j), distance(i, j + 1), distance(i + 1, j + 1))

    return distance(0, 0)


@settings(deadline=None, derandomize=True)
@given(st.text("abc", max_size=12), st.text("abcd", max_size=12))
def test_distance_equals_the_recursion(first: str, second: str) -> None:
    assert edit_distance(first, second) == naive_distance(first, second)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.text("ab", min_size=60, max_size=80), st.text("ab", max_size=80))
def test_distance_holds_beyond_a_machine_word(first: str, second: str) -> None:
    assert edit_distance(first, second) == naive_distance(first, second)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("", "", 0),
        ("", "ab", 2),
        ("ab", "", 2),
        ("kitten", "sitting", 3),
        (["HH", "AH", "L", "OW"], ["HH", "EH", "L", "OW", "Z"], 2),
    ],
)
def test_distance_of_known_pairs(first: str | list[str], second: str | list[str], distance: int) -> None:
    assert edit_distance(first, second) == distance
