"""Right answers, and whether an output fits them.

In: reference sets (one text per segment and set, as files hold them) or lists of right answers per segment.
Out: `References`, whose orientation was checked, and warnings about outputs that are not plain text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from malmoi.errors import DataError

# Punctuation with a space before it and none after it but a space or the end: what Moses-like tokenisers write.
SPACED_PUNCTUATION = re.compile(r"\S [.,;:!?%)\]](?= |$)")
SUBWORD_MARK = re.compile(r"@@(?= |$)|▁")
UPPER_CASE = re.compile(r"[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]")


@dataclass(frozen=True)
class References:
    """`answers[i]` holds every right answer of segment i, at least one.

    Build it by `from_sets` or `from_answers`, which say which way round the lists are.
    """

    answers: tuple[tuple[str, ...], ...]

    @classmethod
    def from_sets(cls, sets: Sequence[Sequence[str]], names: Sequence[str] = ()) -> "References":
        """One list per reference file, all of the same length; `names` of the files serve the error message.

        Raises `DataError` where there is none, or where two sets differ in length.
        """
        if not sets:
            raise DataError("no reference was given: give at least one file of right answers")
        for number, lines in enumerate(sets):
            if isinstance(lines, str):
                raise DataError(
                    f"reference set {number + 1} is one text, {lines[:40]!r}: give a list of sets, "
                    "each a list with one text per segment"
                )
            if len(lines) != len(sets[0]):
                raise DataError(
                    f"{name_of(names, number)} has {len(lines)} lines, but {name_of(names, 0)} has {len(sets[0])}: "
                    "every set of references needs one line per segment"
                )
        return cls(tuple(zip(*sets, strict=True)))

    @classmethod
    def from_answers(cls, answers: Sequence[Sequence[str]]) -> "References":
        """One list of right answers per segment; the lists may differ in length but none may be empty (`DataError`)."""
        for number, right in enumerate(answers, start=1):
            if isinstance(right, str) or not right:
                raise DataError(f"segment {number} has no list of right answers: {right!r}")
        return cls(tuple(tuple(right) for right in answers))

    def __len__(self) -> int:
        return len(self.answers)

    def check(self, num_outputs: int) -> None:
        """Raises `DataError`, with both counts, unless there is one output per segment and at least one segment."""
        if num_outputs != len(self):
            raise DataError(
                f"the output has {num_outputs} lines, but the references have {len(self)}: "
                "one line of output is needed for each segment"
            )
        if not num_outputs:
            raise DataError("there is nothing to score: the output and the references are empty")

    def as_sets(self) -> list[list[str | None]]:
        """One list per answer number, as sacrebleu wants them; None where a segment has fewer answers."""
        num_sets = max(len(right) for right in self.answers)
        return [[right[index] if index < len(right) else None for right in self.answers] for index in range(num_sets)]


def name_of(names: Sequence[str], number: int) -> str:
    """The name of a reference set, or its number where it has none."""
    return names[number] if number < len(names) else f"reference set {number + 1}"


def share(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    """Share of lines in which the pattern occurs."""
    return sum(1 for line in lines if pattern.search(line)) / max(1, len(lines))


def plain_text_warnings(outputs: Sequence[str], references: References, lowercase: bool = False) -> list[str]:
    """What makes the output another kind of text than the references, in sentences.

    Scores of tokenised or subword text cannot be compared with those of plain text, whatever the metric does inside.
    `lowercase` says that case will not be minded.
    """
    firsts = [right[0] for right in references.answers]
    warnings: list[str] = []
    kinds = (
        (SPACED_PUNCTUATION, "tokenised (a space before punctuation, as in `word .`)", "undo the tokenisation"),
        (SUBWORD_MARK, "cut into subwords (`@@` or `▁`)", "join the pieces"),
    )
    for pattern, kind, cure in kinds:
        ours, theirs = share(pattern, outputs), share(pattern, firsts)
        # A tenth of the lines is far more than typing slips, and French text has such spaces on both sides.
        for first, second, one, other in ((ours, theirs, "output", "reference"), (theirs, ours, "reference", "output")):
            if first >= 0.1 and second < first / 5:
                warnings.append(f"the {one} looks {kind} while the {other} does not: {cure} before scoring")
    if not lowercase and share(UPPER_CASE, firsts) >= 0.1 and share(UPPER_CASE, outputs) == 0.0:
        warnings.append("the output has no capital letters while the reference has: scores that mind case will be low")
    return warnings
