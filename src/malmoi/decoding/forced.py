"""Forced scoring: what a scorer thinks of given outputs.

In: sources and targets as ids. Out: a `Hypothesis` per pair, scored by the same formula as a search, so that the score
of a search's output is found again. Networks read each target in one pass; a scorer that knows steps alone, and
attention where it is asked for, go step by step.

Letters: B pairs, S source places, T target tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.attention import AttentionRecord
from malmoi.decoding.interface import IMPOSSIBLE, Floats, Hypothesis, Ids, Integers, Scorer
from malmoi.decoding.scoring import Scoring
from malmoi.decoding.targets import step_through, target_log_probs
from malmoi.errors import CheckpointError, DataError


def force(
    scorer: Scorer,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    config: DecodingConfig | None = None,
    *,
    keep_attention: bool = False,
) -> list[Hypothesis]:
    """Scores of targets given their sources, in the order given.

    A target that ends with the end symbol is scored as finished, another one as cut. A token of probability 0 counts
    `IMPOSSIBLE`. `config` (default settings if left out) gives length and coverage penalty and the size of batches.
    Raises `DataError` for a target that no search could give, `ConfigError` where attention is needed and missing.
    """
    config = config or DecodingConfig()
    if len(sources) != len(targets):
        raise DataError(f"{len(sources)} sources cannot be scored with {len(targets)} targets")
    for number, target in enumerate(targets):
        check_target(target, number, scorer)
    hypotheses: dict[int, Hypothesis] = {}
    for batch in cut_batches(sources, targets, config.batch_tokens):
        pairs = [(sources[number], targets[number]) for number in batch]
        hypotheses.update(zip(batch, force_batch(scorer, pairs, config, keep_attention), strict=True))
    return [hypotheses[number] for number in range(len(targets))]


def cut_batches(sources: Sequence[Ids], targets: Sequence[Ids], budget: int) -> Iterator[list[int]]:
    """Numbers of pairs that are scored together: of like length, rows times the longest pair within the budget."""
    order = sorted(range(len(targets)), key=lambda number: (-len(targets[number]), -len(sources[number]), number))
    batch: list[int] = []
    longest = 0
    for number in order:
        length = len(sources[number]) + len(targets[number])
        longest = max(longest, length)
        if batch and (len(batch) + 1) * longest > budget:
            yield batch
            batch, longest = [], length
        batch.append(number)
    if batch:
        yield batch


def check_target(target: Ids, number: int, scorer: Scorer) -> None:
    """Refuse ids that are not in the vocabulary, an end symbol before the end, and more tokens than the model can."""
    wrong = [token for token in target if not 0 <= token < scorer.vocabulary_size]
    if wrong:
        raise DataError(f"target {number + 1}: {wrong[0]} is not an id of the vocabulary")
    if scorer.end_id in target[:-1]:
        raise DataError(f"target {number + 1}: the end symbol stands before the end")
    if scorer.max_steps is not None and len(target) > scorer.max_steps:
        raise DataError(f"target {number + 1}: {len(target)} tokens, but the model can make {scorer.max_steps} at most")


def force_batch(
    scorer: Scorer, pairs: Sequence[tuple[Ids, Ids]], config: DecodingConfig, keep_attention: bool
) -> list[Hypothesis]:
    """One batch; shorter targets go on with end symbols that nobody looks at."""
    scoring = Scoring.from_config(config)
    lengths = np.array([len(target) for _, target in pairs], dtype=np.int64)
    source_BS, source_lengths_B = pad_sources([source for source, _ in pairs], scorer)
    target_BT = pad([target for _, target in pairs], scorer.end_id)
    record = None
    coverage = np.zeros(len(pairs))
    if keep_attention or scoring.beta > 0:
        record = AttentionRecord.start(source_lengths_B, keep_attention)
        coverage = record.coverage(scoring)
        log_probs_BT = np.zeros(target_BT.shape)
        steps = step_through(scorer, source_BS, source_lengths_B, target_BT, keep_attention=True)
        for place, (log_probs_B, attention_BS) in enumerate(steps):
            log_probs_BT[:, place] = log_probs_B
            record = record.add(attention_BS, np.full(len(pairs), place))
            coverage = np.where(lengths > place, record.coverage(scoring), coverage)
    else:
        log_probs_BT = target_log_probs(scorer, source_BS, source_lengths_B, target_BT, lengths).astype(np.float64)
    return read_off(pairs, log_probs_BT, coverage, record, scoring, scorer.end_id)


def read_off(
    pairs: Sequence[tuple[Ids, Ids]],
    log_probs_BT: Floats,
    coverage: Floats,
    record: AttentionRecord | None,
    scoring: Scoring,
    end_id: int,
) -> list[Hypothesis]:
    """The hypotheses of a batch from its table of log-probabilities."""
    hypotheses: list[Hypothesis] = []
    for row, (_, target) in enumerate(pairs):
        values: list[float] = log_probs_BT[row, : len(target)].tolist()
        if any(np.isnan(value) for value in values):
            raise CheckpointError("the model's log-probabilities are not numbers (NaN): its weights are damaged")
        log_probs = tuple(value if value > -np.inf else IMPOSSIBLE for value in values)
        # From the left, as a search sums them.
        total = np.array([sum(log_probs, 0.0)])
        score = float(scoring.score(total, np.array([len(target)]), coverage[row])[0])
        attention = None if record is None else record.trail(row, len(target))
        finished = target[-1:] == (end_id,)
        hypotheses.append(Hypothesis(target, score, log_probs, finished, attention))
    return hypotheses


def pad_sources(sources: Sequence[Ids], scorer: Scorer) -> tuple[Integers, Integers]:
    """Sources as `source_BS`, one place wide at least, and `source_lengths_B`."""
    lengths_B = np.array([len(source) for source in sources], dtype=np.int64)
    return pad(sources, scorer.source_padding_id, least=1), lengths_B


def pad(rows: Sequence[Ids], filling: int, least: int = 0) -> Integers:
    """Rows of ids as a table of `least` columns at least."""
    table = np.full((len(rows), max([least, *map(len, rows)])), filling, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
