"""Subwords cut by chance: BPE-dropout (Provilkov et al., 2020) and unigram sampling (Kudo, 2018).

In: texts as SentencePiece sees them but with plain spaces, and the pieces of a model with their scores. Out: ids.

SentencePiece samples from a generator of its own whose draws differ from process to process even under one seed, so
that a resumed run would not be the same run. Here every draw comes from a `random.Random` made for the call, one draw
after the other in the order of the text; what is remembered between calls saves work but never changes a draw.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import exp, log
from typing import Literal

from malmoi.text.ids import SPACE_SYMBOL

MAX_REMEMBERED = 1 << 18
"""So many spans and ways of cutting are held before all are forgotten; less than 50 MB."""
MAX_REMEMBERED_CHARACTERS = 24
"""A longer word (a whole line where nobody writes spaces) hardly comes again, nor the same way of cutting it."""
UNKNOWN_PENALTY = 10.0
"""A character without a piece scores so much less than the worst piece, as SentencePiece has it."""

Cuts = tuple[tuple[tuple[float, ...], tuple[int, ...], tuple[tuple[int, ...], ...]], ...]
"""For each place in a word the pieces that start there: summed weights, ends, ids."""
Drop = Callable[[], bool]
"""Whether the merge that comes up is left out."""


@dataclass(frozen=True)
class Pieces:
    """What a model tells about its vocabulary."""

    ids: Mapping[str, int]
    """Pieces of text alone: neither bytes nor control symbols."""
    scores: Mapping[str, float]
    """Logarithms of probabilities, or the rank of a merge as a number that falls."""
    byte_ids: Sequence[int]
    """The ids of the 256 bytes."""

    def fallback(self, symbol: str) -> tuple[int, ...]:
        """Ids of a piece, or of its bytes where the vocabulary lacks it."""
        maybe_id = self.ids.get(symbol)
        return tuple(self.byte_ids[byte] for byte in symbol.encode("utf-8")) if maybe_id is None else (maybe_id,)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest piece."""
        return max(map(len, self.ids), default=1)

    @cached_property
    def unknown_score(self) -> float:
        """Score of a character that has no piece."""
        return min(self.scores.values(), default=0.0) - UNKNOWN_PENALTY

    @cached_property
    def cross_words(self) -> bool:
        """Whether some piece reaches beyond a word; none does in a model trained here."""
        return any(SPACE_SYMBOL in piece[1:] for piece in self.ids)


class MergedWord:
    """A word that comes again: its spans, and the ids of each way of cutting it that came up so far.

    A span is a part of two characters or more that is a piece. It is held as bits, where bit k stands for the place
    before character k: those of its two ends, and those of all places inside. Spans are in the order in which they
    would be merged: best score first, then from the left.
    """

    __slots__ = ("back", "ids", "size", "spans")

    def __init__(self, word: str, pieces: Pieces) -> None:
        found = find_spans(word, pieces)
        self.size = len(word)
        self.spans = [(1 << first | 1 << last, (1 << last) - (2 << first)) for first, last in found]
        self.back = find_ways_back(found)
        self.ids: dict[int, tuple[int, ...]] = {}

    def cut(self, alpha: float, draw: Callable[[], float]) -> int:
        """A way of cutting, as the bits of the places where symbols start or end; the draws are those of `merge`.

        A merge can bring up only spans that share an end with it. Where these all come later, as is the rule, one walk
        over the spans does it.
        """
        if self.back:
            return self.cut_with_ways_back(alpha, draw)
        bounds = (2 << self.size) - 1
        for ends, inside in self.spans:
            if bounds & ends == ends:
                bound = bounds & inside
                # Two symbols have one bound between them.
                if bound and not bound & (bound - 1) and draw() >= alpha:
                    bounds ^= bound
        return bounds

    def cut_with_ways_back(self, alpha: float, draw: Callable[[], float]) -> int:
        """The same for a word with a piece that has a better score than a part of it."""
        bounds, number = (2 << self.size) - 1, 0
        left_out: set[tuple[int, int]] = set()
        while number < len(self.spans):
            ends, inside = self.spans[number]
            bound = bounds & inside if bounds & ends == ends else 0
            if bound and not bound & (bound - 1) and (number, bound) not in left_out:
                if draw() >= alpha:
                    bounds ^= bound
                    number = self.back.get(number, number + 1)
                    continue
                left_out.add((number, bound))
            number += 1
        return bounds


