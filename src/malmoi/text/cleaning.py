"""Which training pairs are left out, and why: every one is counted and located.

In: pairs as they stand in the corpus. Out: pairs in composed Unicode (NFC) that are fit for training, and a report.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Self

from malmoi.config.text import CleaningConfig
from malmoi.text.corpus import Pair
from malmoi.text.lines import is_blank, normalize, one_line

Reason = Literal["empty", "too_long", "ratio", "duplicate", "control", "columns"]
NUM_EXAMPLES = 5
# White space among the control characters (tab, vertical tab, form feed, the separators, next line) is text.
CONTROL_CHARACTERS = re.compile("[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
EXPLANATIONS: dict[Reason, str] = {
    "empty": "empty or white space on one side or both",
    "too_long": "longer than cleaning.max_characters = {max_characters} or cleaning.max_tokens = {max_tokens}",
    "ratio": "sides too different in length for cleaning.max_ratio = {max_ratio:g}",
    "duplicate": "seen before",
    "control": "control characters",
    "columns": "not exactly two columns",
}


@dataclass
class CleaningReport:
    """How many pairs were kept and dropped, with the first few line numbers of each reason."""

    kept: int = 0
    dropped: Counter[Reason] = field(default_factory=Counter[Reason])
    examples: dict[Reason, list[int]] = field(default_factory=dict[Reason, list[int]])

    def count(self, reason: Reason, line: int) -> None:
        """Note one dropped pair."""
        self.dropped[reason] += 1
        lines = self.examples.setdefault(reason, [])
        if len(lines) < NUM_EXAMPLES:
            lines.append(line)

    def lines(self, config: CleaningConfig) -> list[str]:
        """The report in words, for the log, with the limits of `config` by which pairs were dropped."""
        num_dropped = self.dropped.total()
        text = [f"kept {self.kept:,} of {self.kept + num_dropped:,} pairs, dropped {num_dropped:,}"]
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            shown = self.examples.get(reason, [])
            places = ", ".join(str(line) for line in shown) + (", ..." if count > len(shown) else "")
            text.append(f"  {count:,} {EXPLANATIONS[reason].format(**config.model_dump())} (line {places})")
        return text

    def to_json(self) -> dict[str, Any]:
        """As plain data that `from_json` reads back."""
        return {"kept": self.kept, "dropped": dict(self.dropped), "examples": self.examples}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The report that `to_json` gave."""
        return cls(
            data["kept"], Counter(data["dropped"]), {key: list(value) for key, value in data["examples"].items()}
        )


def clean_pairs(pairs: Iterable[Pair], config: CleaningConfig, report: CleaningReport) -> Iterator[Pair]:
    """Pairs fit for training, normalised; what is dropped goes into `report`, whole pairs only.

    NUL, which no tokeniser can hold, is taken out of the text, so that a line of NULs alone counts as empty.
    Length in tokens is checked later, where tokens are known. Duplicates are remembered by a hash of eight bytes,
    which takes about 100 bytes of memory for each different pair.
    """
    seen: set[int] = set()
    for pair in pairs:
        source, target = one_line(normalize(pair.source)), one_line(normalize(pair.target))
        maybe_reason = pair.maybe_fault or find_fault(source, target, config)
        if maybe_reason is None and config.drop_duplicates:
            digest = hash_pair(source, target)
            maybe_reason = "duplicate" if digest in seen else None
            seen.add(digest)
        if maybe_reason is not None:
            report.count(maybe_reason, pair.line)
            continue
        report.kept += 1
        yield Pair(source, target, pair.line)


def find_fault(source: str, target: str, config: CleaningConfig) -> Reason | None:
    """The first reason for which a pair is not fit for training, if there is one."""
    if is_blank(source) or is_blank(target):
        return "empty"
    if config.drop_control_characters and (CONTROL_CHARACTERS.search(source) or CONTROL_CHARACTERS.search(target)):
        return "control"
    longest, shortest = max(len(source), len(target)), min(len(source), len(target))
    if longest > config.max_characters:
        return "too_long"
    if config.max_ratio and longest > config.max_ratio * shortest:
        return "ratio"
    return None


def hash_pair(source: str, target: str) -> int:
    """A hash of both sides that is the same on every machine."""
    # No text holds a line feed, so the two sides cannot be cut in two ways.
    return int.from_bytes(blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), "little")
