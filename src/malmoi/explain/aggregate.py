"""Many heads and layers as one matrix: rollout (Abnar and Zuidema, 2020), and its extension to a decoder.

In: attention weights by layer, mean over heads. Out: how much of what stands at a place came from which token.

A residual sum keeps half of what a place held and takes half from where it looked: A' = (A + I) / 2 (their section 3).

Letters: L layers, S source places, T target places.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def rollout(attention_LSS: Floats) -> Floats:
    """The product of (A + I) / 2 over all layers, the first one rightmost, `(S, S)`; rows sum to 1."""
    mixed_SS = np.eye(attention_LSS.shape[-1], dtype=np.float64)
    for attention_SS in attention_LSS.astype(np.float64):
        mixed_SS = (attention_SS @ mixed_SS + mixed_SS) / 2
    return mixed_SS.astype(np.float32)


def rollout_decoder(self_LTT: Floats, cross_LTS: Floats, encoder_SS: Floats) -> tuple[Floats, Floats]:
    """What of each decoder place came from which target input `(T, T)` and which source token `(T, S)`.

    The same rule for both attentions of each layer; cross-attention brings in what the encoder's rollout says of the
    source. The two rows of a place sum to 1 together.
    """
    from_target_TT = np.eye(self_LTT.shape[-1], dtype=np.float64)
    from_source_TS = np.zeros(cross_LTS.shape[1:], dtype=np.float64)
    source_SS = encoder_SS.astype(np.float64)
    for self_TT, cross_TS in zip(self_LTT.astype(np.float64), cross_LTS.astype(np.float64), strict=True):
        from_target_TT = (self_TT @ from_target_TT + from_target_TT) / 2
        from_source_TS = (self_TT @ from_source_TS + from_source_TS) / 2
        from_target_TT = from_target_TT / 2
        from_source_TS = (cross_TS @ source_SS + from_source_TS) / 2
    return from_target_TT.astype(np.float32), from_source_TS.astype(np.float32)


def mean_of_heads(attention: dict[str, Floats], part: str, which: str) -> Floats | None:
    """The layers of one attention, as `("decoder", "cross")`, stacked: `(L, T, S)`; None where there is none."""
    found = [weights.mean(0) for name, weights in attention.items() if name.startswith(part) and name.endswith(which)]
    return np.stack(found) if found else None
