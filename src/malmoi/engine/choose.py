"""The fastest scorer that networks can have on this machine: the engine where it can be, else the networks themselves.

In: networks in evaluation mode, a precision. Out: a scorer for a search, and how many threads may search with it.
"""

import functools
from collections.abc import Callable, Sequence

from malmoi.config import Precision
from malmoi.decoding.interface import Scorer
from malmoi.decoding.scorer import EnsembleScorer, ModelScorer
from malmoi.engine.library import Library, find_library
from malmoi.engine.scorer import Engine, EngineScorer, StepsAlone
from malmoi.engine.weights import why_not
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.models.interface import Seq2Seq
from malmoi.models.transformer import Transformer


def fastest_scorer(network: Seq2Seq, precision: Precision = "fp32", library: Library | None = None) -> Scorer:
    """The engine, or the network itself where the engine cannot be, which the log tells at its debug level.

    `library` is looked for in the user's cache if left out. Raises `ConfigError` where int8 is asked for and cannot be.
    """
    reason = why_not(network)
    if reason is None:
        library = library or find_library()
        reason = None if library else "its native code is not built (malmoi doctor --build)"
    if reason is not None:
        if precision == "int8":
            raise ConfigError(f"precision int8 needs the engine: {reason}")
        get_logger().debug("decoding without the engine: %s", reason)
        return ModelScorer(network)
    assert isinstance(network, Transformer) and library is not None
    get_logger().debug("decoding with the engine: %s, %s", precision, library.kernels)
    engine = Engine(library, network, precision == "int8")
    return StepsAlone(engine) if precision == "int8" else EngineScorer(engine)


def scorers_by_precision(networks: Sequence[Seq2Seq]) -> Callable[[Precision], Scorer]:
    """A scorer of one network, or of an ensemble, for each precision; it is made when it is first asked for."""

    @functools.cache
    def make(precision: Precision) -> Scorer:
        scorers = [fastest_scorer(network, precision) for network in networks]
        return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers)

    return make


def allows_threads(scorer: Scorer) -> bool:
    """Whether several searches at once share the work better than threads inside of products, as with the engine."""
    parts = scorer.scorers if isinstance(scorer, EnsembleScorer) else (scorer,)
    return all(isinstance(part, StepsAlone) for part in parts)