def find_spans(word: str, pieces: Pieces) -> list[tuple[int, int]]:
    """Start and end of all parts of a word, of two characters or more, that are pieces, in the order of merging."""
    scores, size, longest = pieces.scores, len(word), pieces.longest
    found = sorted(
        (-scores[part], first, last)
        for first in range(size - 1)
        for last in range(first + 2, min(size, first + longest) + 1)
        if (part := word[first:last]) in scores
    )
    return [(first, last) for _, first, last in found]


def find_ways_back(spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """By number of span, where merging it may bring up an earlier one that is longer at one end: the first of these."""
    back: dict[int, int] = {}
    furthest_end: dict[int, int] = {}
    furthest_start: dict[int, int] = {}
    for number, (first, last) in enumerate(spans):
        if furthest_end.get(first, 0) > last or furthest_start.get(last, first) < first:
            back[number] = next(
                place
                for place, (start, end) in enumerate(spans)
                if (start == first and end > last) or (end == last and start < first)
            )
        furthest_end[first] = max(last, furthest_end.get(first, 0))
        furthest_start[last] = min(first, furthest_start.get(last, first))
    return back


def ids_of_cut(word: str, bounds: int, pieces: Pieces) -> tuple[int, ...]:
    """The ids of the symbols between the bounds."""
    places = [place for place in range(len(word) + 1) if bounds >> place & 1]
    return tuple(index for first, last in pairwise(places) for index in pieces.fallback(word[first:last]))


class SubwordSampler:
    """Draws ways of cutting texts into pieces.

    May be shared by threads: what is remembered is complete before it is stored, and no draw depends on it.
    """

    def __init__(self, kind: Literal["bpe", "unigram"], pieces: Pieces) -> None:
        self._pieces = pieces
        self._add_word = self._add_merged if kind == "bpe" else self._add_walk
        self._merged: dict[str, MergedWord] = {}
        self._num_held = 0
        self._lattices: dict[tuple[str, float], Cuts] = {}

    def sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Ids of many texts: a function of the arguments alone, in every process."""
        draw = random.Random(seed).random
        rows: list[list[int]] = []
        for text in texts:
            row: list[int] = []
            # Each word starts with its space, and a text with one that decoding takes away.
            for word in self._words(text):
                self._add_word(row, word, alpha, draw)
            rows.append(row)
        return rows

    def _words(self, text: str) -> Sequence[str]:
        if not text:
            return ()
        return (text,) if self._pieces.cross_words else text.split(" ")

    def _add_merged(self, row: list[int], word: str, alpha: float, draw: Callable[[], float]) -> None:
        """Add a word by BPE-dropout: one draw for each merge that comes up, best first."""
        if len(word) > MAX_REMEMBERED_CHARACTERS:
            row.extend(merge(as_symbols(word), self._pieces, lambda: draw() < alpha))
            return
        known = self._merged.get(word) or self._remember(word)
        bounds = known.cut(alpha, draw)
        maybe_ids = known.ids.get(bounds)
        if maybe_ids is None:
            maybe_ids = known.ids[bounds] = ids_of_cut(as_symbols(word), bounds, self._pieces)
            self._num_held += 1
        row.extend(maybe_ids)

    def _remember(self, word: str) -> MergedWord:
        if self._num_held >= MAX_REMEMBERED:
            # Another thread keeps the word that it is at.
            self._merged, self._num_held = {}, 0
        found = self._merged[word] = MergedWord(as_symbols(word), self._pieces)
        self._num_held += 1 + len(found.spans)
        return found

    def _add_walk(self, row: list[int], word: str, alpha: float, draw: Callable[[], float]) -> None:
        """Add a word by a walk through its lattice; there is a draw wherever there is a choice."""
        cuts = self._lattice(word, alpha)
        place, end = 0, len(cuts)
        while place < end:
            sums, ends, ids = cuts[place]
            last = len(ends) - 1
            index = bisect_right(sums, draw() * sums[last], 0, last) if last else 0
            row.extend(ids[index])
            place = ends[index]

    def _lattice(self, word: str, alpha: float) -> Cuts:
        if len(word) > MAX_REMEMBERED_CHARACTERS:
            return lattice(as_symbols(word), self._pieces, alpha)
        key = (word, alpha)
        maybe_cuts = self._lattices.get(key)
        if maybe_cuts is None:
            maybe_cuts = lattice(as_symbols(word), self._pieces, alpha)
            # A lattice takes the room of several merged words.
            if len(self._lattices) >= MAX_REMEMBERED // 8:
                self._lattices.clear()
            self._lattices[key] = maybe_cuts
        return maybe_cuts


def as_symbols(word: str) -> str:
    """A word as the pieces spell it, its space in front."""
    return SPACE_SYMBOL + word.replace(" ", SPACE_SYMBOL)


def merge(word: str, pieces: Pieces, drop: Drop) -> tuple[int, ...]:
    """Merge neighbours from characters on, best score first, the left one of two that are equal.

    A candidate is a pair that still stands when its turn comes; it is asked about once, and one that is left out comes
    again only as part of another pair. Returns the ids. `MergedWord` does the same for words that come again.
    """
    symbols = list(word)
    size = len(symbols)
    scores = pieces.scores
    following, preceding = list(range(1, size + 1)), list(range(-1, size - 1))
    agenda = [
        (-scores[pair], left, left + 1, 2)
        for left, pair in enumerate(map(str.__add__, symbols, symbols[1:]))
        if pair in scores
    ]
    heapify(agenda)
    while agenda:
        _, left, right, length = heappop(agenda)
        # A symbol that was merged into its left neighbour is empty, one that took its right neighbour has grown.
        if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
            continue
        if drop():
            continue
        symbols[left] += symbols[right]
        symbols[right] = ""
        following[left] = after = following[right]
        if after < size:
            preceding[after] = left
        before = preceding[left]
        for first, second in ((before, left), (left, after)):
            if first >= 0 and second < size:
                pair = symbols[first] + symbols[second]
                if pair in scores:
                    heappush(agenda, (-scores[pair], first, second, len(pair)))
    return tuple(index for symbol in symbols if symbol for index in pieces.fallback(symbol))


def lattice(word: str, pieces: Pieces, alpha: float) -> Cuts:
    """Chances of all ways of cutting a word, with probabilities to the power `alpha`.

    Kudo (2018) sums from the front and draws from the end. Summed from the end and drawn from the front the chances are
    the same, and the ids come in order. Sums are kept as logarithms, since those of long words would vanish.
    """
    size = len(word)
    log_sums = [0.0] * (size + 1)
    cuts: list[tuple[tuple[float, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]] = []
    for start in range(size - 1, -1, -1):
        found = list(pieces_at(word, start, pieces))
        logs = [alpha * score + log_sums[end] for end, score, _ in found]
        highest = max(logs)
        total, sums = 0.0, list[float]()
        for value in logs:
            total += exp(value - highest)
            sums.append(total)
        log_sums[start] = highest + log(total)
        cuts.append((tuple(sums), tuple(end for end, _, _ in found), tuple(ids for _, _, ids in found)))
    return tuple(reversed(cuts))


def pieces_at(word: str, start: int, pieces: Pieces) -> Iterator[tuple[int, float, tuple[int, ...]]]:
    """End, score and ids of each piece that starts at a place, and of a single character in any case."""
    if word[start] not in pieces.ids:
        yield start + 1, pieces.unknown_score, pieces.fallback(word[start])
    for end in range(start + 1, min(len(word), start + pieces.longest) + 1):
        maybe_id = pieces.ids.get(word[start:end])
        if maybe_id is not None:
            yield end, pieces.scores[word[start:end]], (maybe_id,)
