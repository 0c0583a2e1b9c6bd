"""Label smoothing in loops over Python floats, written from Szegedy et al. (2016), section 7.

In: hidden states, targets and lengths as nested lists or float64 arrays. Out: sums over the real positions, and their
gradients by the formula softmax - wanted distribution.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class SmoothedReference:
    loss: float
    nll: float
    num_tokens: int
    grad_hidden_BTD: Array
    grad_weight_VD: Array
    grad_bias_V: Array


def smoothed_reference(
    hidden_BTD: Array,
    target_BT: npt.NDArray[np.int64],
    lengths_B: npt.NDArray[np.int64],
    weight_VD: Array,
    bias_V: Array | None,
    smoothing: float,
) -> SmoothedReference:
    """The loss one position and one class at a time."""
    num_classes, width = weight_VD.shape
    result = SmoothedReference(0.0, 0.0, 0, np.zeros_like(hidden_BTD), np.zeros_like(weight_VD), np.zeros(num_classes))
    for sentence, length in enumerate(lengths_B):
        for place in range(int(length)):
            hidden_D = hidden_BTD[sentence, place]
            scores = [
                sum(float(weight_VD[k, d]) * float(hidden_D[d]) for d in range(width))
                + (0.0 if bias_V is None else float(bias_V[k]))
                for k in range(num_classes)
            ]
            top = max(scores)
            log_total = top + math.log(sum(math.exp(score - top) for score in scores))
            right = int(target_BT[sentence, place])
            result.num_tokens += 1
            for k in range(num_classes):
                log_probability = scores[k] - log_total
                wanted = smoothing / num_classes + (1 - smoothing if k == right else 0.0)
                result.loss -= wanted * log_probability
                if k == right:
                    result.nll -= log_probability
                slope = math.exp(log_probability) - wanted
                result.grad_hidden_BTD[sentence, place] += slope * weight_VD[k]
                result.grad_weight_VD[k] += slope * hidden_D
                result.grad_bias_V[k] += slope
    return result
