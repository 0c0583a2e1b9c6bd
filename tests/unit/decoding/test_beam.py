"""Beam search on tables small enough to think through."""

import math

import numpy as np
import pytest

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import IMPOSSIBLE, Hypothesis, Request
from malmoi.decoding.search import search
from malmoi.errors import ConfigError, DataError
from reference.exhaustive import (
    END,
    Formula,
    Ids,
    Table,
    TableScorer,
    exhaustive,
    greedy,
    plain_beam,
    random_attention,
    random_table,
)

SOURCE = (2, END)


def run(scorer: TableScorer, *, prefix: Ids = (), forbidden: Ids = (), **settings: object) -> list[Hypothesis]:
    return search(scorer, [Request(SOURCE, prefix)], DecodingConfig(**settings), forbidden)[0]  # type: ignore[arg-type]


def fixed(rows: dict[Ids, dict[int, float]], size: int, rest: dict[int, float]) -> Table:
    """Probabilities written down for some prefixes, and others for the rest."""

    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        row = rows.get(prefix, rest)
        values = np.full(size, -math.inf)
        for token, probability in row.items():
            values[token] = math.log(probability)
        return values

    return table


def late_winner() -> TableScorer:
    """The empty output has log-probability -1.2; (2, 3, END) has -1.0 in all, and its prefixes are always likely."""
    likely, small = math.exp(-0.4), (1 - math.exp(-0.4) - math.exp(-1.2)) / 3
    other = (1 - math.exp(-0.3)) / 4
    rows = {
        (): {END: math.exp(-1.2), 2: likely, 0: small, 3: small, 4: small},
        (2,): {3: math.exp(-0.3), END: other, 0: other, 2: other, 4: other},
        (2, 3): {END: math.exp(-0.3), 0: other, 2: other, 3: other, 4: other},
    }
    return TableScorer(fixed(rows, 5, {0: 0.2, END: 0.2, 2: 0.2, 3: 0.2, 4: 0.2}), 5)


@pytest.mark.parametrize("penalty", ["none", "wu", "divide"])
def test_a_later_and_better_output_is_waited_for(penalty: str) -> None:
    """neulab/xnmt#572, awslabs/sockeye#233, OpenNMT/OpenNMT-py#2189: the best outputs, not the first ones."""
    scorer = late_winner()
    settings = {"max_length": 4, "length_penalty": penalty}
    best = run(scorer, beam_size=2, **settings)[0]
    assert best.ids == (2, 3, END)
    assert sum(best.log_probs) == pytest.approx(-1.0)
    wide = run(scorer, beam_size=300, n_best=300, **settings)
    right = exhaustive(scorer, SOURCE, 4, Formula(penalty, 1.0))
    # 1 + 4 + 16 + 64 + 256 outputs end.
    assert len(right) == 341
    assert len(wide) == 300
    assert [one.score for one in wide] == pytest.approx([one.score for one in right[:300]], abs=1e-9)
    assert {one.ids for one in wide if one.score > right[299].score + 1e-9} == {
        one.ids for one in right if one.score > right[299].score + 1e-9
    }


def test_search_ends_as_soon_as_no_row_can_win() -> None:
    """neulab/xnmt#572: and it does not go on for nothing."""
    scorer = late_winner()
    run(scorer, beam_size=2, max_length=50, length_penalty="none")
    # When (2, 3, END) comes in with -1.0, the best live row has a sum of -0.4 + log(0.065) = -3.1.
    assert scorer.num_steps == 3
    scorer = late_winner()
    run(scorer, beam_size=1, max_length=50, length_penalty="wu", length_alpha=5.0)
    assert scorer.num_steps == 3


