"""From a corpus to a store, and what can be learnt from a corpus at a glance.

In: corpora, cleaning rules, tokenisers. Out: stores on disk; facts and a sample of text for those who choose settings.
Everything streams: memory does not grow with the corpus, beyond a sample of bounded size.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from malmoi.config.text import CleaningConfig
from malmoi.data.encoding import Chunk, Encoded, encode_in_order
from malmoi.data.inputs import check_inputs, record_inputs
from malmoi.data.store import (
    MANIFEST,
    FileRecord,
    InputRecord,
    Store,
    StoreWriter,
    hash_json,
    read_manifest,
)
from malmoi.errors import DataError
from malmoi.files import hash_bytes
from malmoi.log import get_logger
from malmoi.text.cleaning import CleaningReport, clean_pairs
from malmoi.text.corpus import Corpus, Pair
from malmoi.text.tokenizer import Tokenizers

Progress: TypeAlias = Callable[[int], None]
"""Called now and then with the number of clean pairs done so far."""

# A chunk ends at whichever comes first, so that long lines do not make huge chunks.
CHUNK_PAIRS = 4000
CHUNK_CHARACTERS = 1_000_000
# Bounds of the sample of text: what vocabularies are learned from, and all that grows in memory.
SAMPLE_PAIRS = 500_000
SAMPLE_CHARACTERS = 60_000_000
# What is left of the sample each time it is thinned out.
SAMPLE_SHARE = 0.9
PROGRESS_PAIRS = 10_000
IDS_AT_ONCE = 1 << 22
# A side of at most so many different words, each seen so often on average, is a code of symbols, not a language.
SYMBOL_WORDS = 500
SYMBOL_REPEATS = 20
# Different words are counted up to here.
DISTINCT_WORDS = 50_000


def build_store(
    corpus: Corpus,
    tokenizers: Tokenizers,
    cleaning: CleaningConfig,
    folder: Path,
    *,
    workers: int = 0,
    maybe_inputs: dict[str, InputRecord] | None = None,
    progress: Progress | None = None,
    chunk_pairs: int = CHUNK_PAIRS,
) -> Store:
    """Tokenise a corpus into `folder`, or reuse what stands there if nothing that decides its content changed.

    workers: processes that tokenise beside this one; 0 tokenises here.
    maybe_inputs: what `record_inputs` says of the corpus' files, where that is known already.
    Pairs with a side above `cleaning.max_tokens` are dropped and counted as too long.
    Raises DataError for bad input, input that changes meanwhile, a damaged store of the same content, a folder that
    holds something else, a lost worker or a full disk; nothing half-made stays under the folder's name.
    """
    inputs = record_inputs(corpus.files) if maybe_inputs is None else maybe_inputs
    key = store_key(corpus, inputs, tokenizers, cleaning)
    if folder.exists():
        if not (folder / MANIFEST).exists():
            raise DataError(f"{folder}: is there already and is not a store; choose another name or remove it")
        if read_manifest(folder).key == key:
            get_logger().info("%s: unchanged, using the tokenised pairs in %s", corpus.description, folder)
            return Store.open(folder, weight=corpus.weight)
        get_logger().info("%s: data or settings changed, tokenising anew", corpus.description)
    report = CleaningReport()
    chunks = cut_chunks(clean_pairs(corpus.pairs(), cleaning, report), chunk_pairs)
    with StoreWriter(folder, tokenizers.source.size, tokenizers.target.size) as writer:
        num_done = 0
        for chunk, encoded in encode_in_order(chunks, tokenizers, workers):
            write_chunk(writer, chunk, encoded, cleaning.max_tokens, report)
            num_done += len(chunk)
            if progress is not None:
                progress(num_done)
        check_inputs(inputs, "it was written to while it was read: start again once it stays as it is")
        report.kept = writer.num_pairs
        writer.finish(
            key=key,
            description=corpus.description,
            inputs=inputs,
            tokenizers=hash_tokenizers(tokenizers),
            weight=corpus.weight,
            cleaning=report.to_json(),
        )
    for line in report.lines(cleaning):
        get_logger().info("%s: %s", corpus.description, line)
    # Just written and hashed on the way: reading it all again would prove nothing.
    return Store.open(folder, weight=corpus.weight, verify=False)


def store_key(
    corpus: Corpus, inputs: Mapping[str, FileRecord], tokenizers: Tokenizers, cleaning: CleaningConfig
) -> str:
    """Hash of all that decides what a store holds."""
    return hash_json(
        {
            # Not their names: standard input has another temporary one each time.
            "inputs": [record.hash for record in inputs.values()],
            "corpus": corpus.description,
            "cleaning": cleaning.model_dump(mode="json"),
            "tokenizers": hash_tokenizers(tokenizers),
            "part": corpus.part,
        }
    )


def hash_tokenizers(tokenizers: Tokenizers) -> str:
    """Hash of all that decides which ids a text gets."""
    sides = {
        side: {name: hash_bytes(content) for name, content in tokenizer.to_files().items()} | {"": tokenizer.kind}
        for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target))
    }
    return hash_json({"sides": sides, "unseen": list(tokenizers.unseen_source_ids)})


def cut_chunks(pairs: Iterable[Pair], chunk_pairs: int = CHUNK_PAIRS) -> Iterator[Chunk]:
    """Pairs in order, in lists of bounded size."""
    chunk: Chunk = []
    num_characters = 0
    for pair in pairs:
        chunk.append(pair)
        num_characters += len(pair.source) + len(pair.target)
        if len(chunk) == chunk_pairs or num_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


def source_ids_in(stores: Sequence[Store]) -> frozenset[int]:
    """The ids that occur in any source."""
    size = max(store.manifest.source_vocabulary_size for store in stores)
    is_there = np.zeros(size, dtype=np.bool_)
    for store in stores:
        for first in range(0, len(store.source_ids), IDS_AT_ONCE):
            is_there[store.source_ids[first : first + IDS_AT_ONCE]] = True
    return frozenset(np.flatnonzero(is_there).tolist())


def write_chunk(writer: StoreWriter, chunk: Chunk, encoded: Encoded, max_tokens: int, report: CleaningReport) -> None:
    """Store the pairs of a chunk, but for those with too many tokens."""
    lines = np.fromiter((pair.line for pair in chunk), dtype=np.int64, count=len(chunk))
    fits = np.maximum(encoded.source_lengths, encoded.target_lengths) <= max_tokens
    for line in lines[~fits]:
        report.count("too_long", int(line))
    writer.add(
        encoded.source_ids[np.repeat(fits, encoded.source_lengths)],
        encoded.source_lengths[fits],
        encoded.target_ids[np.repeat(fits, encoded.target_lengths)],
        encoded.target_lengths[fits],
        lines[fits],
    )


@dataclass
class SideFacts:
    """What one side of the pairs looks like."""

    mean_characters: float = 0.0
    median_characters: int = 0
    long_characters: int = 0
    """99 of 100 texts are at most this long."""
    max_characters: int = 0
    mean_words: float = 0.0
    """White-space separated words per text."""
    distinct_words: int = 0
    """Counting stops at 50,000."""
    single_words: float = 0.0
    """Share of texts without white space inside."""

    @property
    def is_words(self) -> bool:
        """Single words rather than sentences: 19 of 20 texts are without white space, 99 of 100 are short."""
        return self.single_words >= 0.95 and self.long_characters <= 30

    is_symbols: bool = False
    """Sequences of symbols from a small set (phonemes, tags, letters with spaces between) rather than language."""


@dataclass
class Facts:
    """What zero configuration decides from."""

    num_pairs: int
    source: SideFacts
    target: SideFacts


class Scan(NamedTuple):
    """What one look through the corpora gives."""

    facts: Facts
    sources: list[str]
    targets: list[str]
    report: CleaningReport


def scan(
    corpora: Sequence[Corpus],
    cleaning: CleaningConfig,
    *,
    seed: int = 1,
    progress: Progress | None = None,
    sample_pairs: int = SAMPLE_PAIRS,
    sample_characters: int = SAMPLE_CHARACTERS,
) -> Scan:
    """Facts about the clean pairs, and a sample of them drawn by `seed`, in corpus order.

    All pairs are sampled if they are within the bounds, which are counts of pairs and of characters. The report
    counts over all corpora together; the one of each store tells about its own corpus.
    """
    report = CleaningReport()
    source, target, sample = Side(), Side(), Sample(seed, sample_pairs, sample_characters)
    num_pairs = 0
    for corpus in corpora:
        for pair in clean_pairs(corpus.pairs(), cleaning, report):
            num_pairs += 1
            source.add(pair.source)
            target.add(pair.target)
            sample.add(pair.source, pair.target)
            if progress is not None and num_pairs % PROGRESS_PAIRS == 0:
                progress(num_pairs)
    if progress is not None:
        progress(num_pairs)
    return Scan(Facts(num_pairs, source.facts(), target.facts()), sample.sources, sample.targets, report)


@dataclass
class Side:
    """Counts of one side while its texts pass by."""

    words: set[str] = field(default_factory=set[str])
    lengths: Counter[int] = field(default_factory=Counter[int])
    num_words: int = 0
    num_single: int = 0

    def add(self, text: str) -> None:
        self.lengths[len(text)] += 1
        words = text.split()
        self.num_words += len(words)
        self.num_single += len(words) == 1
        if len(self.words) < DISTINCT_WORDS:
            self.words.update(words)

    def facts(self) -> SideFacts:
        num_texts = self.lengths.total()
        if not num_texts:
            return SideFacts()
        repeats = self.num_words / max(1, len(self.words))
        return SideFacts(
            mean_characters=sum(length * count for length, count in self.lengths.items()) / num_texts,
            median_characters=self.percentile(0.5),
            long_characters=self.percentile(0.99),
            max_characters=max(self.lengths),
            mean_words=self.num_words / num_texts,
            distinct_words=min(len(self.words), DISTINCT_WORDS),
            single_words=self.num_single / num_texts,
            is_symbols=self.num_words >= 2 * num_texts
            and len(self.words) <= SYMBOL_WORDS
            and repeats >= SYMBOL_REPEATS,
        )

    def percentile(self, share: float) -> int:
        """The smallest length that this share of the texts does not exceed."""
        remaining = share * self.lengths.total()
        for length in sorted(self.lengths):
            remaining -= self.lengths[length]
            if remaining <= 0:
                return length
        return max(self.lengths)


class Sample:
    """A sample of bounded size of pairs that pass by, each kept with the same chance.

    Every pair draws a number and stays as long as that is below a threshold, which is lowered when there are too many.
    """

    def __init__(self, seed: int, max_pairs: int, max_characters: int) -> None:
        self.draw = random.Random(seed).random
        self.max_pairs = max_pairs
        self.max_characters = max_characters
        self.threshold = 1.0
        self.draws: list[float] = []
        self.sources: list[str] = []
        self.targets: list[str] = []
        self.num_characters = 0

    def add(self, source: str, target: str) -> None:
        draw = self.draw()
        if draw >= self.threshold:
            return
        self.draws.append(draw)
        self.sources.append(source)
        self.targets.append(target)
        self.num_characters += len(source) + len(target)
        while len(self.draws) > self.max_pairs or (self.num_characters > self.max_characters and len(self.draws) > 1):
            self.thin_out()

    def thin_out(self) -> None:
        self.threshold *= SAMPLE_SHARE
        kept = [draw < self.threshold for draw in self.draws]
        self.draws = list(compress(self.draws, kept))
        self.sources = list(compress(self.sources, kept))
        self.targets = list(compress(self.targets, kept))
        self.num_characters = sum(map(len, self.sources)) + sum(map(len, self.targets))
