"""Prepared stores as the data of a run: alone, several as one, unlike ones, changed ones."""

import json
import signal
from pathlib import Path

import pytest
from tests.product_toys import FAST, sentences, write

from malmoi.commands import train as train_module
from malmoi.commands.folder import RunFolder
from malmoi.commands.plan import TrainRequest, read_given
from malmoi.commands.prepare import run_prepare
from malmoi.commands.stores import check_stages, check_stores, note_stores, open_stores, stores_of
from malmoi.commands.train import train
from malmoi.config.run import RunConfig
from malmoi.config.text import DataSource, Stage
from malmoi.data.store import Store
from malmoi.errors import ConfigError, DataError


def write_pairs(folder: Path, name: str, count: int, seed: int) -> str:
    write(folder / name, [f"{source}\t{target}" for source, target in sentences(count, seed=seed)])
    return str(folder / name)


def prepare(folder: Path, name: str, *words: str, like: str | None = None, valid: tuple[str, ...] = ()) -> str:
    """A store of this name, and its path."""
    request = TrainRequest(
        words=(*words, "text.tokenizer=characters"),
        out=folder / name,
        valid=valid,
        workers=1,
        like=None if like is None else Path(like),
    )
    run_prepare(request, read_given(request), as_json=True, quiet=True)
    return str(folder / name)


def sources(store: Store, material) -> list[str]:  # type: ignore[no-untyped-def]
    return [material.tokenizers.source.decode(store.source(index).tolist()) for index in range(store.num_pairs)]


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    """Two stores of different text, the second prepared like the first, in another folder."""
    (tmp_path / "other-disk").mkdir()
    first = prepare(tmp_path, "first", write_pairs(tmp_path, "a.tsv", 300, 1), write_pairs(tmp_path, "b.tsv", 40, 2))
    # Some sources of the second text stand in the first one too.
    second = prepare(
        tmp_path / "other-disk",
        "second",
        write_pairs(tmp_path, "c.tsv", 200, 3),
        write_pairs(tmp_path, "a2.tsv", 300, 1),
        like=first,
    )
    return first, second


def test_several_stores_are_one(two: tuple[str, str]) -> None:
    """All corpora one after the other, the weight of a store upon theirs, and no source on two sides."""
    stores = [DataSource(pairs=two[0], weight=0.5), DataSource(pairs=two[1], weight=3.0)]
    prepared = open_stores(stores)
    material = prepared.material
    parts = [open_stores([one]).material for one in stores]
    assert [store.num_pairs for store in material.train] == [store.num_pairs for part in parts for store in part.train]
    assert [store.weight for store in material.train] == [0.5, 0.5, 3.0, 3.0]
    assert material.facts.num_pairs == 840 == sum(store.num_pairs for store in (*material.train, *material.valid))
    assert material.validation.sources == [text for part in parts for text in part.validation.sources]
    assert sum(store.num_pairs for store in material.valid) == len(material.validation.sources) > 10
    trained = {text for store in material.train for text in sources(store, material)}
    assert trained and not trained & set(material.validation.sources)


def test_both_know_what_either_saw(tmp_path: Path) -> None:
    """A byte that only the second text holds is left out of no source."""
    write(tmp_path / "a.tsv", [f"ab {number}\tx" for number in range(50)])
    write(tmp_path / "b.tsv", [f"ab € {number}\tx" for number in range(50)])
    request = TrainRequest(words=(str(tmp_path / "a.tsv"), "text.tokenizer=bytes"), out=tmp_path / "a", workers=1)
    run_prepare(request, read_given(request), as_json=True, quiet=True)
    like = TrainRequest(words=(str(tmp_path / "b.tsv"),), out=tmp_path / "b", workers=1, like=tmp_path / "a")
    run_prepare(like, read_given(like), as_json=True, quiet=True)
    first, second = (DataSource(pairs=str(tmp_path / name)) for name in "ab")
    alone, both = (open_stores(stores).material.tokenizers for stores in ([first], [first, second]))
    assert len(alone.encode_source("a € b")) < len(both.encode_source("a € b"))


