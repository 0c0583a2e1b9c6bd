"""Replay: given outputs go once more through the network, and the attention that was used is kept.

In: a network, and pairs of ids. Out: for each pair log-probabilities, runners-up and attention, padding cut off.

The attention is what the open formula computed in this very pass, in evaluation mode, so that no dropout is in it.

Letters: B pairs, S source places, T target tokens, N heads, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from malmoi.decoding.interface import Ids
from malmoi.decoding.scorer import ModelScorer
from malmoi.models.interface import Seq2Seq, Trace

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Replay:
    """One pair: natural log-probabilities `(T,)` of its target's tokens, the tokens that the model found most likely
    beside each of them with their probabilities, and `attention` by name: `encoder.0.self` (N, S, S), `decoder.0.self`
    (N, T, T), `decoder.0.cross` (N, T, S); `decoder.cross` (1, T, S) of a recurrent system."""

    log_probs: NDArray[np.float64]
    runners_up: tuple[tuple[tuple[int, float], ...], ...]
    attention: dict[str, Floats]


@contextmanager
def evaluating(network: Seq2Seq) -> Generator[None]:
    """Evaluation mode for a while, whatever the mode was."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


@torch.inference_mode()
def replay(network: Seq2Seq, sources: Sequence[Ids], targets: Sequence[Ids], num_runners_up: int = 0) -> list[Replay]:
    """Replay pairs in one batch, in the order given; sources end with `</s>`, targets have one token at least."""
    scorer = ModelScorer(network)
    source_BS = pad(sources, scorer.source_padding_id).to(scorer.device)
    source_lengths_B = torch.tensor([len(source) for source in sources], device=scorer.device)
    input_BT = pad([(scorer.start_id, *target[:-1]) for target in targets], scorer.start_id).to(scorer.device)
    trace = Trace()
    with evaluating(network):
        hidden_BTD = network(source_BS, source_lengths_B, input_BT, trace)
    replays: list[Replay] = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        log_probs_TV = scorer.log_probs(hidden_BTD[row, : len(target)])
        token_T1 = torch.tensor(target, device=scorer.device)[:, None]
        most = torch.topk(log_probs_TV, min(num_runners_up + 1, log_probs_TV.size(1)))
        others = zip(target, most.indices.tolist(), most.values.exp().tolist(), strict=True)
        replays.append(
            Replay(
                log_probs_TV.gather(1, token_T1)[:, 0].cpu().double().numpy(),
                tuple(beside(*one, num_runners_up) for one in others),
                {name: cut(weights_BNTS[row], name, source, target) for name, weights_BNTS in trace.weights.items()},
            )
        )
    return replays


def beside(chosen: int, ids: list[int], probabilities: list[float], count: int) -> tuple[tuple[int, float], ...]:
    """The most likely tokens without the one that was taken."""
    pairs = zip(ids, probabilities, strict=True)
    return tuple(pair for pair in pairs if pair[0] != chosen)[:count]


def cut(weights_NTS: torch.Tensor, name: str, source: Ids, target: Ids) -> Floats:
    """The weights between real places, on the CPU."""
    num_rows = len(source) if name.startswith("encoder") else len(target)
    num_columns = len(target) if name.startswith("decoder") and name.endswith("self") else len(source)
    return weights_NTS[:, :num_rows, :num_columns].float().cpu().numpy().copy()


def pad(rows: Sequence[Ids], value: int) -> torch.Tensor:
    """Rows of ids as one int64 tensor, filled on the right."""
    padded = torch.full((len(rows), max(len(row) for row in rows)), value, dtype=torch.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return padded
