"""What all tests share: none of them sees what the user of this machine has built, or what another test has.

A built engine changes the last digits of scores, so the user's cache is a folder that does not exist.
"""

from collections.abc import Iterator
from hashlib import sha256

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_of_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures that several tests share, which come before any single test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each test."""
    name = sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{name}"))
