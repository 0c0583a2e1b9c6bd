"""What a model is worth on held-out pairs, in the middle of training.

In: batches of held-out pairs in their order, and a function that decodes and scores. Out: metrics by name, the same in
every rank and on any number of ranks: each takes a part of the batches and of the texts, and sums go in the order of
the batches.

`loss` is the negative log-likelihood per target token in nats, without smoothing; `perplexity` is its exponential;
`perplexity_per_character` can be compared between vocabularies. At most one batch of hidden states and one chunk of
logits is alive at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn

from malmoi.data.batch import Batch
from malmoi.errors import DataError
from malmoi.models.interface import Seq2Seq
from malmoi.training.agreement import Agreement
from malmoi.training.signals import WorkCutShort

Divide: TypeAlias = Callable[[Sequence[str], Callable[[Sequence[str]], list[str]]], list[str]]
"""(texts, translate) -> translations; lets each rank translate a part, and gives all translations to each."""
Evaluate: TypeAlias = Callable[[Seq2Seq, Divide], Mapping[str, float]]
"""Metrics of decoded text, from a network in evaluation mode; a signal breaks off only what is divided."""


class Batches(Protocol):
    """Batches that are made when they are asked for, so that no rank reads another's."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Batch: ...


@dataclass(frozen=True)
class Validation:
    """Held-out pairs. `num_characters`: characters of all targets, plus one for the end of each line."""

    batches: Batches
    num_characters: int
    evaluate: Evaluate | None = None


@torch.no_grad()
def validate(
    model: nn.Module, network: Seq2Seq, validation: Validation, device: torch.device, agreement: Agreement
) -> dict[str, float] | None:
    """All metrics, or None in every rank if a signal cut the work short. `model` is left in evaluation mode.

    `model` gives the loss of a batch; `network`, the same weights in one piece, is what decodes.
    """
    model.eval()
    network.eval()
    try:
        metrics = measure_loss(model, validation, device, agreement)
        if validation.evaluate is not None:
            metrics |= validation.evaluate(network, agreement.divide)
    except WorkCutShort:
        return None
    return agreement.ranks.from_first(metrics)


def measure_loss(
    model: nn.Module, validation: Validation, device: torch.device, agreement: Agreement
) -> dict[str, float]:
    """The metrics that need no decoding. Each pair counts once, by its tokens."""
    batches, ranks = validation.batches, agreement.ranks
    if not len(batches):
        raise DataError("validation has no pairs: give other files with --valid")
    sums: list[tuple[float, ...]] = []
    for first in range(0, len(batches), ranks.count):
        mine = first + ranks.rank
        # A model in pieces needs all ranks for each pass: who has no batch left goes along with an empty one.
        batch = batches[mine] if mine < len(batches) else batches[first].without_targets()
        sums += ranks.gather(float(model(batch.to(device)).nll), batch.num_target_tokens)
        agreement.agree()
        if agreement.signal is not None:
            raise WorkCutShort
    nll, num_tokens = sum(nll for nll, _ in sums), sum(tokens for _, tokens in sums)
    return {
        "loss": nll / num_tokens,
        "perplexity": exponential(nll / num_tokens),
        "perplexity_per_character": exponential(nll / max(1, validation.num_characters)),
    }


def exponential(value: float) -> float:
    """e to the value, infinite where that is no longer a number."""
    return math.exp(value) if value < 700 else math.inf if not math.isnan(value) else value
