"""The native code is built when asked, found again where it fits, and never used where it does not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_library import folder_with_library, native_library
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.engine.choose import fastest_scorer
from malmoi.engine.library import find_library
from malmoi.engine.scorer import EngineScorer, StepsAlone
from malmoi.errors import ConfigError
from malmoi.models.build import build_model
from malmoi.native import library
from malmoi.native.library import build, library_path, other_builds


def test_what_was_built_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder_with_library() / "elsewhere"))
    assert find_library() is None
    found = find_library(folder_with_library())
    assert found is not None
    assert found.kernels


def test_another_processor_or_source_has_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = library_path(tmp_path)
    first.write_bytes(b"")
    assert other_builds(tmp_path) == []
    with monkeypatch.context() as changed:
        changed.setattr(library, "processor", lambda: "another one")
        assert library_path(tmp_path) != first
        assert other_builds(tmp_path) == [first]
    source = tmp_path / "engine.cpp"
    source.write_text("// another one")
    monkeypatch.setattr(library, "source_files", lambda: [source])
    assert library_path(tmp_path) != first


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path) -> None:
    library_path(tmp_path).write_bytes(b"not a library")
    assert find_library(tmp_path) is None


def test_who_has_no_home_or_may_not_look_has_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Services run as users without a home, or with that of another one; they translate all the same."""

    def fail(error: Exception) -> Callable[..., Path]:
        def failing(*_: object) -> Path:
            raise error

        return failing

    with monkeypatch.context() as changed:
        changed.setattr(Path, "is_file", fail(PermissionError("not yours")))
        assert find_library(tmp_path) is None
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail(RuntimeError("Could not determine home directory.")))
    assert find_library() is None
    with pytest.raises(ConfigError, match="no home folder"):
        library_path()


def test_without_a_compiler_building_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler.*install GCC or Clang"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [("this is not C++", "could not compile"), ("int other() { return 1; }", "could not be built")],
)
def test_a_build_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, message: str
) -> None:
    """Neither where the compiler fails nor where its result is not the engine."""
    native_library()
    (tmp_path / "engine.cpp").write_text(source)
    monkeypatch.setattr(library, "source_files", lambda: [tmp_path / "engine.cpp"])
    with pytest.raises(ConfigError, match=message):
        build(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_who_gets_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Transformers in fp32 on the processor do; every other network keeps its own steps, and int8 is then refused."""
    small = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8)
    transformer = build_model(small, 9, 9).eval()
    recurrent = build_model(RnnConfig(width=6, hidden=8), 9, 9).eval()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert type(fastest_scorer(transformer)) is ModelScorer
    with pytest.raises(ConfigError, match="malmoi doctor --build"):
        fastest_scorer(transformer, "int8")
    native = native_library()
    assert type(fastest_scorer(transformer, library=native)) is EngineScorer
    assert type(fastest_scorer(transformer, "int8", native)) is StepsAlone
    assert type(fastest_scorer(recurrent, library=native)) is ModelScorer
    assert type(fastest_scorer(build_model(small, 9, 9).double().eval(), library=native)) is ModelScorer
    with pytest.raises(ConfigError, match="Rnn"):
        fastest_scorer(recurrent, "int8", native)


def test_the_engine_needs_its_network_no_more_than_its_weights() -> None:
    """What the native code reads in place lives as long as the engine."""
    small = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8)
    scorers = [fastest_scorer(build_model(small, 9, 9, seed).eval(), library=native_library()) for seed in range(9)]
    for seed, scorer in enumerate(scorers):
        own = ModelScorer(build_model(small, 9, 9, seed).eval())
        source_BS, lengths_B, token_R = np.array([[3, 4, 1]]), np.array([3]), np.array([9])
        mine = scorer.step(token_R, scorer.start(scorer.encode(source_BS, lengths_B)))[0]
        theirs = own.step(token_R, own.start(own.encode(source_BS, lengths_B)))[0]
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_stay_with_the_network(fault: float) -> None:
    """It tells of them once they matter; small numbers made of them would look sound."""
    small = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8)
    network = build_model(small, 9, 9).eval()
    with torch.no_grad():
        network.target_embedding.weight[4, 3] = fault
    assert type(fastest_scorer(network, library=native_library())) is ModelScorer
    with pytest.raises(ConfigError, match="not finite"):
        fastest_scorer(network, "int8", native_library())
