"""What the tests of the product share: one model trained through the command line, and a browser for pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.product_toys import FAST, run_malmoi, sentences, write

from browser import Browser, find_browser
from page_service import Service, serve_page


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train and test files, and `run`, a finished run on them."""
    folder = tmp_path_factory.mktemp("toy")
    for name, count in (("train", 300), ("test", 20)):
        pairs = sentences(count, seed=count)
        write(folder / f"{name}.src", [source for source, _ in pairs])
        write(folder / f"{name}.tgt", [target for _, target in pairs])
    write(folder / "test.tsv", [f"{source}\t{target}" for source, target in pairs])
    run_malmoi("train", "train.src", "train.tgt", "--out", "run", *FAST, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    maybe_program = find_browser()
    if maybe_program is None:
        pytest.skip("no Chromium is installed (on Debian: apt install chromium)")
    with Browser(maybe_program) as found:
        yield found


@pytest.fixture
def quiet(browser: Browser) -> Iterator[None]:
    """Whatever a test does, the console stays empty and nothing but the file itself is asked for."""
    browser.complaints.clear()
    browser.requests.clear()
    yield
    browser.run("1")
    assert browser.complaints == []
    assert len(browser.requests) == 1 and browser.requests[0].startswith("file:")


@pytest.fixture
def service() -> Iterator[Service]:
    with serve_page() as found:
        yield found


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Browser]:
    """The page, opened; whatever a test does, the console stays empty and nobody else is asked for anything."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.visit(service.address)
    yield browser
    browser.run("1")
    # A status that is no success is told in the console, whatever a page makes of it.
    assert [one for one in browser.complaints if not one.startswith("Failed to load resource")] == []
    places = ("about:srcdoc", service.address)
    assert [one for one in browser.requests if not one.startswith(places)] == []
