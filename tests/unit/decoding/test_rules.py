"""Rules that forbid tokens row by row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import IMPOSSIBLE, Request
from malmoi.decoding.rules import NO_IDS, ForbiddenIds, ForcedPrefix, Limits, MinimumLength, NoRepeat
from malmoi.decoding.search import check_request
from malmoi.errors import DataError
from reference.exhaustive import TableScorer

END = 1


def limits(source: int, **settings: float) -> tuple[int, int]:
    config = DecodingConfig(**settings)  # type: ignore[arg-type]
    found = Limits.of(Request((5,) * source + (END,)), config, END)
    return found.least, found.most


def test_limits_follow_the_sentence_itself() -> None:
    assert limits(10) == (0, 40)
    assert limits(10, max_length=25) == (0, 25)
    assert limits(10, max_length_ratio=1.5, max_length_extra=0) == (0, 15)
    assert limits(10, min_length_ratio=0.45) == (5, 40)
    assert limits(10, min_length=3) == (3, 40)
    assert limits(0, max_length_extra=0) == (0, 0)
    assert limits(0, max_length_ratio=1e308, min_length_ratio=1e308, max_length_extra=3) == (0, 3)
    assert limits(2, max_length_ratio=1e308) == (0, 1000)


def test_a_minimum_lifts_the_relative_maximum_but_not_the_absolute_one() -> None:
    assert limits(1, min_length=50, max_length=60) == (50, 50)
    assert limits(100, min_length_ratio=1.0, max_length=60) == (60, 60)


def test_a_source_is_counted_without_its_end_symbol() -> None:
    config = DecodingConfig(max_length_ratio=1.0, max_length_extra=0)
    assert Limits.of(Request((5, 6)), config, END).most == 2
    assert Limits.of(Request((5, 6, END)), config, END).most == 2


def test_a_prefix_is_always_whole() -> None:
    config = DecodingConfig(max_length=3)
    assert Limits.of(Request((5, END), prefix=(4,) * 9), config, END).most == 9


def test_forbidden_ids_go_and_the_rest_stays() -> None:
    log_probs = np.zeros((3, 5))
    ForbiddenIds(np.array([0, 3])).apply(log_probs)
    assert log_probs.tolist() == [[-math.inf, 0, 0, -math.inf, 0]] * 3


def test_minimum_length_holds_back_the_end_symbol_row_by_row() -> None:
    """OpenNMT/CTranslate2#277: a minimum that is read must be applied."""
    config = DecodingConfig(min_length_ratio=1.0)
    rule = MinimumLength(config, END, NO_IDS).start([Request((5, END)), Request((5, 6, END))], 2)
    rule = rule.advance(np.array([3, 3, 3, 3]))
    log_probs = np.zeros((4, 4))
    rule.apply(log_probs)
    assert (log_probs[:, END] == -math.inf).tolist() == [False, False, True, True]
    moved = rule.select(np.array([2, 0])).append(rule)
    log_probs = np.zeros((6, 4))
    moved.apply(log_probs)
    assert (log_probs[:, END] == -math.inf).tolist() == [True, False, False, False, True, True]


def test_a_prefix_is_the_only_thing_that_can_be_said_and_keeps_its_log_probability() -> None:
    rule = ForcedPrefix(NO_IDS.reshape(0, 0)).start([Request((5,), prefix=(2, 3)), Request((5,))], 1)
    log_probs = np.array([[-1.0, -2.0, -3.0, -4.0]] * 2)
    rule.apply(log_probs)
    assert log_probs.tolist() == [[-math.inf, -math.inf, -3.0, -math.inf], [-1.0, -2.0, -3.0, -4.0]]
    rule = rule.advance(np.array([2, 0])).select(np.array([1, 0]))
    log_probs = np.array([[-1.0, -2.0, -3.0, -math.inf]] * 2)
    rule.apply(log_probs)
    assert log_probs.tolist() == [[-1.0, -2.0, -3.0, -math.inf], [-math.inf, -math.inf, -math.inf, IMPOSSIBLE]]
    rule = rule.advance(np.array([0, 3]))
    later = rule.append(ForcedPrefix(NO_IDS.reshape(0, 0)).start([Request((5,), prefix=(1,))], 1))
    log_probs = np.zeros((3, 4))
    later.apply(log_probs)
    assert (log_probs == -math.inf).sum(1).tolist() == [0, 0, 3]


@settings(deadline=None)
@given(st.lists(st.integers(2, 4), max_size=12), st.integers(1, 4), st.integers(0, 6))
def test_no_run_of_tokens_comes_twice(said: list[int], size: int, prefix: int) -> None:
    """argosopentech/argos-translate#444: loops can be forbidden; what a prefix repeats is the user's own wish."""
    rule = NoRepeat(size, NO_IDS.reshape(0, 0), NO_IDS).start([Request((5,), prefix=(2,) * prefix)], 1)
    # A second row that began later has other places, but the same rule.
    for token in said:
        rule = rule.advance(np.array([token]))
    other = NoRepeat(size, NO_IDS.reshape(0, 0), NO_IDS).start([Request((5,))], 1)
    both = rule.append(other.advance(np.array([3]))).select(np.array([1, 0]))
    log_probs = np.zeros((2, 6))
    both.apply(log_probs)
    runs = {tuple(said[place : place + size]) for place in range(len(said) - size + 1)}
    for token in range(6):
        run = (*said[len(said) - size + 1 :], token) if size > 1 else (token,)
        repeats = len(run) == size and run in runs and len(said) >= prefix
        assert (log_probs[1, token].item() == -math.inf) == repeats
        assert (log_probs[0, token].item() == -math.inf) == (size == 1 and token == 3)


def test_rows_that_began_later_keep_their_own_history() -> None:
    begun = NoRepeat(2, NO_IDS.reshape(0, 0), NO_IDS).start([Request((5,)), Request((6,))], 1)
    older = begun.advance(np.array([2, 3])).advance(np.array([3, 4])).advance(np.array([2, 3]))
    younger = begun.advance(np.array([4, 2])).advance(np.array([4, 2]))
    log_probs = np.zeros((4, 6))
    older.append(younger).apply(log_probs)
    assert [np.flatnonzero(row == -math.inf).tolist() for row in log_probs] == [[3], [4], [4], [2]]
    log_probs = np.zeros((4, 6))
    younger.append(older).apply(log_probs)
    assert [np.flatnonzero(row == -math.inf).tolist() for row in log_probs] == [[4], [2], [3], [4]]


def test_minimum_above_maximum_is_refused() -> None:
    """espnet/espnet#5580."""
    with pytest.raises(ValueError, match="min_length 5 is above max_length 4"):
        DecodingConfig(min_length=5, max_length=4)


def test_a_prefix_above_the_longest_output_is_refused() -> None:
    config = DecodingConfig(max_length=3)
    scorer = TableScorer(lambda source, prefix: np.log([0.2] * 5), 5)
    check_request(Request((END,), (2, 3, 4)), 0, scorer, config, ())
    with pytest.raises(DataError, match="prefix of 4 tokens, above max_length 3"):
        check_request(Request((END,), (2, 3, 4, 2)), 0, scorer, config, ())
