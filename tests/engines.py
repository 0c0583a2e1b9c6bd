"""Small networks and the engine on the same weights."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from engine_library import native_library
from malmoi.config.decoding import DecodingConfig, Precision
from malmoi.decoding.interface import Ids, Integers, Numbers, Scorer
from malmoi.engine.choose import fastest_scorer
from malmoi.engine.scorer import StepsAlone
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from reference.models import NUM_IDS, TRANSFORMERS, small_transformer

END = 1
TOLERANCE = 1e-4

CONFIGS = {
    **TRANSFORMERS,
    "sizes-that-fill-vectors": small_transformer(width=96, heads=3, feed_forward=40),
    "heads-of-64": small_transformer(width=128, heads=2, positions="rotary", decoder_layers=1),
    "learned-swiglu-bias": small_transformer(positions="learned", activation="swiglu", output_bias=True, tying="none"),
}
EACH = pytest.mark.parametrize("name", CONFIGS)
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@functools.cache
def network(name: str, dtype: torch.dtype = torch.float32) -> Seq2Seq:
    """A small model with opinions, and more ids than go into a block of the output layer."""
    model = build_model(CONFIGS[name], NUM_IDS, num_targets(name), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * (8 / model.width) ** 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def num_targets(name: str) -> int:
    config = CONFIGS[name]
    return NUM_IDS if config.tying == "all" else 301


@functools.cache
def engine(name: str, precision: Precision = "fp32") -> StepsAlone:
    scorer = fastest_scorer(network(name), precision, native_library())
    assert isinstance(scorer, StepsAlone)
    return scorer


class TablesAlone:
    """A scorer whose candidates are chosen by the search, from whole tables."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def __getattr__(self, name: str) -> Any:
        if name in ("step_best", "step_merged", "run_greedily", "most_candidates", "score_targets"):
            raise AttributeError(name)
        return getattr(self.scorer, name)


class UnmergedScorer(TablesAlone):
    """A scorer whose candidates are merged by the search."""

    def __getattr__(self, name: str) -> Any:
        if name in ("step_merged", "run_greedily"):
            raise AttributeError(name)
        return getattr(self.scorer, name)


def sentence(seed: int, length: int) -> Ids:
    return (*np.random.default_rng([seed, length]).integers(2, NUM_IDS, length).tolist(), END)


def draw_sources(lengths: list[int], seed: int = 1) -> tuple[Integers, Integers]:
    source_BS = np.random.default_rng(seed).integers(0, NUM_IDS, (len(lengths), max(lengths)))
    return source_BS, np.array(lengths)


def walk(scorer: Scorer, num_steps: int, seed: int = 5) -> list[Numbers]:
    """Log-probabilities and attention of many steps, between which rows move, go, come twice, and join."""
    generator = np.random.default_rng(seed)
    state = scorer.start(scorer.encode(*draw_sources([7, 3, 0, 1])), keep_attention=True)
    token_R = np.full(4, scorer.start_id)
    said: list[Numbers] = []
    for step in range(num_steps):
        log_probs_RV, state = scorer.step(token_R, state)
        assert state.attention_RS is not None
        said += [log_probs_RV, state.attention_RS]
        rows = state.num_rows
        rows_R = generator.integers(0, rows, rows + (3 if step < 3 else -1))
        state = state.select(rows_R)
        token_R = generator.integers(0, NUM_IDS, len(rows_R))
        if step == 3:
            state = state.append(scorer.start(scorer.encode(*draw_sources([9, 4], seed=2)), keep_attention=True))
            token_R = np.concatenate([token_R, np.full(2, scorer.start_id)])
    return said


def widen(values_RX: Numbers, size: int) -> Numbers:
    return np.pad(values_RX, ((0, 0), (0, size - values_RX.shape[1])))


def options(**given_options: object) -> DecodingConfig:
    return DecodingConfig.model_validate({"max_length": 12, "max_length_extra": 4, **given_options})
