"""References know which way round they are, and outputs of another kind are told apart."""

import pytest

from malmoi.errors import DataError
from malmoi.evaluation.references import References, plain_text_warnings


def test_a_set_with_a_line_missing_is_refused_with_both_counts() -> None:
    """mjpost/sacrebleu#220 and #275: zip() would cut all sets to the shortest."""
    with pytest.raises(DataError, match=r"b\.txt has 2 lines, but a\.txt has 3"):
        References.from_sets([["a", "b", "c"], ["a", "b"]], names=["a.txt", "b.txt"])


def test_lists_per_segment_given_as_sets_are_refused() -> None:
    """mjpost/sacrebleu#272; huggingface/lighteval#1176: one list per segment where one per set is wanted."""
    per_segment = [["the cat sat down"], ["the sun never shone"], ["they walked back"]]
    with pytest.raises(DataError, match="the output has 3 lines, but the references have 1"):
        References.from_sets(per_segment).check(3)


def test_a_text_in_place_of_a_set_is_refused() -> None:
    """vibrantlabsai/ragas#2888: a text is a sequence of characters, and would be taken as a set of them."""
    with pytest.raises(DataError, match="is one text"):
        References.from_sets(["the cat sat down"])
    with pytest.raises(DataError, match="segment 1"):
        References.from_answers(["the cat sat down"])


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(DataError, match="no reference"):
        References.from_sets([])
    with pytest.raises(DataError, match="nothing to score"):
        References.from_sets([[]]).check(0)
    with pytest.raises(DataError, match="segment 2"):
        References.from_answers([["a"], []])


def test_answers_become_sets_with_gaps() -> None:
    references = References.from_answers([["a", "b"], ["c"]])
    assert references.as_sets() == [["a", "c"], ["b", None]]


PLAIN = ["Well, it's 3.5% up (again).", 'He said: "No!"', "Don't go; stay.", "A-B, C/D & E."]
TOKENISED = ["Well , it 's 3.5 % up ( again ) .", 'He said : " No ! "', "Do n't go ; stay .", "A-B , C / D & E ."]
SUBWORDS = ["We@@ ll, it's 3.5% up (again).", 'He sa@@ id: "No!"', "Don't go; stay.", "▁A-B, C/D ▁& E."]


@pytest.mark.parametrize(
    ("outputs", "answers", "told"),
    [
        (PLAIN, PLAIN, None),
        (TOKENISED, TOKENISED, None),
        (TOKENISED, PLAIN, "the output looks tokenised"),
        (PLAIN, TOKENISED, "the reference looks tokenised"),
        (SUBWORDS, PLAIN, "the output looks cut into subwords"),
        ([line.lower() for line in PLAIN], PLAIN, "no capital letters"),
        (["Ah , non !", "Oui ?"], ["Ah, non !", "Oui ?"], None),
    ],
)
def test_output_of_another_kind_is_told(outputs: list[str], answers: list[str], told: str | None) -> None:
    """mjpost/sacrebleu#162 and #178; facebookresearch/fairseq#2593."""
    warnings = plain_text_warnings(outputs, References.from_sets([answers]))
    assert len(warnings) == (told is not None)
    assert all(told in warning for warning in warnings if told)


def test_lower_case_is_not_told_where_case_is_not_minded() -> None:
    lowered = [line.lower() for line in PLAIN]
    assert not plain_text_warnings(lowered, References.from_sets([PLAIN]), lowercase=True)
