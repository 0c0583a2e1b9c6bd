"""Forced scoring: what a scorer thinks of given outputs.

In: sources and targets as ids. Out: a `Hypothesis` per pair, scored by the same steps and the same formula as a search,
so that the score of a search's output is found again.

Letters: B pairs, S source places, T target tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from malmoi.config import DecodingConfig
from malmoi.decoding.attention import AttentionRecord, choosing_device
from malmoi.decoding.interface import IMPOSSIBLE, Hypothesis, Ids, Scorer
from malmoi.decoding.scoring import Scoring
from malmoi.errors import CheckpointError, DataError


@torch.inference_mode()
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
    order = sorted(range(len(targets)), key=lambda number: (-len(targets[number]), -len(sources[number]), number))
    while order:
        batch = [order.pop(0)]
        longest = len(sources[batch[0]]) + len(targets[batch[0]])
        while order:
            longest = max(longest, len(sources[order[0]]) + len(targets[order[0]]))
            if (len(batch) + 1) * longest > config.batch_tokens:
                break
            batch.append(order.pop(0))
        pairs = [(sources[number], targets[number]) for number in batch]
        hypotheses.update(zip(batch, force_batch(scorer, pairs, config, keep_attention), strict=True))
    return [hypotheses[number] for number in range(len(targets))]


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
    """One batch, step by step; shorter targets go on with end symbols that nobody looks at."""
    scoring = Scoring.from_config(config)
    looks = keep_attention or scoring.beta > 0
    lengths = np.array([len(target) for _, target in pairs], dtype=np.int64)
    source_BS, source_lengths_B = pad_sources([source for source, _ in pairs], scorer)
    target_BT = torch.full((len(pairs), int(lengths.max(initial=0))), scorer.end_id)
    for row, (_, target) in enumerate(pairs):
        target_BT[row, : len(target)] = torch.tensor(target, dtype=torch.int64)
    target_BT = target_BT.to(scorer.device)
    state = scorer.start(scorer.encode(source_BS, source_lengths_B), keep_attention=looks)
    record = (
        AttentionRecord.start(source_lengths_B.to(choosing_device(scorer.device)), keep_attention) if looks else None
    )
    coverage = np.zeros(len(pairs)) if record is None else record.coverage(scoring)
    token_B = torch.full((len(pairs),), scorer.start_id, device=scorer.device)
    columns: list[Tensor] = []
    for place in range(target_BT.size(1)):
        log_probs_BV, state = scorer.step(token_B, state)
        token_B = target_BT[:, place]
        columns.append(log_probs_BV.gather(1, token_B[:, None]))
        if record is not None:
            record = record.add(state.attention_RS, np.full(len(pairs), place))
            coverage = np.where(lengths > place, record.coverage(scoring), coverage)
    log_probs_BT = torch.cat(columns, 1).cpu().double().numpy() if columns else np.zeros((len(pairs), 0))
    return read_off(pairs, log_probs_BT, coverage, record, scoring, scorer.end_id)


def read_off(
    pairs: Sequence[tuple[Ids, Ids]],
    log_probs_BT: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    coverage: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
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


def pad_sources(sources: Sequence[Ids], scorer: Scorer) -> tuple[Tensor, Tensor]:
    """Sources as `source_BS` and `source_lengths_B`, on the scorer's device."""
    longest = max(1, *(len(source) for source in sources))
    source_BS = torch.full((len(sources), longest), scorer.source_padding_id)
    for row, source in enumerate(sources):
        source_BS[row, : len(source)] = torch.tensor(source, dtype=torch.int64)
    lengths_B = torch.tensor([len(source) for source in sources])
    return source_BS.to(scorer.device), lengths_B.to(scorer.device)
