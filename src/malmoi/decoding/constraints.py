"""Lexical constraints: phrases that must occur in an output.

In: phrases as ids. Out: for each row a state of an automaton that knows which phrases are still missing, and a rule
that holds back the end symbol until none is. How a beam makes room for them stands in `banks.py`. A state is a node of
a trie over all spellings (with the suffix links of Aho & Corasick, 1975, so that an occurrence is found wherever it
begins) and how often each phrase must still occur.

Letters: B sentences, R rows, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np

from malmoi.decoding.interface import Ids, Integers, Numbers, Phrase, Request

ROOT = 0


def spellings(phrase: Phrase) -> tuple[Ids, ...]:
    """A phrase as the tuple of its spellings, sorted, each once."""
    if phrase and not isinstance(phrase[0], int):
        return tuple(sorted(set(cast(tuple[Ids, ...], phrase))))
    return (cast(Ids, phrase),)


class PhraseAutomaton:
    """Follows the phrases of one request through an output, token by token.

    A state is a number; `START` before the first token. States are made as they are met, and remembered.
    """

    START = 0

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        counts = Counter(spellings(phrase) for phrase in phrases)
        self.phrases = tuple(counts)
        self.shortest = [min(len(spelling) for spelling in options) for options in self.phrases]
        self.children: list[dict[int, int]] = [{}]
        self.suffix = [ROOT]
        # For each node: phrases spelt out here, and for each phrase on the way the fewest tokens that it still takes.
        self.spelt: list[set[int]] = [set()]
        self.rest: list[dict[int, int]] = [{}]
        for number, options in enumerate(self.phrases):
            for spelling in options:
                self.add_spelling(number, spelling)
        self.link_suffixes()
        self.alphabet = sorted({token for options in self.phrases for spelling in options for token in spelling})
        self.states = [(ROOT, tuple(counts.values()))]
        self.numbers = {self.states[0]: self.START}
        self.steps: dict[tuple[int, int], int] = {}
        self.wanted_ids: dict[int, Ids] = {}

    def add_spelling(self, phrase: int, spelling: Ids) -> None:
        """One path of the trie."""
        node = ROOT
        for place, token in enumerate(spelling):
            if token not in self.children[node]:
                self.children[node][token] = len(self.children)
                self.children.append({})
                self.suffix.append(ROOT)
                self.spelt.append(set())
                self.rest.append({})
            node = self.children[node][token]
            rest = len(spelling) - place - 1
            if rest:
                self.rest[node][phrase] = min(rest, self.rest[node].get(phrase, rest))
        self.spelt[node].add(phrase)

    def link_suffixes(self) -> None:
        """Each node learns of its longest proper suffix in the trie, and of what is spelt out or begun there."""
        nodes = list(self.children[ROOT].values())
        for node in nodes:
            for token, child in self.children[node].items():
                nodes.append(child)
                suffix = self.follow(self.suffix[node], token)
                self.suffix[child] = suffix
                self.spelt[child] |= self.spelt[suffix]
                for phrase, rest in self.rest[suffix].items():
                    self.rest[child][phrase] = min(rest, self.rest[child].get(phrase, rest))

    def follow(self, node: int, token: int) -> int:
        """The node of the longest suffix in the trie after one more token."""
        while token not in self.children[node]:
            if node == ROOT:
                return ROOT
            node = self.suffix[node]
        return self.children[node][token]

    def advance(self, state: int, token: int) -> int:
        """The state after one more token."""
        known = self.steps.get((state, token))
        if known is not None:
            return known
        node, left = self.states[state]
        node = self.follow(node, token)
        left = tuple(count - (count > 0 and phrase in self.spelt[node]) for phrase, count in enumerate(left))
        number = self.numbers.setdefault((node, left), len(self.states))
        if number == len(self.states):
            self.states.append((node, left))
        self.steps[state, token] = number
        return number

    def num_missing(self, state: int) -> int:
        """How many phrases must still occur; 0 when all is done."""
        return sum(self.states[state][1])

    def num_missing_tokens(self, state: int) -> int:
        """Tokens of the missing phrases in their shortest spelling, less what the last tokens have begun."""
        node, left = self.states[state]
        missing = sum(count * size for count, size in zip(left, self.shortest, strict=True))
        begun = [self.shortest[phrase] - rest for phrase, rest in self.rest[node].items() if left[phrase]]
        return missing - max([0, *begun])

    def wanted(self, state: int) -> Ids:
        """Tokens that leave fewer tokens missing; there is one in every state that is not done."""
        if state not in self.wanted_ids:
            missing = self.num_missing_tokens(state)
            steps = [(token, self.advance(state, token)) for token in self.alphabet]
            self.wanted_ids[state] = tuple(token for token, to in steps if self.num_missing_tokens(to) < missing)
        return self.wanted_ids[state]


@dataclass(frozen=True)
class Constraints:
    """The rule: no end symbol before every phrase has occurred. Rows without constraints have no automaton."""

    end_id: int
    automata_R: tuple[PhraseAutomaton | None, ...] = ()
    states_R: tuple[int, ...] = ()
    active: bool = False

    def start(self, requests: Sequence[Request], width: int) -> Self:
        automata = [PhraseAutomaton(request.constraints) if request.constraints else None for request in requests]
        rows = tuple(automaton for automaton in automata for _ in range(width))
        return replace(self, automata_R=rows, states_R=(PhraseAutomaton.START,) * len(rows), active=any(automata))

    def apply(self, log_probs_RV: Numbers) -> None:
        rows = [row for row in range(len(self.states_R)) if self.num_missing(row)] if self.active else []
        if rows:
            log_probs_RV[rows, self.end_id] = -np.inf

    def num_missing(self, row: int) -> int:
        """How many phrases the output of a row still lacks."""
        automaton = self.automata_R[row]
        return automaton.num_missing(self.states_R[row]) if automaton else 0

    def num_missing_after(self, row: int, maybe_token: int | None) -> int:
        """How many phrases the output of a row still lacks, after one more token or as it is."""
        automaton = self.automata_R[row]
        if automaton is None:
            return 0
        state = self.states_R[row]
        return automaton.num_missing(state if maybe_token is None else automaton.advance(state, maybe_token))

    def num_missing_tokens_after(self, row: int, token: int) -> int:
        """Tokens of phrases that the output of a row, which has constraints, would still lack after one more token."""
        automaton = self.automata_R[row]
        assert automaton is not None
        state = self.states_R[row]
        return automaton.num_missing_tokens(automaton.advance(state, token))

    def wanted(self, row: int) -> Ids:
        """Tokens that bring a row nearer to its phrases."""
        automaton = self.automata_R[row]
        return automaton.wanted(self.states_R[row]) if automaton else ()

    def select(self, rows: Integers) -> Self:
        if not self.active:
            if len(rows) == len(self.states_R):
                return self
            return replace(self, automata_R=(None,) * len(rows), states_R=(PhraseAutomaton.START,) * len(rows))
        numbers: list[int] = rows.tolist()
        automata = tuple(self.automata_R[row] for row in numbers)
        states = tuple(self.states_R[row] for row in numbers)
        return replace(self, automata_R=automata, states_R=states, active=any(automata))

    def advance(self, ids: Integers) -> Self:
        if not self.active:
            return self
        rows = zip(self.automata_R, self.states_R, cast(list[int], ids.tolist()), strict=True)
        states = tuple(automaton.advance(state, token) if automaton else state for automaton, state, token in rows)
        return replace(self, states_R=states)

    def append(self, other: Self) -> Self:
        return replace(
            self,
            automata_R=self.automata_R + other.automata_R,
            states_R=self.states_R + other.states_R,
            active=self.active or other.active,
        )
