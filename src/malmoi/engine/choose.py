"""The fastest scorer that a model can have on this machine: the engine where it can be, else the network itself.

In: stored models, or a network in evaluation mode, and a precision. Out: a scorer for a search, and whether several
threads may search with it. The engine reads a model folder itself: torch is imported only where a network is needed.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

from malmoi.config.decoding import Precision
from malmoi.config.model import TransformerConfig
from malmoi.config.training import Device
from malmoi.decoding.interface import Scorer
from malmoi.decoding.targets import WholeTargets
from malmoi.device import choose_device, is_surely_cpu, set_threads
from malmoi.engine.library import Library, find_library
from malmoi.engine.scorer import Engine, EngineScorer, StepsAlone
from malmoi.engine.weights import Sizes, Weights, read_weights
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.stored import WEIGHTS_FILE, Stored

if TYPE_CHECKING:
    from malmoi.decoding.scorer import ModelScorer
    from malmoi.models.interface import Seq2Seq


class StoredScorers:
    """What stored models score with: one, or several as an ensemble.

    Weights are read when this is made, so that a fault is told at once: by the engine where it can take them, else as
    networks. What a call needs beyond that, networks or another precision, is made when it is first asked for.
    """

    def __init__(self, models: Sequence[Stored], device: Device, threads: int) -> None:
        """Errors: those of `load_network`, `ConfigError` for a device that is not there."""
        self.models = tuple(models)
        self.device: Device = device
        self.threads = threads
        self.lock = RLock()
        self.made: dict[Precision, Scorer] = {}
        self.maybe_library = find_library() if is_surely_cpu(device) else None
        # Of models that the engine takes, until it has packed them.
        self.weights = [self.maybe_weights(model) for model in self.models]
        self.is_of_engine = [weights is not None for weights in self.weights]
        if not all(self.is_of_engine):
            _ = self.members

    def maybe_weights(self, model: Stored) -> Weights | None:
        """The weights of a model, None where the engine cannot be or cannot take them as they are stored."""
        config = model.config.model
        if self.maybe_library is None or not isinstance(config, TransformerConfig):
            return None
        return read_weights(model.folder / WEIGHTS_FILE, config, sizes_of(model))

    @cached_property
    def members(self) -> "list[ModelScorer]":
        """The networks, loaded now."""
        from malmoi.checkpoint import load_network
        from malmoi.decoding.scorer import ModelScorer

        set_threads(self.threads)
        device = choose_device(self.device)
        return [ModelScorer(load_network(model, device)) for model in self.models]

    @cached_property
    def networks(self) -> Scorer:
        """The networks as a scorer."""
        return together([self.member(number) for number in range(len(self.models))])

    @property
    def max_steps(self) -> int | None:
        """Most steps for a row, None where there is no limit."""
        limits = [
            config.max_positions
            for model in self.models
            if isinstance(config := model.config.model, TransformerConfig) and config.positions == "learned"
        ]
        return min(limits, default=None)

    def fastest(self, precision: Precision) -> Scorer:
        """See `fastest_scorer`."""
        with self.lock:
            if precision not in self.made:
                parts = [self.fastest_of(number, precision) for number in range(len(self.models))]
                self.made[precision] = together(parts)
            return self.made[precision]

    def fastest_of(self, number: int, precision: Precision) -> Scorer:
        """The scorer of one model."""
        model, library = self.models[number], self.maybe_library
        config = model.config.model
        if self.is_of_engine[number] and library is not None and isinstance(config, TransformerConfig):
            maybe_weights, self.weights[number] = self.weights[number], None
            weights = maybe_weights or self.maybe_weights(model)
            if weights is not None:
                engine = Engine(library, config, sizes_of(model), weights, precision == "int8")
                return engine_scorer(engine, lambda: self.member(number))
        return fastest_scorer(self.members[number].network, precision, library)

    def member(self, number: int) -> "ModelScorer":
        """The network of one model."""
        with self.lock:
            return self.members[number]


def sizes_of(model: Stored) -> Sizes:
    return Sizes(model.tokenizers.source.size, model.tokenizers.target.size)


def together(scorers: Sequence[Scorer]) -> Scorer:
    """One scorer as it is, several as an ensemble."""
    if len(scorers) == 1:
        return scorers[0]
    from malmoi.decoding.scorer import EnsembleScorer

    return EnsembleScorer(scorers)


def fastest_scorer(network: "Seq2Seq", precision: Precision = "fp32", library: Library | None = None) -> Scorer:
    """The engine, or the network itself where the engine cannot be, which the log tells at its debug level.

    `library` is looked for in the user's cache if left out. Raises `ConfigError` where int8 is asked for and cannot be.
    """
    from malmoi.decoding.scorer import ModelScorer
    from malmoi.engine.networks import weights_of, why_not_network
    from malmoi.models.transformer import Transformer

    reason = why_not_network(network)
    if reason is None:
        library = library or find_library()
        reason = None if library else "its native code is not built (malmoi doctor --build)"
    if reason is not None:
        if precision == "int8":
            raise ConfigError(f"precision int8 needs the engine: {reason}")
        get_logger().debug("decoding without the engine: %s", reason)
        return ModelScorer(network)
    assert isinstance(network, Transformer) and library is not None
    engine = Engine(library, network.config, *weights_of(network), precision == "int8")
    return engine_scorer(engine, lambda: ModelScorer(network))


def engine_scorer(engine: Engine, network: Callable[[], WholeTargets]) -> StepsAlone:
    """The scorer of an engine; `network` reads whole targets where its numbers are the same."""
    get_logger().debug("decoding with the engine: %s, %s", "int8" if engine.int8 else "fp32", engine.library.kernels)
    return StepsAlone(engine) if engine.int8 else EngineScorer(engine, network)


def allows_threads(scorer: Scorer) -> bool:
    """Whether several searches at once share the work better than threads inside of products, as with the engine."""
    return bool(getattr(scorer, "allows_threads", False))
