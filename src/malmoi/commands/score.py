"""`malmoi score`: how likely a model finds given targets.

In: a model and pairs. Out: on standard output the log-probability (natural logarithm, end symbol included) of each
target, one line per pair, with `--tokens` followed by tab-separated `token log-probability`; or one JSON object per
pair with the keys line, log_probability, score, tokens, token_scores, notes, error.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

from malmoi.commands.results import write_json, write_line
from malmoi.config.training import Device
from malmoi.text.corpus import Pair, open_corpus, sources_from_words, whole_pairs
from malmoi.translate import WINDOW_LINES, PairScore, Translator


def run_score(model: Path, words: tuple[str, ...], *, tokens: bool, device: str, threads: int, as_json: bool) -> int:
    """Score every pair; 1 if the model could not take one (nan stands in its place), else 0."""
    corpora = [open_corpus(source) for source in sources_from_words(words, "DATA")]
    translator = Translator.load(model, device=cast(Device, device), threads=threads)
    num_failed = 0
    for number, score in enumerate(scores(translator, (pair for one in corpora for pair in whole_pairs(one))), start=1):
        num_failed += score.error is not None
        if as_json:
            write_json(
                {
                    "line": number,
                    "log_probability": None if score.error else score.log_probability,
                    "score": None if score.error else score.score,
                    "tokens": score.tokens,
                    "token_scores": score.token_scores,
                    "notes": score.notes,
                    "error": score.error,
                }
            )
        else:
            write_line(as_text(score, tokens=tokens))
    return 1 if num_failed else 0


def scores(translator: Translator, pairs: Iterator[Pair]) -> Iterator[PairScore]:
    """Scores in order, a window of pairs at a time."""
    while window := list(islice(pairs, WINDOW_LINES)):
        yield from translator.score([(pair.source, pair.target) for pair in window])


def as_text(score: PairScore, *, tokens: bool) -> str:
    """One line for people and scripts."""
    if score.error:
        return "nan"
    columns = [f"{score.log_probability:.6f}"]
    if tokens:
        columns += [f"{token} {value:.6f}" for token, value in zip(score.tokens, score.token_scores, strict=True)]
    return "\t".join(columns)
