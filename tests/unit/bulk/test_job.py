"""The folder of a job: whole blocks or none, one job or a refusal, an output that is there at once."""

import errno
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malmoi.bulk.job import Identity, JobFolder, Size, hash_model
from malmoi.bulk.work import Answer, compress, compression_of
from malmoi.errors import ConfigError, DataError
from malmoi.text.lines import read_lines

IDENTITY = Identity(
    files={"input": {"size": 5, "hash": "ab"}},
    model="cd",
    options={"beam_size": 5, "length_alpha": 1.0},
    written="text",
    compression="none",
    block_lines=2,
)
SIZE = Size(num_lines=5, num_blocks=3)


def block(text: str, path: Path, *faults: str) -> Answer:
    return Answer(compress(text.encode(), compression_of(path)), faults, ())


@pytest.mark.parametrize("name", ["out.txt", "out.gz", "out.ZST"])
def test_blocks_in_any_order_become_one_file_in_order(tmp_path: Path, name: str) -> None:
    folder = JobFolder(tmp_path / "deep" / name)
    with folder.held():
        assert folder.begun(IDENTITY) is None
        folder.begin(IDENTITY, SIZE)
        for first, text in ((5, "e\n"), (1, "a\n\n"), (3, "c\nd\n")):
            assert not folder.is_done(first)
            folder.keep(first, block(text, folder.out))
            assert folder.is_done(first)
        assert not folder.out.exists()
        folder.assemble(SIZE)
    assert list(read_lines(folder.out)) == ["a", "", "c", "d", "e"]
    assert [path.name for path in folder.out.parent.iterdir()] == [name]


def test_other_programs_read_packed_outputs(tmp_path: Path) -> None:
    parts = [compress(text, "gzip") for text in (b"a\n", b"b\n")]
    assert gzip.decompress(b"".join(parts)) == b"a\nb\n"
    assert compress(b"a\n", "gzip") == parts[0]


@pytest.mark.parametrize("name", ["out.txt", "out.gz", "out.zst"])
def test_no_line_is_an_empty_file_or_an_empty_archive(tmp_path: Path, name: str) -> None:
    folder, size = JobFolder(tmp_path / name), Size(0, 0)
    with folder.held():
        folder.begin(IDENTITY, size)
        folder.assemble(size)
    assert list(read_lines(folder.out)) == []
    assert (folder.out.stat().st_size == 0) == (name == "out.txt")


def begin(tmp_path: Path, *firsts: int) -> JobFolder:
    """A job that was killed with some blocks done."""
    folder = JobFolder(tmp_path / "out.txt")
    with folder.held():
        folder.begin(IDENTITY, SIZE)
        for first in firsts:
            folder.keep(first, block(f"{first}\n", folder.out))
    return folder


def test_the_same_job_goes_on(tmp_path: Path) -> None:
    folder = begin(tmp_path, 3)
    with folder.held():
        assert folder.begun(IDENTITY) == SIZE
        assert [folder.is_done(first) for first in (1, 3, 5)] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"files": {"input": {"size": 5, "hash": "xx"}}}, "the input is another file"),
        ({"files": {**IDENTITY.files, "prefixes": {"size": 1, "hash": "f"}}}, "the prefixes are others"),
        ({"model": "zz"}, "the model is another"),
        ({"options": {"beam_size": 1, "length_alpha": 1.0}}, "beam_size: 5 -> 1"),
        ({"options": {"beam_size": 5, "length_alpha": 1.0, "top_k": 3}}, "top_k: None -> 3"),
        ({"written": "json"}, "written: text -> json"),
        ({"block_lines": 7}, "block lines: 2 -> 7"),
    ],
)
def test_another_job_is_refused_by_name_and_nothing_is_lost(tmp_path: Path, change: Any, told: str) -> None:
    folder = begin(tmp_path, 1)
    with pytest.raises(ConfigError, match=f"{told}.*choose another --out, or remove the folder"), folder.held():
        folder.begun(replace(IDENTITY, **change))
    assert folder.is_done(1)


