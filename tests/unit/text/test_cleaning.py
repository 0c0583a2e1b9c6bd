"""Which pairs are left out, whether each is counted under its reason, and what is held out."""

from collections.abc import Iterable
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.text import CleaningConfig
from malmoi.text.cleaning import EXPLANATIONS, CleaningReport, Reason, clean_pairs
from malmoi.text.corpus import Pair
from malmoi.text.split import held_out

# The same examples in every run.
FIXED = settings(derandomize=True, database=None, deadline=None)


def clean(
    pairs: Iterable[tuple[str, str]], config: CleaningConfig | None = None
) -> tuple[list[tuple[str, str]], CleaningReport]:
    report = CleaningReport()
    numbered = (Pair(source, target, line) for line, (source, target) in enumerate(pairs, start=1))
    kept = list(clean_pairs(numbered, config or CleaningConfig(), report))
    return [(pair.source, pair.target) for pair in kept], report


def test_blank_on_one_side_drops_the_pair() -> None:
    """stefan-it/nmt-en-vi#6, sillsdev/silnlp#137, facebookresearch/fairseq#4146."""
    sources = ["bano", "", "felu", "gasi", "hemo", ""]
    targets = ["ak", "bek", "cil", "", "eft", ""]
    kept, report = clean(zip(sources, targets, strict=True))
    assert kept == [("bano", "ak"), ("felu", "cil"), ("hemo", "eft")]
    assert report.dropped == {"empty": 3}
    assert report.examples == {"empty": [2, 4, 6]}
    assert report.lines(CleaningConfig())[0] == "kept 3 of 6 pairs, dropped 3"
    assert "line 2, 4, 6" in report.lines(CleaningConfig())[1]


def test_white_space_of_every_kind_is_blank() -> None:
    """OpenNMT/OpenNMT-py#252 and #1642, marian-nmt/marian#21, ufal/lindat-translation#61."""
    blanks = ["   ", "\t", "\xa0", "\u3000 \u3000", "\u200b", "\u2028"]
    kept, report = clean([("a", "b"), *((blank, "b") for blank in blanks)])
    assert kept == [("a", "b")]
    assert report.dropped["empty"] == len(blanks)
    assert report.lines(CleaningConfig())[1].endswith("(line 2, 3, 4, 5, 6, ...)")


def test_nul_is_taken_out() -> None:
    """google/sentencepiece#331, #156 and #954: three pairs are left, and the drop is reported."""
    kept, report = clean([("bano", "ak"), ("fe\0lu", "cil"), ("\0", "bek"), ("gasi", "dom")])
    assert kept == [("bano", "ak"), ("felu", "cil"), ("gasi", "dom")]
    assert report.dropped == {"empty": 1}


def test_control_characters_by_choice() -> None:
    pairs = [("a\x07b", "x"), ("a", "x\x9by"), ("a\tb\x0bc\x85d", "x\x1fy")]
    kept, report = clean(pairs)
    assert kept == pairs[2:]
    assert report.examples == {"control": [1, 2]}
    kept, report = clean(pairs, CleaningConfig(drop_control_characters=False))
    assert kept == pairs
    assert not report.dropped


def test_length_ratio_and_duplicates() -> None:
    config = CleaningConfig(max_characters=10, max_ratio=3.0, drop_duplicates=True)
    pairs = [("a" * 10, "b" * 10), ("a" * 11, "b" * 11), ("aaaa", "b"), ("aaa", "b"), ("aaa", "b"), ("aaa", "bb")]
    kept, report = clean(pairs, config)
    assert kept == [pairs[0], pairs[3], pairs[5]]
    assert report.examples == {"too_long": [2], "ratio": [3], "duplicate": [5]}
    assert report.kept == 3
    told = "\n".join(report.lines(config))
    assert "cleaning.max_ratio = 3 (line 3)" in told


def test_lines_that_are_too_long_are_told_with_their_limit() -> None:
    """google/sentencepiece#340 and #517: how many were left out, and by which limit, also where none is left."""
    for pairs in ([("a" * 70_000, "b"), ("a b " * 20_000, "b")], [("a", "b" * 5001)]):
        kept, report = clean(pairs)
        assert kept == []
        assert f"{len(pairs)} longer than cleaning.max_characters = 5000" in report.lines(CleaningConfig())[1]


def test_equal_after_normalisation_is_a_duplicate() -> None:
    kept, _ = clean([("u\u0308", "x"), ("ü", "x")], CleaningConfig(drop_duplicates=True))
    assert kept == [("ü", "x")]


def test_rows_without_two_columns_are_counted() -> None:
    """pytorch/text#349 and #612, clarin-eric/ParlaMint#899, Tatoeba/tatoeba2#2973."""
    report = CleaningReport()
    pairs = [Pair("", "", 1, "columns"), Pair("a", "b", 2)]
    assert list(clean_pairs(pairs, CleaningConfig(), report)) == [Pair("a", "b", 2)]
    assert report.examples == {"columns": [1]}


def test_report_comes_back_from_json() -> None:
    assert set(EXPLANATIONS) == set(get_args(Reason))
    _, report = clean([("", "")] * 9 + [("a", "b"), ("a\x07", "b")])
    again = CleaningReport.from_json(report.to_json())
    assert again == report
    again.count("empty", 99)
    assert report.dropped["empty"] == 9
    assert again.dropped["empty"] == 10


@FIXED
@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8))))
def test_every_pair_is_kept_or_counted(pairs: list[tuple[str, str]]) -> None:
    config = CleaningConfig(max_characters=5, max_ratio=2.0, drop_duplicates=True)
    kept, report = clean(pairs, config)
    assert len(kept) == report.kept
    assert report.kept + report.dropped.total() == len(pairs)
    assert clean(kept, config)[0] == kept


def test_held_out_ignores_case_space_and_composition() -> None:
    sources = [f"Sätze {number} Über Straßen" for number in range(2000)]
    chosen = [source for source in sources if held_out(source, seed=3, share=0.1)]
    assert 130 <= len(chosen) <= 270
    for source in sources[:200]:
        variants = [source.upper(), f"  {source.replace(' ', chr(0x3000))}\t", source.replace("ä", "a\u0308")]
        assert {held_out(variant, 3, 0.1) for variant in variants} == {held_out(source, 3, 0.1)}
    assert chosen != [source for source in sources if held_out(source, seed=4, share=0.1)]
    assert set(chosen) <= {source for source in sources if held_out(source, seed=3, share=0.2)}


def test_held_out_at_the_ends_and_on_every_machine() -> None:
    assert not held_out("a", 1, 0.0)
    assert held_out("a", 1, 1.0)
    assert [held_out(f"sentence {number}", 1, 0.25) for number in range(12)] == HELD_OUT_BY_SEED_1


HELD_OUT_BY_SEED_1 = [False, False, False, False, False, False, True, False, False, False, False, False]
