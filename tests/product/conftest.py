"""One model trained through the command line, shared by the tests of the product."""

from pathlib import Path

import pytest
from tests.product_toys import FAST, run_malmoi, sentences, write


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