def test_a_store_like_another_takes_its_settings(two: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--like .*first: was made with other text or cleaning settings"):
        prepare(tmp_path, "third", str(tmp_path / "c.tsv"), "cleaning.max_ratio=3", like=two[0])
    with pytest.raises(ConfigError, match="nowhere: not a complete store"):
        prepare(tmp_path, "third", str(tmp_path / "c.tsv"), like=str(tmp_path / "nowhere"))


def test_stores_that_were_not_prepared_alike_are_refused(two: tuple[str, str], tmp_path: Path) -> None:
    alone = prepare(tmp_path, "alone", str(tmp_path / "c.tsv"))
    with pytest.raises(ConfigError, match=r"alone: was prepared with another vocabulary .* --like .*first"):
        open_stores([DataSource(pairs=two[0]), DataSource(pairs=alone)])


def test_a_store_without_validation_needs_the_other(tmp_path: Path) -> None:
    text, held = write_pairs(tmp_path, "a.tsv", 50, 1), write_pairs(tmp_path, "v.tsv", 9, 2)
    first = prepare(tmp_path, "first", text, valid=(held,))
    second = prepare(tmp_path, "second", write_pairs(tmp_path, "c.tsv", 60, 3), like=first)
    both = open_stores([DataSource(pairs=second), DataSource(pairs=first)]).material
    assert [store.num_pairs for store in both.train] == [60, 50]
    assert len(both.validation.sources) == 9
    with pytest.raises(DataError, match=r"second: holds no pairs for validation"):
        open_stores([DataSource(pairs=second)])


def test_what_cannot_go_together(two: tuple[str, str], tmp_path: Path) -> None:
    text = str(tmp_path / "a.tsv")

    def config(*names: str, **settings: object) -> RunConfig:
        return RunConfig(data=tuple(DataSource(pairs=name) for name in names), **settings)  # type: ignore[arg-type]

    assert stores_of(config(text)) == ()
    assert len(stores_of(config(*two))) == 2
    with pytest.raises(ConfigError, match="a prepared store and text cannot"):
        stores_of(config(two[0], text))
    with pytest.raises(ConfigError, match="given twice"):
        stores_of(config(two[0], two[0]))
    with pytest.raises(ConfigError, match="give --valid to `malmoi prepare`"):
        stores_of(config(two[0], valid=(DataSource(pairs=text),)))
    with pytest.raises(ConfigError, match="not a complete store"):
        stores_of(config(str(tmp_path)))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([(5, (1.0,)), (5, (2.0,))], "begin after"),
        ([(9, (1.0,)), (5, (2.0,))], "begin after"),
        ([(5, (0.0,))], "all weights are 0"),
        ([(5, (1.0, 2.0))], "2 weights, but there are 1 corpora"),
    ],
)
def test_stages_that_mean_nothing(stages: list[tuple[int, tuple[float, ...]]], message: str) -> None:
    config = RunConfig(stages=tuple(Stage(after_steps=steps, weights=weights) for steps, weights in stages))
    with pytest.raises(ConfigError, match=message):
        check_stages(config, 1)


def test_a_store_that_was_made_anew_is_refused_by_name(two: tuple[str, str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    both = [DataSource(pairs=name) for name in two]
    note_stores(run, open_stores(both).material.train)
    check_stores(run, open_stores(both).material.train)
    write_pairs(tmp_path, "c.tsv", 201, 3)
    config = Path(two[1]) / "config.toml"
    stored = RunFolder(Path(two[1])).read_config()
    assert stored is not None
    for path in sorted(Path(two[1]).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    prepare(config.parent.parent, "second", *(str(source.pairs) for source in stored.data), like=two[0])
    with pytest.raises(DataError, match=r"second/data/train/00: this store changed"):
        check_stores(run, open_stores(both).material.train)


def test_a_signal_while_the_model_is_finished_is_told(
    two: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the same command makes the model."""
    words = (two[0], *(word for word in FAST if not word.startswith("text.")), "training.max_steps=2")
    request = TrainRequest(words=words, out=tmp_path / "run")
    original = train_module.finish_run

    def stopped(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("not cut short")

    monkeypatch.setattr(train_module, "finish_run", stopped)
    with caplog.at_level("WARNING", logger="malmoi"):
        trained = train(request, read_given(request), quiet=True)
    assert (trained.outcome.exit_status, trained.report) == (143, None)
    assert "received SIGTERM: training is over and saved" in caplog.text
    assert not (tmp_path / "run" / "model").exists()
    monkeypatch.setattr(train_module, "finish_run", original)
    assert train(request, read_given(request), quiet=True).outcome.exit_status == 0
    assert (tmp_path / "run" / "model").exists()


def test_a_run_on_two_stores_with_stages_goes_on_bit_for_bit(two: tuple[str, str], tmp_path: Path) -> None:
    """Stopped within each stage and between them."""
    write(
        tmp_path / "stages.toml",
        [
            "[[stages]]\nafter_steps = 4\nweights = [0.5, 2, 1, 0]",
            "[[stages]]\nafter_steps = 7\nweights = [0, 1, 0, 0]",
        ],
    )

    def run(name: str, steps: int) -> list[float]:
        words = (*two, *FAST, "training.validate_every=3", f"training.max_steps={steps}", "training.log_every=1")
        words = tuple(word for word in words if not word.startswith("text."))
        request = TrainRequest(words=words, out=tmp_path / name, config=tmp_path / "stages.toml")
        trained = train(request, read_given(request), quiet=True)
        assert trained.outcome.step == steps
        rows = (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [row["loss"] for row in map(json.loads, rows) if "loss" in row]

    whole = run("whole", 10)
    for steps in (3, 4, 6, 8):
        run("parts", steps)
    assert run("parts", 10) == whole and len(whole) == 10
    models = [tmp_path / name / "checkpoints" / "step-00000010" / "model.safetensors" for name in ("whole", "parts")]
    assert models[0].read_bytes() == models[1].read_bytes()
