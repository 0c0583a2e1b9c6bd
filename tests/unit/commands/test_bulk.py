"""Bulk translation: what is refused before any work."""

import os
from pathlib import Path

import pytest

from malmoi.commands.bulk import BulkRequest, check_request, make_plan
from malmoi.commands.translate import TranslateRequest
from malmoi.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "model"


def make_request(file: str, prefix: Path | None = None) -> TranslateRequest:
    return TranslateRequest(GOLDEN, file, None, None, (), prefix, None, False, "auto", 0, False)


@pytest.mark.parametrize("which", ["text", "prefixes"])
def test_a_pipe_is_refused_since_it_is_empty_the_second_time(tmp_path: Path, which: str) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(b"a\n")
    request = make_request(str(pipe)) if which == "text" else make_request(str(file), pipe)
    with pytest.raises(ConfigError, match="cannot be read again"):
        check_request(request, BulkRequest(tmp_path / "out", 1, None, None))


def test_an_ordinary_file_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\n")
    check_request(make_request(str(file), file), BulkRequest(tmp_path / "out", 1, None, None))


def test_an_output_in_the_models_folder_is_refused_since_it_changes_the_model(tmp_path: Path) -> None:
    """A job goes on with the same model only, which is known by all files of its folder."""
    request = make_request(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="would make it another model"):
        make_plan(request, BulkRequest(GOLDEN / "out.txt", 1, None, None))
    plan, _ = make_plan(request, BulkRequest(tmp_path / "out.txt", 1, None, None))
    assert plan.model == GOLDEN.resolve()
