"""What all tests share: none of them sees what the user of this machine has built, or what another test has."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's cache is a folder that does not exist: a built engine would change the last digits of scores."""
    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{abs(hash(request.node.nodeid))}")
    )