def test_what_is_no_job_is_not_touched(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "out.txt")
    folder.path.mkdir()
    (folder.path / "diary").write_text("dear", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds files of others \\(diary"), folder.held():
        pass
    assert (folder.path / "diary").exists()


HEAD = '{"format": "malmoi bulk job 1", "malmoi": "1", "num_blocks": 3, '


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "[" * 100_000, '{"format": "malmoi bulk job 2"}'),
        *(HEAD + rest for rest in ('"num_lines": 5, "job": {}}', '"num_lines": 5, "job": 1}', '"num_lines": "x"}')),
        HEAD + '"num_lines": 5, "job": {"files": []}}',
    ],
)
def test_a_damaged_description_is_told(tmp_path: Path, content: str) -> None:
    folder = begin(tmp_path, 1)
    (folder.path / "job.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="is not the description of a job"), folder.held():
        folder.begun(IDENTITY)


def test_an_output_is_never_written_over(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "out.txt")
    folder.out.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already"), folder.held():
        pass
    assert not folder.path.exists()
    folder.out.unlink()
    begin(tmp_path, 1)
    folder.out.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already"), folder.held():
        folder.begun(IDENTITY)
    with pytest.raises(ConfigError, match="is there already"), folder.held():
        folder.keep(3, block("3\n", folder.out))
        folder.keep(5, block("5\n", folder.out))
        assert folder.begun(IDENTITY) == SIZE
        folder.assemble(SIZE)
    assert folder.out.read_text(encoding="utf-8") == "mine"
    assert folder.is_done(1)


def test_a_kill_behind_the_last_rename_is_made_good(tmp_path: Path) -> None:
    folder = begin(tmp_path, 1, 3, 5)
    folder.out.write_bytes(b"1\n3\n5\n")
    with folder.held():
        assert folder.begun(IDENTITY) == SIZE
        folder.assemble(SIZE)
    assert folder.out.read_bytes() == b"1\n3\n5\n" and not folder.path.exists()
    # Later still: the description is gone, and some blocks.
    folder.path.mkdir()
    (folder.path / "000000000005.block").write_bytes(b"5\n")
    with pytest.raises(ConfigError, match="is there already"), folder.held():
        pass
    assert not folder.path.exists()


def test_only_one_process_leads_a_job(tmp_path: Path) -> None:
    folder = begin(tmp_path, 1)
    with folder.held(), pytest.raises(DataError, match="another process"), JobFolder(folder.out).held():
        pass
    assert folder.is_done(1)


def test_faults_are_told_once_their_block_is_done(tmp_path: Path) -> None:
    folder = begin(tmp_path, 1)
    with folder.held():
        folder.keep(3, block("\n4\n", folder.out, "line 3: 70 tokens,\nbut"))
        (folder.path / "000000000005.faults").write_bytes(b'"line 5: cut off by a kill"\n')
        assert folder.faults() == ["line 3: 70 tokens,\nbut"]


def test_a_new_job_takes_nothing_over(tmp_path: Path) -> None:
    """Neither blocks nor messages of a job whose end was cut short after its description was gone."""
    folder = begin(tmp_path, 1)
    (folder.path / "000000000001.faults").write_text('"line 1: no"\n', encoding="utf-8")
    (folder.path / "job.json").unlink()
    folder = begin(tmp_path)
    assert not folder.is_done(1)
    with folder.held():
        folder.keep(1, block("1\n", folder.out))
    assert folder.faults() == []


def test_a_full_disk_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begin(tmp_path, 1)
    whole = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with folder.held():
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"000000000003.block: .*No space left.*1 finished block.* goes on"):
            folder.keep(3, block("3\n", folder.out))
        monkeypatch.setattr(os, "fsync", whole)
        assert not folder.is_done(3)
        folder.keep(3, block("3\n", folder.out))
        folder.keep(5, block("5\n", folder.out))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"whole: .*No space left.*3 finished block"):
            folder.assemble(SIZE)
        monkeypatch.setattr(os, "fsync", whole)
        assert not folder.out.exists()
        folder.assemble(SIZE)
    assert folder.out.read_bytes() == b"1\n3\n5\n"


def test_the_model_is_known_by_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "a.json").write_text("{}", encoding="utf-8")
    (tmp_path / "card.json").write_text("{}", encoding="utf-8")
    before = hash_model(tmp_path)
    (tmp_path / "tokenizer" / ".tmp-a.json").write_text("{}", encoding="utf-8")
    assert hash_model(tmp_path) == before
    (tmp_path / "tokenizer" / "a.json").write_text("{ }", encoding="utf-8")
    assert hash_model(tmp_path) != before


def test_the_description_says_how_much_there_is(tmp_path: Path) -> None:
    folder = begin(tmp_path, 1)
    told = json.loads((folder.path / "job.json").read_text(encoding="utf-8"))
    assert (told["num_lines"], told["num_blocks"]) == (5, 3)
    assert told["job"]["options"]["beam_size"] == 5
