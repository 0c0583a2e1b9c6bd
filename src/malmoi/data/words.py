"""BPE of much text, fast: each different word is encoded once.

In: normalised texts. Out: the ids that the tokeniser gives, in one array.

No piece of our BPE holds a space but as its first character, and merges are chosen inside of pieces-to-be alone, so the
ids of a text are those of its words, one after the other. Texts for which that is not plain (more than one space in a
row, characters that are left out, line breaks) go through the tokeniser as a whole.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from malmoi.data.store import IntArray, id_type
from malmoi.text.ids import SPACE_SYMBOL
from malmoi.text.tokenizer import Tokenizer

EncodeRows: TypeAlias = Callable[[Sequence[str]], list[list[int]]]

# So many words stay in the table, the first ones seen, among which are the frequent ones; they and their ids take about
# 30 MB. Later words stay for one call.
MAX_WORDS = 100_000
# A longer word is rare enough to be encoded each time.
MAX_WORD_CHARACTERS = 40
BREAKING = ("\n", "\r", "\0")


class WordTable:
    """Ids of the words seen so far by one tokeniser."""

    def __init__(self, tokenizer: Tokenizer, encode_rows: EncodeRows, refused: Collection[int] = ()) -> None:
        """`encode_rows` gives the ids of whole texts; it alone decides where a word has one of the `refused` ids."""
        assert can_use_words(tokenizer)
        self.tokenizer = tokenizer
        self.encode_rows = encode_rows
        self.refused = frozenset(refused)
        self.numbers: dict[str, int] = {}
        self.latest: list[str] = []
        self.ids: IntArray = np.empty(0, dtype=id_type(tokenizer.size))
        self.lengths: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.starts: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.is_plain: npt.NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    def encode(self, texts: Sequence[str]) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Ids of all texts in a row and the length of each; each text is followed by the end symbol."""
        if not texts:
            return self.ids[:0], self.lengths[:0]
        words = " ".join(texts).split(" ")
        numbers = self.look_up(words)
        num_words = np.fromiter((text.count(" ") for text in texts), dtype=np.int64, count=len(texts)) + 1
        first_words = np.cumsum(num_words) - num_words
        is_plain = np.logical_and.reduceat(self.is_plain[numbers], first_words)
        # Words of other texts are not taken from the table.
        numbers = numbers[np.repeat(is_plain, num_words)]
        others = self.encode_rows([texts[row] for row in np.flatnonzero(~is_plain).tolist()])
        word_lengths = self.lengths[numbers]
        before = np.cumsum(word_lengths) - word_lengths
        places = np.repeat(self.starts[numbers] - before, word_lengths) + np.arange(int(word_lengths.sum()))
        lengths = np.empty(len(texts), dtype=np.int32)
        owners = np.repeat(np.arange(len(texts))[is_plain], num_words[is_plain])
        lengths[is_plain] = np.bincount(owners, weights=word_lengths, minlength=len(texts))[is_plain] + 1
        lengths[~is_plain] = [len(row) + 1 for row in others]
        ids = np.full(int(lengths.sum()), self.tokenizer.end_id, dtype=self.ids.dtype)
        is_text = np.ones(len(ids), dtype=np.bool_)
        is_text[np.cumsum(lengths) - 1] = False
        from_table = np.repeat(is_plain, lengths)
        ids[is_text & from_table] = self.ids[places]
        ids[is_text & ~from_table] = np.fromiter(chain.from_iterable(others), dtype=self.ids.dtype)
        return ids, lengths

    def look_up(self, words: list[str]) -> npt.NDArray[np.int32]:
        """The numbers of words, all of which are in the table until the next call."""
        self.forget_surplus()
        found = list(map(self.numbers.get, words))
        if None in found:
            places = [place for place, number in enumerate(found) if number is None]
            self.add(list(dict.fromkeys(words[place] for place in places)))
            for place in places:
                found[place] = self.numbers[words[place]]
        return np.array(found, dtype=np.int32)

    def forget_surplus(self) -> None:
        """Drop what the last call added above the limit."""
        if len(self.numbers) > MAX_WORDS:
            for word in self.latest[MAX_WORDS - len(self.numbers) :]:
                del self.numbers[word]
            self.ids = self.ids[: self.starts[MAX_WORDS]]
            self.lengths, self.starts = self.lengths[:MAX_WORDS], self.starts[:MAX_WORDS]
            self.is_plain = self.is_plain[:MAX_WORDS]

    def add(self, words: list[str]) -> None:
        """Encode words that are not yet in the table."""
        short = [word if len(word) <= MAX_WORD_CHARACTERS else "" for word in words]
        rows = self.tokenizer.encode_batch(short)
        lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
        plain = (
            bool(row) and self.refused.isdisjoint(row) and not any(character in word for character in BREAKING)
            for word, row in zip(short, rows, strict=True)
        )
        self.starts = np.concatenate([self.starts, len(self.ids) + np.cumsum(lengths, dtype=np.int32) - lengths])
        self.lengths = np.concatenate([self.lengths, lengths])
        self.is_plain = np.concatenate([self.is_plain, np.fromiter(plain, dtype=np.bool_, count=len(rows))])
        new_ids = np.fromiter(chain.from_iterable(rows), dtype=self.ids.dtype, count=int(lengths.sum()))
        self.ids = np.concatenate([self.ids, new_ids])
        self.numbers.update(zip(words, range(len(self.numbers), len(self.numbers) + len(words)), strict=True))
        self.latest = words


def can_use_words(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words in a row."""
    if tokenizer.kind != "bpe":
        return False
    return not any(SPACE_SYMBOL in piece[1:] for piece in tokenizer.pieces(range(tokenizer.size)))
