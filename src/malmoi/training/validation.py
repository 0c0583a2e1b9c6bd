"""What a model is worth on held-out pairs, in the middle of training.

In: batches of held-out pairs in their order, and a function that decodes and scores. Out: metrics by name.

`loss` is the negative log-likelihood per target token in nats, without smoothing; `perplexity` is its exponential;
`perplexity_per_character` can be compared between vocabularies. At most one batch of hidden states and one chunk of
logits is alive at a time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from malmoi.data.batch import Batch
from malmoi.errors import DataError
from malmoi.models.interface import Seq2Seq
from malmoi.training.loss import ModelWithLoss
from malmoi.training.signals import StopSignals


@dataclass(frozen=True)
class Validation:
    """Held-out pairs.

    `num_characters`: characters of all targets, plus one for the end of each line. `evaluate`, if given, gets the
    network in evaluation mode and returns metrics of decoded text; it may be broken off by a signal.
    """

    batches: Callable[[], Iterable[Batch]]
    num_characters: int
    evaluate: Callable[[Seq2Seq], Mapping[str, float]] | None = None


@torch.no_grad()
def validate(
    model: ModelWithLoss, validation: Validation, device: torch.device, signals: StopSignals
) -> dict[str, float] | None:
    """All metrics, or None if a signal cut the work short. The model is left in evaluation mode."""
    model.eval()

    def measure() -> dict[str, float]:
        metrics = measure_loss(model, validation, device)
        if validation.evaluate is not None:
            metrics |= validation.evaluate(model.network)
        return metrics

    return signals.cut_short(measure)


def measure_loss(model: ModelWithLoss, validation: Validation, device: torch.device) -> dict[str, float]:
    """The metrics that need no decoding. Each pair counts once, by its tokens."""
    nll, num_tokens = 0.0, 0
    for batch in validation.batches():
        nll += float(model(batch.to(device)).nll)
        num_tokens += batch.num_target_tokens
    if num_tokens == 0:
        raise DataError("validation has no pairs: give other files with --valid")
    return {
        "loss": nll / num_tokens,
        "perplexity": exponential(nll / num_tokens),
        "perplexity_per_character": exponential(nll / max(1, validation.num_characters)),
    }


def exponential(value: float) -> float:
    """e to the value, infinite where that is no longer a number."""
    return math.exp(value) if value < 700 else math.inf if not math.isnan(value) else value
