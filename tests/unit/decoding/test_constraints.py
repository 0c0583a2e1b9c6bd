"""Phrases that must occur: the automaton, the rule and the sharing out of places."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.banks import allot
from malmoi.decoding.constraints import Constraints, PhraseAutomaton, spellings
from malmoi.decoding.interface import Phrase, Request
from malmoi.decoding.search import search
from malmoi.errors import ConfigError, DataError
from reference.exhaustive import END, Formula, TableScorer, exhaustive, random_table

phrase = st.lists(st.integers(2, 4), min_size=1, max_size=3).map(tuple)
phrases = st.lists(st.one_of(phrase, st.lists(phrase, min_size=1, max_size=2).map(tuple)), min_size=1, max_size=3)


def num_lacking(ids: tuple[int, ...], wanted: list[Phrase]) -> int:
    """Counted in the plainest way: occurrences by the place where they end, equal phrases together."""
    lacking = 0
    for options in {spellings(one) for one in wanted}:
        times = sum(spellings(one) == options for one in wanted)
        ends = {
            place
            for option in options
            for place in range(len(option), len(ids) + 1)
            if ids[place - len(option) : place] == option
        }
        lacking += max(0, times - len(ends))
    return lacking


@settings(deadline=None)
@given(phrases, st.lists(st.integers(2, 5), max_size=10))
def test_the_automaton_counts_occurrences(wanted: list[Phrase], ids: list[int]) -> None:
    automaton = PhraseAutomaton(wanted)
    state = automaton.START
    for place, token in enumerate(ids):
        state = automaton.advance(state, token)
        assert automaton.num_missing(state) == num_lacking(tuple(ids[: place + 1]), wanted)
        assert (automaton.num_missing_tokens(state) == 0) == (automaton.num_missing(state) == 0)


@settings(deadline=None)
@given(phrases, st.lists(st.integers(2, 5), max_size=6))
def test_there_is_always_a_way_to_the_end(wanted: list[Phrase], ids: list[int]) -> None:
    """From anywhere, wanted tokens alone lead to all phrases in as many tokens as are said to be missing, or fewer."""
    automaton = PhraseAutomaton(wanted)
    state = automaton.START
    for token in ids:
        state = automaton.advance(state, token)
    for _ in range(automaton.num_missing_tokens(state)):
        if automaton.num_missing(state) == 0:
            break
        state = automaton.advance(state, automaton.wanted(state)[-1])
    assert automaton.num_missing(state) == 0
    assert automaton.wanted(state) == ()


def test_phrases_within_one_another_and_overlapping_ones() -> None:
    automaton = PhraseAutomaton([(2, 3), (3, 4), (3,)])
    state = automaton.START
    lacking = []
    for token in (2, 3, 4):
        state = automaton.advance(state, token)
        lacking.append(automaton.num_missing(state))
    assert lacking == [3, 1, 0]


def test_the_rule_holds_back_the_end_symbol_and_moves_with_its_rows() -> None:
    rule = Constraints(END).start([Request((5,), constraints=((3,),)), Request((5,))], 2)
    rule = rule.advance(np.array([3, 2, 2, 2]))
    log_probs = np.zeros((4, 5))
    rule.apply(log_probs)
    assert (log_probs[:, END] == -math.inf).tolist() == [False, True, False, False]
    log_probs = np.zeros((6, 5))
    rule.select(np.array([1, 0])).append(rule).apply(log_probs)
    assert (log_probs[:, END] == -math.inf).tolist() == [True, False, False, True, False, False]
    assert not rule.select(np.array([2, 3])).active


def test_places_go_round_and_the_bank_that_has_done_most_comes_first() -> None:
    assert allot([9, 9, 9], 5) == [2, 2, 1]
    assert allot([1, 9, 2], 6) == [1, 3, 2]
    assert allot([9, 9, 9], 2) == [1, 1, 0]
    assert allot([1, 1], 5) == [1, 1]
    assert allot([], 5) == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), phrases, st.sampled_from([1, 2, 5, 8]))
def test_constraints_are_met_or_the_output_says_so(seed: int, wanted: list[Phrase], width: int) -> None:
    scorer = TableScorer(random_table(seed, 6, 3.0), 6)
    room = sum(min(len(one) for one in spellings(each)) for each in wanted)
    config = DecodingConfig(beam_size=width, n_best=width, max_length=room + 2)
    request = Request((3, END), constraints=tuple(wanted))
    outputs = search(scorer, [Request((3, 3, END)), request, Request((4, END))], config)[1]
    for output in outputs:
        body = output.ids[:-1] if output.finished else output.ids
        assert output.num_missing == num_lacking(body, wanted)
        assert output.num_missing == 0 or not output.finished
    # There is room for all of them, so the best output holds them all.
    assert outputs[0].num_missing == 0
    assert len({output.ids for output in outputs}) == len(outputs)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), phrases, st.sampled_from([("wu", 1.0), ("none", 0.0), ("divide", 0.7)]))
def test_a_wide_beam_finds_the_best_outputs_with_the_phrases(
    seed: int, wanted: list[Phrase], penalty: tuple[str, float]
) -> None:
    scorer = TableScorer(random_table(seed, 5), 5)
    kind, alpha = penalty
    config = DecodingConfig(beam_size=300, n_best=40, max_length=4, length_penalty=kind, length_alpha=alpha)  # type: ignore[arg-type]
    found = search(scorer, [Request((2, END), constraints=tuple(wanted))], config)[0]
    right = exhaustive(scorer, (2, END), 4, Formula(kind, alpha), may_end=lambda ids: num_lacking(ids, wanted) == 0)
    finished = [one for one in right if one.finished][:40]
    assert [one.ids for one in found if one.finished] == [one.ids for one in finished]
    assert [one.score for one in found if one.finished] == pytest.approx([one.score for one in finished], abs=1e-9)


@pytest.mark.parametrize(("width", "gap"), [(5, 0.6), (8, 0.4)])
def test_a_narrow_beam_is_not_far_from_the_best(width: int, gap: float) -> None:
    """Over many tables without any pattern the mean gap to the best output with the phrase is small."""
    gaps: list[float] = []
    for seed in range(20):
        scorer = TableScorer(random_table(seed, 5), 5)
        config = DecodingConfig(beam_size=width, max_length=4, length_penalty="none")
        best = exhaustive(scorer, (2, END), 4, Formula(), may_end=lambda ids: num_lacking(ids, [(2, 3)]) == 0)[0]
        found = search(scorer, [Request((2, END), constraints=((2, 3),))], config)[0][0]
        assert found.finished
        assert found.score <= best.score + 1e-9
        gaps.append(best.score - found.score)
    assert sum(gaps) / len(gaps) < gap


@pytest.mark.parametrize("width", [1, 2])
def test_an_output_does_not_end_as_soon_as_it_may(width: int) -> None:
    """With all phrases said, the end symbol still has to be better than going on."""

    def table(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        likely = END if len(prefix) == 6 else 3
        return np.log([0.96 if token == likely else 0.01 for token in range(5)])

    config = DecodingConfig(beam_size=width, length_alpha=2.0)
    best = search(TableScorer(table, 5), [Request((2, END), constraints=((4,),))], config)[0][0]
    assert len(best.ids) == 7
    assert best.ids.count(4) == 1


def test_sentences_without_constraints_are_left_alone() -> None:
    scorer = TableScorer(random_table(4, 6), 6)
    config = DecodingConfig(beam_size=3, n_best=3, max_length=5)
    plain = [Request((first, second, END)) for first, second in product((2, 3), (4, 5))]
    mixed = [plain[0], Request((2, END), constraints=((5, 5),)), *plain[1:]]
    alone = [search(scorer, [request], config)[0] for request in plain]
    together = search(scorer, mixed, config)
    assert [together[0], *together[2:]] == alone


def test_constraints_that_cannot_be_are_refused() -> None:
    scorer = TableScorer(random_table(4, 6), 6)
    with pytest.raises(DataError, match="sentence 1: phrase that must occur: 6 is not an id"):
        search(scorer, [Request((2, END), constraints=((2, 6),))], DecodingConfig())
    with pytest.raises(DataError, match="sentence 3: phrase that must occur: holds id 0"):
        search(scorer, [Request((2, END), constraints=(((2,), (0,)),))], DecodingConfig(), (0,), places=[2])
    with pytest.raises(DataError, match="is empty"):
        search(scorer, [Request((2, END), constraints=((),))], DecodingConfig())
    with pytest.raises(DataError, match="end symbol"):
        search(scorer, [Request((2, END), constraints=((3, END),))], DecodingConfig())
    with pytest.raises(ConfigError, match="beam search"):
        search(scorer, [Request((2, END), constraints=((3,),))], DecodingConfig(method="sample"))
    with pytest.raises(ConfigError, match="diverse_groups = 1"):
        search(scorer, [Request((2, END), constraints=((3,),))], DecodingConfig(beam_size=4, diverse_groups=2))
