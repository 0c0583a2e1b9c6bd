"""Positions: what a model adds to know the order of tokens, and what becomes of it without them.

In: a network and ids. Out: the encoding as a table, how alike its places are, and an experiment: two sentences of the
same tokens in another order, read with positions and without. Attention without positions cannot tell order: the
sentences then give the same set of encoder vectors.

Letters: P places (or distances), C columns, S source places, D width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from malmoi.config.model import Positions, TransformerConfig
from malmoi.decoding.interface import Ids
from malmoi.explain.replay import evaluating
from malmoi.explain.words import Side
from malmoi.models.build import outline_model
from malmoi.models.interface import Seq2Seq
from malmoi.models.positions import RelativePositions, sines_and_cosines
from malmoi.models.rnn import Rnn
from malmoi.models.transformer import EncoderLayer, Transformer

Floats = NDArray[np.float32]

FEWEST_PLACES = 32
"""A short sentence still shows so many places."""


@dataclass(frozen=True)
class Encoding:
    """`table` (P, C) from place (or distance) `first` on, and the cosine between its rows, `similarity` (P, P)."""

    kind: Positions
    first: int
    table: Floats
    similarity: Floats


@dataclass(frozen=True)
class Order:
    """Each token of a sentence beside the same token of another one, as the encoder's last layer has them.

    `with_positions` (S,) is the largest difference between numbers of the two vectors, the nearest one where the token
    occurs several times, not a number where it does not occur; `without_positions` the same with positions switched
    off, None for a system that reads word by word and has none to switch off. `is_reordering`: both sentences have the
    same tokens, so that the experiment says something.
    """

    first: str
    second: str
    tokens: tuple[str, ...]
    is_reordering: bool
    with_positions: Floats
    without_positions: Floats | None


def encoding(network: Seq2Seq, num_places: int) -> Encoding | None:
    """The position encoding of a network; None where there is none."""
    if not isinstance(network, Transformer):
        return None
    config = network.config
    first = 0
    match config.positions:
        case "none":
            return None
        case "rotary":
            # Queries and keys of each head are turned by these angles, sines first.
            table_PC = sines_and_cosines(max(num_places, FEWEST_PLACES), config.width // config.heads, False)
        case "relative":
            layer = network.encoder.layers[0]
            assert isinstance(layer, EncoderLayer) and isinstance(layer.self_attention.positions, RelativePositions)
            table_PC = layer.self_attention.positions.key.detach()
            first = -layer.self_attention.positions.max_distance
        case "sinusoidal" | "learned":
            assert network.source_positions is not None
            most = network.max_positions or max(num_places, FEWEST_PLACES)
            like = network.source_embedding.weight
            table_PC = network.source_positions.table(min(most, max(num_places, FEWEST_PLACES)), like).detach()
    table = table_PC.float().cpu().numpy().copy()
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return Encoding(config.positions, first, table, unit @ unit.T)


def reorder(source: Side) -> tuple[Ids, str]:
    """The same sentence with its words (the tokens of a single word) the other way round, the end kept: ids, text."""
    units = source.units[::-1]
    ids = tuple(index for first, behind in units for index in source.ids[first:behind])
    names = source.names(units)
    return (*ids, *source.ids[len(ids) :]), (" " if units and units[0] in source.spans else "").join(names)


def compare_order(network: Seq2Seq, source: Side, text: str, other: Ids, other_text: str) -> Order:
    """Read two sentences, both with their end symbols, with and without positions."""
    without = without_positions(network)
    return Order(
        first=text,
        second=other_text,
        tokens=source.tokens,
        is_reordering=sorted(source.ids) == sorted(other) and source.ids != other,
        with_positions=nearest(source.ids, other, read(network, source.ids), read(network, other)),
        without_positions=None
        if without is None
        else nearest(source.ids, other, read(without, source.ids), read(without, other)),
    )


def without_positions(network: Seq2Seq) -> Seq2Seq | None:
    """The same weights, shared and not copied, in a Transformer without positions; None for other systems."""
    if not isinstance(network, Transformer):
        return None
    config = TransformerConfig.model_validate({**network.config.model_dump(), "positions": "none"})
    plain = outline_model(config, network.source_vocabulary_size, network.target_vocabulary_size)
    # Learned and relative positions are the only weights that have no place there.
    plain.load_state_dict(network.state_dict(), strict=False, assign=True)
    return plain.eval()


@torch.inference_mode()
def read(network: Seq2Seq, ids: Ids) -> Floats:
    """The encoder's vectors (S, D)."""
    device = network.output_weight_VD.device
    source_BS = torch.tensor([ids], device=device)
    lengths_B = torch.tensor([len(ids)], device=device)
    with evaluating(network):
        if isinstance(network, Transformer):
            vectors_BSD, _ = network.read(source_BS, lengths_B, None)
        else:
            assert isinstance(network, Rnn)
            vectors_BSD = network.read(source_BS, lengths_B).values_BSA
    return vectors_BSD[0].float().cpu().numpy()


def nearest(ids: Ids, other: Ids, vectors: Floats, other_vectors: Floats) -> Floats:
    """For each token the smallest of the largest differences to the same token on the other side; NaN without one."""
    other_ids = np.array(other)
    found = np.full(len(ids), np.nan, dtype=np.float32)
    for place, index in enumerate(ids):
        same = other_vectors[other_ids == index]
        if len(same):
            found[place] = np.abs(same - vectors[place]).max(1).min()
    return found