def test_a_long_output_is_given_its_chance_where_length_is_rewarded() -> None:
    """neulab/xnmt#572: the bound of a live row is at the greatest length that it can reach, not at its own."""
    rows = {(): {END: math.exp(-0.5), 2: math.exp(-2.0)}, (2,) * 9: {END: 1.0}}
    scorer = TableScorer(fixed(rows, 4, {2: 1.0}), 4)
    settings = {"beam_size": 2, "length_penalty": "divide"}
    assert run(scorer, max_length=9, **settings)[0].ids == (*(2,) * 9, END)
    # -2.0 / 4 is no better than -0.5 / 1, so that nothing is to be had with at most three words.
    scorer = TableScorer(fixed(rows, 4, {2: 1.0}), 4)
    assert run(scorer, max_length=3, **settings)[0].ids == (END,)
    assert scorer.num_steps == 1


def test_a_sentence_that_is_done_is_asked_no_more() -> None:
    """joeynmt/joeynmt#50: finished sentences leave the batch, and what they said stays as it is."""

    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        row = np.full(5, math.log(0.01))
        row[END if len(prefix) >= source[0] else 3] = math.log(0.96)
        return row

    scorer = TableScorer(table, 5)
    requests = [Request((length, END)) for length in (9, 2, 5)]
    config = DecodingConfig(beam_size=1)
    assert [answer[0].ids for answer in search(scorer, requests, config)] == [
        (*(3,) * length, END) for length in (9, 2, 5)
    ]
    assert scorer.num_rows == 10 + 3 + 6


@pytest.mark.parametrize(("groups", "first"), [(1, 1), (2, 2), (4, 4)])
def test_only_rows_that_hold_a_hypothesis_are_asked_about(groups: int, first: int) -> None:
    """Equal rows would stay equal: a beam begins with one, and a group with one."""
    scorer = TableScorer(random_table(3, 9, 0.1, end_log_odds=-3.0), 9)
    run(scorer, beam_size=4, n_best=4, max_length=2, diverse_groups=groups)
    assert (scorer.num_steps, scorer.num_rows) == (3, first + 4 + 4)
    scorer = TableScorer(random_table(3, 9), 9)
    requests = [Request((word, END)) for word in (2, 3, 4)]
    # Two sentences at a time: the third one comes in with one row when the others have four each.
    config = DecodingConfig(beam_size=4, n_best=4, max_length=3, diverse_groups=groups, batch_tokens=16)
    together = search(scorer, requests, config)
    assert together == [search(TableScorer(random_table(3, 9), 9), [one], config)[0] for one in requests]


def test_a_sample_that_ended_is_asked_about_no_more() -> None:
    scorer = TableScorer(fixed({}, 4, {2: 0.5, END: 0.5}), 4)
    samples = run(scorer, method="sample", n_best=20, max_length=50)
    assert len({len(one.ids) for one in samples}) > 2 and all(one.finished for one in samples)
    assert scorer.num_rows == sum(len(one.ids) for one in samples)


def test_a_table_of_sixty_four_places_gives_sixty_four_tokens() -> None:
    """facebookresearch/fairseq#119 and OpenNMT/CTranslate#45: no step beyond the table, none too few."""
    for limit in (1, 2, 63, 64):
        for width in (1, 4):
            scorer = TableScorer(lambda source, prefix: np.log([0.4, 0.0, 0.3, 0.2, 0.1]), 5, max_steps=64)
            with np.errstate(divide="ignore"):
                outputs = run(scorer, beam_size=width, n_best=width, max_length=limit, max_length_extra=100)
            assert [len(one.ids) for one in outputs] == [limit] * min(width, 4**limit)
            assert not any(one.finished for one in outputs)
            assert len({one.ids for one in outputs}) == len(outputs)


def test_an_output_may_end_in_the_last_step_of_the_table() -> None:
    scorer = TableScorer(random_table(5, 5, 0.1), 5, max_steps=3)
    outputs = run(scorer, beam_size=100, n_best=100, max_length=9)
    finished = [one for one in outputs if one.finished]
    assert {len(one.ids) for one in finished} == {1, 2, 3}
    assert {len(one.ids) for one in outputs if not one.finished} == {3}
    with pytest.raises(DataError, match="prefix of 4 tokens, but the model can make 3"):
        run(scorer, prefix=(2,) * 4)


