"""The text that all contestants train on: a folder of tokenised files, or a generated stand-in.

In: a folder with `train.en`, `train.de`, `valid.en`, `valid.de` (other endings by `--languages`), or nothing. Out: a
`Corpus`. Needs NumPy.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from peers.setting import Corpus

NUM_WORDS, NUM_PAIRS, NUM_VALID = 10_000, 29_000, 1_000
MEAN_TOKENS, SPREAD = 14.0, 4.5
"""Roughly what subwords of Multi30k have."""


def open_corpus(maybe_folder: Path | None, languages: tuple[str, str], workspace: Path, seed: int) -> Corpus:
    """The corpus, with its vocabulary written into the workspace."""
    folder = maybe_folder or generate(workspace / "generated", languages, seed)
    source, target = (folder / f"train.{language}" for language in languages)
    words: Counter[str] = Counter()
    pairs = [0, 0]
    target_words = 0
    for side, path in enumerate((source, target)):
        for line in path.read_text(encoding="utf-8").splitlines():
            tokens = line.split()
            words.update(tokens)
            pairs[side] += 1
            target_words += side * (len(tokens) + 1)
    if pairs[0] != pairs[1]:
        raise SystemExit(f"{source} has {pairs[0]} lines, {target} has {pairs[1]}")
    workspace.mkdir(parents=True, exist_ok=True)
    vocabulary = workspace / "vocabulary.txt"
    vocabulary.write_text("".join(f"{word}\n" for word, _ in words.most_common()), encoding="utf-8")
    name = f"{maybe_folder.name}, {languages[0]} to {languages[1]}" if maybe_folder else f"generated, seed {seed}"
    return Corpus(
        description=f"{name}: {pairs[0]:,} pairs, {target_words:,} target tokens, {len(words):,} words on both sides",
        train_source=source.absolute(),
        train_target=target.absolute(),
        valid_source=(folder / f"valid.{languages[0]}").absolute(),
        valid_target=(folder / f"valid.{languages[1]}").absolute(),
        vocabulary=vocabulary.absolute(),
        num_pairs=pairs[0],
        num_words=len(words),
        num_target_tokens=target_words,
    )


def generate(folder: Path, languages: tuple[str, str], seed: int) -> Path:
    """Sentences whose words follow Zipf's law; both sides of a pair are about as long as each other."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, NUM_WORDS + 1)
    limits = np.cumsum(chances / chances.sum())
    for part, count in (("train", NUM_PAIRS), ("valid", NUM_VALID)):
        lengths = np.clip(random.normal(MEAN_TOKENS, SPREAD, count).round(), 3, 60).astype(int)
        for language in languages:
            own = np.maximum(2, lengths + random.integers(-2, 3, count))
            drawn = np.minimum(np.searchsorted(limits, random.random(own.sum())), NUM_WORDS - 1).tolist()
            ends = np.cumsum(own).tolist()
            lines = (
                " ".join(f"w{word}" for word in drawn[start:end])
                for start, end in zip([0, *ends[:-1]], ends, strict=True)
            )
            (folder / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder
