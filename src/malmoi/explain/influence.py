"""Leaving out: what becomes of each output token when a word of the source is not there.

In: a source, an output, and spans of the source. Out: by how much the forced log-probability of each output token
drops. Unlike attention this is an effect on the output, measured; it says nothing of how the effect came about.

Letters: U units (words) of the source, T target tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.forced import force
from malmoi.decoding.interface import Ids, Scorer
from malmoi.explain.words import Span

Floats = NDArray[np.float32]


def without(source: Ids, span: Span) -> Ids:
    """A source without some of its tokens."""
    return (*source[: span[0]], *source[span[1] :])


def drops(scorer: Scorer, source: Ids, target: Ids, log_probs: NDArray[np.float64], units: Sequence[Span]) -> Floats:
    """`(U, T)`: log-probability with the whole source, `log_probs`, minus that without each unit, in nats.

    Positive: the unit helped to say the token; negative: it stood in the way. All units are forced in batches.
    """
    if not units:
        return np.zeros((0, len(target)), dtype=np.float32)
    forced = force(scorer, [without(source, unit) for unit in units], [target] * len(units))
    return np.stack([log_probs - np.array(one.log_probs) for one in forced]).astype(np.float32)
