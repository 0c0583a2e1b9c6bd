"""Settings: layers, overrides, TOML there and back, and errors that tell every fault with its place."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.errors import ConfigError
from malmoi.settings import build_config, merge, parse_overrides, read_toml, to_toml


def test_defaults_make_a_config() -> None:
    config = build_config({})
    assert config == RunConfig()
    assert config.model == TransformerConfig()


def test_overrides_become_nested_tables() -> None:
    words = ["model.width=64", "training.lr=1e-3", "training.metrics=['loss', 'bleu']", "training.tensorboard=true"]
    assert parse_overrides(words) == {
        "model": {"width": 64},
        "training": {"lr": 1e-3, "metrics": ["loss", "bleu"], "tensorboard": True},
    }


@pytest.mark.parametrize(("text", "value"), [("bpe", "bpe"), ("no", "no"), ("a=b", "a=b"), ("", ""), ("1_000", 1000)])
def test_an_override_that_is_no_toml_is_text(text: str, value: object) -> None:
    assert parse_overrides([f"text.tokenizer={text}"]) == {"text": {"tokenizer": value}}


@pytest.mark.parametrize("word", ["model.width", "=3"])
def test_a_word_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_overrides([word])


def test_a_value_cannot_hold_a_table() -> None:
    with pytest.raises(ConfigError, match="was given a value before"):
        parse_overrides(["model=3", "model.width=4"])


def test_later_layers_win_table_by_table_and_lists_whole() -> None:
    low = {"model": {"width": 8, "heads": 2}, "training": {"metrics": ["loss", "bleu"]}}
    high = {"model": {"width": 16}, "training": {"metrics": ["loss"]}}
    assert merge(low, high) == {"model": {"width": 16, "heads": 2}, "training": {"metrics": ["loss"]}}
    assert low["model"] == {"width": 8, "heads": 2}


def test_another_architecture_starts_its_table_anew() -> None:
    merged = merge({"model": {"architecture": "transformer", "heads": 4}}, {"model": {"architecture": "rnn"}})
    assert build_config(merged).model == RnnConfig()


def test_all_faults_are_told_at_once_with_place_and_nearest_name() -> None:
    settings = {
        "model": {"widht": 3, "dropout": 1.5},
        "training": {"precision": "fp16", "batch_token": 5},
        "trainig": {},
    }
    with pytest.raises(ConfigError) as caught:
        build_config(settings, "run.toml")
    message = str(caught.value)
    assert message.startswith("5 fault(s) in run.toml")
    for expected in (
        "model.widht: no such setting; did you mean width?",
        "model.dropout:",
        "fp16 is not offered",
        "did you mean batch_tokens?",
        "did you mean training?",
    ):
        assert expected in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"width": 10, "heads": 3}}, "cannot be cut into 3 heads"),
        ({"model": {"architecture": "mlp"}}, "must be transformer or rnn"),
        ({"text": {"shared_vocabulary": False}}, "text.shared_vocabulary = true"),
        ({"training": {"average": 5}}, "keep_last = 5"),
        ({"training": {"best_metric": "bleu"}}, "not among metrics"),
        ({"training": {"schedule": "cosine"}}, "set max_steps"),
        ({"decoding": {"n_best": 9}}, "beam_size of at least 9"),
        ({"decoding": {"beam_size": 5, "diverse_groups": 2}}, "groups of equal size"),
        ({"data": [{"source": "a"}]}, "two files"),
        ({"text": {"source_tokenizer": "words"}}, "one tokeniser"),
        ({"model": {"positions": "rotary", "width": 6, "heads": 2}}, "must be even"),
        ({"model": {"architecture": "rnn", "hidden": 5}}, "must be even"),
        ({"training": {"max_steps": 0}}, "max_steps"),
        ({"training": {"max_steps": "many"}}, "max_steps"),
        ({"training": {"lr": float("inf")}}, "finite number"),
        ({"decoding": {"max_length_ratio": float("inf")}}, "finite number"),
        ({"training": {"seed": 2**63}}, "seed"),
        ({"training": {"validation_beam": 1001}}, "validation_beam"),
        ({"text": {"vocabulary_size": 10**23}}, "vocabulary_size"),
        ({"model": {"encoder_layers": 10**8}}, "encoder_layers"),
        ({"model": 3}, "model"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": {"architecture": "rnn", "cell": "lstm"}},
        {"data": [{"pairs": 'a "quoted" \\ name\x7f\u2028.tsv', "weight": 2.0}, {"source": "a", "target": "b"}]},
        {"training": {"metrics": ["loss", "bleu"], "best_metric": "bleu", "freeze": ["encoder."], "lr": 1e-7}},
    ],
)
def test_a_config_written_reads_back_equal(settings: dict[str, Any], tmp_path: Path) -> None:
    config = build_config(settings)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert build_config(read_toml(path)) == config


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_toml(text: str) -> None:
    import tomllib

    from malmoi.config.text import DataSource

    assert tomllib.loads(to_toml(DataSource(pairs=text)))["pairs"] == text


def test_faults_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match="no such config file"):
        read_toml(path)
    path.write_bytes(b"a = \n")
    with pytest.raises(ConfigError, match=r"not valid TOML.*line 1"):
        read_toml(path)
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 5"):
        read_toml(path)
    path.write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(path) == {"a": 1}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path)


def test_a_table_cannot_be_changed() -> None:
    config = build_config({})
    with pytest.raises(ValueError, match="frozen"):
        config.valid_pairs = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_run_that_could_leave_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep_last and keep_best are both 0"):
        build_config({"training": {"keep_last": 0, "keep_best": 0}})


def test_word_error_of_symbols_names_what_to_take_instead() -> None:
    """For pronunciations it is the share of wrong words, for sentences edits per word: nobody shall get the other."""
    symbols = {"text": {"target_tokenizer": "words", "shared_vocabulary": False}, "model": {"tying": "target"}}
    build_config({"training": {"metrics": ["loss", "wer"]}})
    with pytest.raises(ConfigError, match=r"training\.metrics: .* take ser .* segment_error "):
        build_config({**symbols, "training": {"metrics": ["loss", "wer"]}})


def test_learned_positions_must_reach_as_far_as_training_pairs() -> None:
    settings = {"model": {"positions": "learned", "max_positions": 64}, "cleaning": {"max_tokens": 65}}
    with pytest.raises(ConfigError, match="learned positions reach to 64"):
        build_config(settings)
    assert build_config({**settings, "cleaning": {"max_tokens": 64}}).cleaning.max_tokens == 64