@pytest.mark.parametrize("limit", [0, 3])
def test_a_limit_of_nothing_gives_nothing(limit: int) -> None:
    scorer = TableScorer(random_table(5, 5), 5)
    outputs = run(scorer, beam_size=2, max_length_ratio=0.0, max_length_extra=limit)
    assert all(len(one.ids) - one.finished <= limit for one in outputs)
    assert len(outputs) == 1


@pytest.mark.parametrize("width", [1, 5, 6, 7, 50])
def test_a_beam_wider_than_the_vocabulary(width: int) -> None:
    """facebookresearch/fairseq#7 and #8, espnet/espnet#4981: the list is shorter where there is no more."""
    scorer = TableScorer(random_table(7, 6), 6)
    outputs = run(scorer, forbidden=(0, 3), beam_size=width, n_best=width, max_length=2)
    # Three words and the end symbol can come: 1 + 3 + 9 outputs end.
    assert len({one.ids for one in outputs}) == len(outputs) <= min(width, 13)
    assert width < 13 or len(outputs) == 13
    assert all(not {0, 3, 6} & set(one.ids) and math.isfinite(one.score) for one in outputs)


def test_tokens_without_probability_never_come_out() -> None:
    scorer = TableScorer(fixed({}, 5, {2: 0.5, END: 0.5}), 5)
    outputs = run(scorer, beam_size=20, n_best=20, max_length=3)
    assert sorted(one.ids for one in outputs) == [(END,), (2, END), (2, 2, END), (2, 2, 2, END)]
    assert all(one.finished for one in outputs)


@pytest.mark.parametrize(("width", "num_best"), [(1, 1), (5, 1), (5, 5)])
def test_outputs_that_never_end_are_cut_and_come_all_the_same(width: int, num_best: int) -> None:
    """OpenNMT/OpenNMT-py#1345 and #221: n-best results whatever happens, marked as cut."""
    scorer = TableScorer(random_table(2, 30, 1.0, end_log_odds=-30.0), 30)
    outputs = run(scorer, beam_size=width, n_best=num_best, max_length=5)
    assert len(outputs) == num_best
    assert all(not one.finished and len(one.ids) == 5 and END not in one.ids for one in outputs)
    assert [one.score for one in outputs] == sorted((one.score for one in outputs), reverse=True)


def test_cut_outputs_come_after_finished_ones() -> None:
    rows = {(): {END: 0.02, 2: 0.9, 3: 0.08}}
    scorer = TableScorer(fixed(rows, 5, {2: 0.7, 3: 0.3}), 5)
    outputs = run(scorer, beam_size=3, n_best=3, max_length=3)
    assert [one.finished for one in outputs] == [True, False, False]
    assert outputs[0].score < outputs[1].score


@pytest.mark.parametrize("penalty", ["none", "wu", "divide"])
def test_distinct_outputs_with_one_end_symbol(penalty: str) -> None:
    """OpenNMT/OpenNMT-py#60, OpenNMT/OpenNMT#56, facebookresearch/ParlAI#2058."""
    for seed in range(5):
        for groups in (1, 2, 5, 10):
            outputs = run(
                TableScorer(random_table(seed, 6), 6),
                beam_size=10,
                n_best=10,
                max_length=4,
                length_penalty=penalty,
                diverse_groups=groups,
                diversity=0.2,
            )
            assert len({one.ids for one in outputs}) == len(outputs)
            for one in outputs:
                assert one.ids.count(END) == one.finished
                assert one.finished == (one.ids[-1] == END)
                assert len(one.log_probs) == len(one.ids)


