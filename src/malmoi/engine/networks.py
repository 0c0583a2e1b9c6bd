"""Networks in memory as weights for the engine.

In: a network in evaluation mode. Out: its settings, sizes and weights, which share its memory; or why it cannot be.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from malmoi.engine.weights import Sizes, is_finite
from malmoi.models.interface import Seq2Seq
from malmoi.models.transformer import Transformer


def why_not_network(network: Seq2Seq) -> str | None:
    """Why the engine cannot take a network, None where it can."""
    if not isinstance(network, Transformer):
        return f"the engine knows Transformers, and this is {type(network).__name__}"
    kinds = {(parameter.dtype, parameter.device.type) for parameter in network.parameters()}
    if kinds != {(torch.float32, "cpu")}:
        return "the engine computes on the processor, with weights that are fp32"
    if not all(is_finite(parameter.detach().numpy()) for parameter in network.parameters()):
        return "some of its weights are not finite numbers"
    return None


def weights_of(network: Transformer) -> tuple[Sizes, dict[str, NDArray[np.float32]]]:
    """Sizes of the vocabularies, and the weights by their names in a model folder."""
    named = {name: tensor.detach().contiguous().numpy() for name, tensor in network.state_dict().items()}
    return Sizes(network.source_vocabulary_size, network.target_vocabulary_size), named
