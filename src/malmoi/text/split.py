"""Which sentences are held out for validation when the user gives none.

In: a corpus, a seed, a share. Out: two corpora, told apart by the source's hash alone, so that the same source never
stands on both sides, in whatever order, case or spacing it comes, cleaned or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from malmoi.text.corpus import Corpus, Pair
from malmoi.text.lines import normalize, one_line


def held_out(source: str, seed: int, share: float) -> bool:
    """Whether pairs with this source are held out; `share` is the expected part of different sources, in [0, 1]."""
    digest = blake2b(f"{seed}\n{source_key(source)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def source_key(source: str) -> str:
    """What is the same for sources that count as one: spacing, case and the way characters are composed do not."""
    return " ".join(normalize(normalize(one_line(source)).casefold()).split())


@dataclass
class Split:
    """What is trained on and what is held out of one corpus.

    Reading the one remembers the other, which is small, so that both together take one pass over the files.
    """

    corpus: Corpus
    seed: int
    share: float
    maybe_held: list[Pair] | None = None
    """The pairs that are held out, once the rest was read to its end."""

    def rest(self) -> Corpus:
        """What is trained on."""
        return replace(self.corpus, pairs=self.read_rest, part=self.name("not held out"))

    def held(self) -> Corpus:
        """What is held out."""
        return replace(self.corpus, pairs=self.read_held, part=self.name("held out"))

    def name(self, part: str) -> str:
        """A part, beside what set the corpus apart before."""
        words = f"{part}, share {self.share!r} seed {self.seed}"
        return f"{self.corpus.part}; {words}" if self.corpus.part else words

    def is_held_out(self, pair: Pair) -> bool:
        # Cleaning drops a pair without a source and tells of it: once, among those that are trained on.
        return bool(pair.source.strip()) and held_out(pair.source, self.seed, self.share)

    def read_rest(self) -> Iterator[Pair]:
        held: list[Pair] = []
        for pair in self.corpus.pairs():
            if self.is_held_out(pair):
                held.append(pair)
            else:
                yield pair
        self.maybe_held = held

    def read_held(self) -> Iterator[Pair]:
        return filter(self.is_held_out, self.corpus.pairs()) if self.maybe_held is None else iter(self.maybe_held)
