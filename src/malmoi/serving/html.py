"""A translated run of HTML: its marks put where the words that they stood at have gone.

In: a run, its translation, and which words belong together. Out: HTML. What holds, whatever a model says:

* Every tag of the run is there once, to the letter, each inside of what it was in.
* Text is that of the translation, escaped; a space is added only beside a piece that is left alone.
* An element around whole sentences is around their whole translations. One around some words is around the words that
  the model made from them, from the first to the last; where attention says nothing, around words at the like place.
* Elements beside each other stay beside each other: where their words are mixed, the earlier one ends where the next
  begins.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import accumulate

from malmoi.serving.markup import Node, Run

Range = tuple[int, int]


@dataclass(frozen=True)
class Bounds:
    """For each of many things the least begin and the greatest end of what it has become."""

    begins: list[int]
    behinds: list[int]

    @classmethod
    def empty(cls, count: int) -> "Bounds":
        return cls([sys.maxsize] * count, [-1] * count)

    def widen(self, number: int, one: Range) -> None:
        """Let a range count, unless nothing is in it."""
        if one[0] < one[1]:
            self.begins[number] = min(self.begins[number], one[0])
            self.behinds[number] = max(self.behinds[number], one[1])

    def over(self, first: int, last: int) -> Range:
        """Begin and end of some beside each other; the end is before the begin where there are none.

        Marks stand at most `DEEPEST` deep in each other, so that all marks together look at each word that often.
        """
        return min(self.begins[first:last], default=sys.maxsize), max(self.behinds[first:last], default=-1)


@dataclass(frozen=True)
class Pairing:
    """Words of a text and of its translation, as ranges of characters, and which belong together.

    `sentences` are ranges of whole sentences in both; `pairs` are numbers of words, in the order of the translation.
    All are in the order of the source. What many marks ask for is made once.
    """

    source: tuple[Range, ...]
    target: tuple[Range, ...]
    pairs: tuple[tuple[int, int], ...]
    sentences: tuple[tuple[Range, Range], ...]

    @cached_property
    def begins(self) -> list[int]:
        """Where the words of the source begin."""
        return [begin for begin, _ in self.source]

    @cached_property
    def behinds(self) -> list[int]:
        """Where the words of the source end."""
        return [behind for _, behind in self.source]

    @cached_property
    def of_words(self) -> Bounds:
        """What each word of the source has become, from the first to the last of its words."""
        bounds = Bounds.empty(len(self.source))
        for source, target in self.pairs:
            bounds.widen(source, self.target[target])
        return bounds

    @cached_property
    def of_sentences(self) -> Bounds:
        """What each sentence has become."""
        bounds = Bounds.empty(len(self.sentences))
        for number, (_, target) in enumerate(self.sentences):
            bounds.widen(number, target)
        return bounds

    @cached_property
    def sentence_begins(self) -> list[int]:
        return [source[0] for source, _ in self.sentences]

    @cached_property
    def sentence_behinds(self) -> list[int]:
        return [source[1] for source, _ in self.sentences]

    @cached_property
    def last_words(self) -> list[int]:
        """The last word of the translation that belongs to each word of the source, or -1."""
        found = [-1] * len(self.source)
        for source, target in self.pairs:
            found[source] = max(found[source], target)
        return found

    @cached_property
    def last_so_far(self) -> list[int]:
        """The same for each word with all before it."""
        return list(accumulate(self.last_words, max))

    def wanted(self, start: int, end: int) -> Range:
        """Where in the translation the characters `start` to `end` of the source have gone."""
        first, last = bisect_right(self.behinds, start), bisect_left(self.begins, end)
        of_words = self.of_words.over(first, last)
        whole = bisect_left(self.sentence_begins, start), bisect_right(self.sentence_behinds, end)
        of_sentences = self.of_sentences.over(*whole)
        begin, behind = min(of_words[0], of_sentences[0]), max(of_words[1], of_sentences[1])
        if begin < behind:
            return begin, behind
        if first < last and self.target:
            return self.target[min(len(self.target) - 1, (first + last) * len(self.target) // (2 * len(self.source)))]
        place = self.place_of(start)
        return place, place

    def place_of(self, place: int) -> int:
        """Where something between two words of the source stands in the translation: behind what the word before it
        has become."""
        num_before = bisect_right(self.behinds, place)
        if not num_before:
            return self.target[0][0] if self.target else 0
        if num_before == len(self.source):
            return self.target[-1][1] if self.target else 0
        last = self.last_words[num_before - 1]
        last = self.last_so_far[num_before - 1] if last < 0 else last
        return self.target[last][1] if last >= 0 else (self.target[0][0] if self.target else 0)


def render(run: Run, target: str, pairing: Pairing) -> str:
    """The translation of a run with its marks."""
    return Renderer(run.text, target, pairing).inside(run.nodes, 0, len(target), (0, len(run.text)))


class Renderer:
    """One run on its way."""

    def __init__(self, source: str, target: str, pairing: Pairing) -> None:
        self.source = source
        self.target = target
        self.pairing = pairing
        # How many characters before each place are no white space.
        self.solid = list(accumulate((not character.isspace() for character in source), initial=0))

    def inside(self, nodes: Sequence[Node], start: int, end: int, of_source: Range) -> str:
        """Characters `start` to `end` of the translation with marks that all stand in there."""
        parts: list[str] = []
        place = start
        for node, first, behind in self.arrange(nodes, start, end, of_source):
            parts += [escape(self.target[place:first], quote=False), self.mark(node, first, behind)]
            place = behind
        return "".join([*parts, escape(self.target[place:end], quote=False)])

    def mark(self, node: Node, first: int, behind: int) -> str:
        """One mark with what it holds."""
        if not node.is_single:
            return f"{node.open}{self.inside(node.children, first, behind, (node.start, node.end))}{node.close}"
        # What is left alone often is a word of its own.
        source, target = self.source, self.target
        is_behind_space = node.start > 0 and source[node.start - 1].isspace()
        before = is_behind_space and first > 0 and not target[first - 1].isspace()
        after = source[node.start : node.start + 1].isspace() and not target[behind : behind + 1].isspace()
        return f"{' ' if before else ''}{node.open}{' ' if after and behind < len(self.target) else ''}"

    def arrange(self, nodes: Sequence[Node], start: int, end: int, of_source: Range) -> list[tuple[Node, int, int]]:
        """Marks beside each other in the order of the translation, each with its range; ranges do not overlap."""
        wanted: list[tuple[int, int, int, Node]] = []
        for number, node in enumerate(nodes):
            first, behind = self.range_of(node, start, end, of_source)
            wanted.append((first, behind, number, node))
        wanted.sort(key=lambda one: one[:3])
        found: list[tuple[Node, int, int]] = []
        cursor = start
        for number, (first, behind, _, node) in enumerate(wanted):
            first = max(first, cursor)
            behind = max(behind, first)
            if number + 1 < len(wanted) and first < wanted[number + 1][0] < behind:
                behind = self.trimmed(first, wanted[number + 1][0])
            found.append((node, first, behind))
            cursor = behind
        return found

    def range_of(self, node: Node, start: int, end: int, of_source: Range) -> Range:
        """The range that a mark wants, within what it stands in."""
        if node.start == node.end:
            place = min(max(self.place_of(node.start, start, end, of_source), start), end)
            return place, place
        first, behind = self.pairing.wanted(node.start, node.end)
        return min(max(first, start), end), min(max(behind, start), end)

    def place_of(self, place: int, start: int, end: int, of_source: Range) -> int:
        """Where something without words of its own goes; at an end of its surroundings it stays there."""
        num_before, num_after = place - of_source[0], of_source[1] - place
        is_whole = of_source == (0, len(self.source))
        if self.solid[of_source[0]] == self.solid[place]:
            # The space at the ends of a run is what it was.
            return start + num_before if is_whole else start
        if self.solid[place] == self.solid[of_source[1]]:
            return end - num_after if is_whole else end
        return self.pairing.place_of(place)

    def trimmed(self, first: int, behind: int) -> int:
        """The end of a range without the white space before it."""
        while behind > first and self.target[behind - 1].isspace():
            behind -= 1
        return behind