@pytest.mark.parametrize("least", [0, 1, 3])
@pytest.mark.parametrize("width", [1, 5, 50])
@pytest.mark.parametrize("prefix", [(), (4, 2)])
def test_a_minimum_length_holds_for_every_output(least: int, width: int, prefix: Ids) -> None:
    """espnet/espnet#5580 and #5581, OpenNMT/CTranslate2#277 and #290, OpenNMT/OpenNMT-py#457."""
    scorer = TableScorer(fixed({}, 6, {END: 0.3, 0: 0.2, 2: 0.2, 3: 0.1, 4: 0.1, 5: 0.1}), 6)
    settings = {"min_length": least, "max_length": 4, "beam_size": width, "n_best": width}
    outputs = run(scorer, prefix=prefix, length_penalty="none", **settings)
    assert all(len(one.ids) - one.finished >= max(least, len(prefix)) for one in outputs)
    assert all(one.ids[: len(prefix)] == prefix for one in outputs)
    # Without a length penalty the shortest output that is allowed wins.
    assert len(outputs[0].ids) - outputs[0].finished == max(least, len(prefix))


def test_loops_are_bounded_and_can_be_forbidden() -> None:
    """argosopentech/argos-translate#444 and LibreTranslate/LibreTranslate#168."""

    def table(source: Ids, prefix: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        row = np.full(6, math.log(0.001))
        row[2 + len(prefix) % 2] = math.log(0.99)
        return row

    for width in (1, 5):
        best = run(TableScorer(table, 6), beam_size=width)[0]
        assert len(best.ids) - best.finished == 2 * 1 + 20
        free = run(TableScorer(table, 6), beam_size=width, no_repeat_ngram=2)[0]
        runs = list(zip(free.ids, free.ids[1:], strict=False))
        assert len(set(runs)) == len(runs)


def test_a_dead_end_is_cut_where_it_stands() -> None:
    outputs = run(TableScorer(random_table(1, 4), 4), forbidden=(0,), beam_size=3, no_repeat_ngram=1, min_length=9)
    assert [sorted(one.ids) for one in outputs] == [[2, 3]]
    assert not outputs[0].finished


@pytest.mark.parametrize("seed", range(6))
def test_one_group_is_a_beam_and_a_group_of_one_is_greedy(seed: int) -> None:
    scorer = TableScorer(random_table(seed, 6), 6)
    settings = {"beam_size": 4, "n_best": 4, "max_length": 5, "diversity": 9.0}
    assert run(scorer, diverse_groups=1, **settings) == run(scorer, **settings)
    outputs = run(scorer, diverse_groups=4, **{**settings, "diversity": 0.0})
    assert [one.ids for one in outputs] == [greedy(scorer, SOURCE, 5)]


def test_groups_keep_away_from_what_earlier_ones_took() -> None:
    """Vijayakumar et al. (2018): the second group sees log-probabilities lowered where the first one went."""
    rows = {(): {2: 0.6, 3: 0.3, END: 0.1}}
    scorer = TableScorer(fixed(rows, 5, {END: 0.9, 4: 0.1}), 5)
    settings = {"beam_size": 2, "n_best": 2, "diverse_groups": 2, "length_penalty": "none"}
    near = run(scorer, diversity=math.log(2) - 0.01, **settings)
    assert [one.ids for one in near] == [(2, END)]
    far = run(scorer, diversity=math.log(2) + 0.01, **settings)
    assert [one.ids for one in far] == [(2, END), (3, END)]
    # What is reported is the model's own.
    assert far[1].score == pytest.approx(math.log(0.3 * 0.9))


@pytest.mark.parametrize("diversity", [0.1, 1.0])
def test_diverse_outputs_follow_the_formula_too(diversity: float) -> None:
    """Few words, so that later groups often take what earlier ones took, and are lowered for it in the choice alone."""
    settings: dict[str, object] = {"beam_size": 6, "n_best": 6, "diverse_groups": 3, "diversity": diversity}
    for seed in range(4):
        scorer = TableScorer(random_table(seed, 4, 1.0), 4)
        outputs = run(scorer, max_length=5, **settings)
        forced = force(scorer, [SOURCE] * len(outputs), [one.ids for one in outputs], DecodingConfig(**settings))  # type: ignore[arg-type]
        assert [one.log_probs for one in outputs] == [one.log_probs for one in forced]
        assert [one.score for one in outputs] == pytest.approx([one.score for one in forced], abs=1e-9)
        assert len(outputs) > 2


def test_a_prefix_that_the_model_thinks_impossible_has_a_finite_score() -> None:
    """pytorch/serve#1304 and sgl-project/sglang#4097."""
    scorer = TableScorer(fixed({}, 5, {2: 0.5, END: 0.5}), 5)
    best = run(scorer, prefix=(4, 2), beam_size=2, length_penalty="none")[0]
    assert best.ids == (4, 2, END)
    assert best.log_probs == pytest.approx((IMPOSSIBLE, math.log(0.5), math.log(0.5)))
    assert best.score == pytest.approx(IMPOSSIBLE + 2 * math.log(0.5))


def test_prefixes_that_cannot_be_are_refused() -> None:
    scorer = TableScorer(random_table(1, 5), 5)
    for prefix, message in [((2, 5), "5 is not an id"), ((END,), "holds the end symbol"), ((0,), "holds id 0")]:
        with pytest.raises(DataError, match=f"sentence 1: forced prefix: {message}"):
            run(scorer, prefix=prefix, forbidden=(0,))


def test_equal_sums_go_to_the_lower_row_and_token() -> None:
    scorer = TableScorer(lambda source, prefix: np.log(np.full(6, 1 / 6)), 6)
    outputs = run(scorer, forbidden=(0,), beam_size=3, n_best=3, max_length=2, min_length=2)
    assert [one.ids[:2] for one in outputs] == [(2, 2), (2, 3), (2, 4)]


def test_coverage_without_attention_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no attention"):
        run(TableScorer(random_table(1, 5), 5), coverage_beta=0.2)


def test_attention_follows_its_output_through_the_beam() -> None:
    attention = random_attention(4)
    scorer = TableScorer(random_table(4, 6, 1.0), 6, attention)
    # Sentences of any length, some of which come in while others are on their way.
    requests = [Request((*(2 + seed % 4,) * (seed % 5), END)) for seed in range(12)]
    config = DecodingConfig(beam_size=4, n_best=4, max_length_ratio=1.5, max_length_extra=1, batch_tokens=80)
    for request, outputs in zip(requests, search(scorer, requests, config, keep_attention=True), strict=True):
        for one in outputs:
            looks = np.stack([attention(request.source, one.ids[:place]) for place in range(len(one.ids))])
            assert one.attention is not None
            assert one.attention.shape == looks.shape
            assert np.allclose(one.attention, looks, atol=1e-6)
    assert search(scorer, requests, config)[0][0].attention is None


@pytest.mark.parametrize("width", [1, 2, 3, 7])
@pytest.mark.parametrize(("penalty", "alpha", "beta"), [("wu", 1.0, 0.0), ("divide", 0.6, 0.4), ("none", 0.0, 0.0)])
def test_the_search_is_the_stated_one_without_its_early_stop(
    width: int, penalty: str, alpha: float, beta: float
) -> None:
    """A whole n-best list is never changed by leaving early: compared with a plain search that runs to the limit."""
    config = DecodingConfig(
        beam_size=width,
        n_best=width,
        length_penalty=penalty,  # type: ignore[arg-type]
        length_alpha=alpha,
        coverage_beta=beta,
        max_length=4,
    )
    for seed in range(12):
        scorer = TableScorer(random_table(seed, 5, 1.5), 5, random_attention(seed))
        source = (*(2,) * (1 + seed % 3), END)
        right = plain_beam(scorer, source, 4, width, width, Formula(penalty, alpha, beta))
        found = search(scorer, [Request(source)], config)[0]
        assert [(one.ids, one.finished) for one in found] == [(one.ids, one.finished) for one in right]
        assert [one.score for one in found] == pytest.approx([one.score for one in right], abs=1e-9)


def test_nothing_asked_nothing_answered() -> None:
    assert search(TableScorer(random_table(1, 5), 5), [], DecodingConfig()) == []
