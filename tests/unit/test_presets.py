"""Presets, and what is chosen from the facts of a corpus: every choice must make a valid config."""

from dataclasses import dataclass, replace

import pytest

from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.errors import ConfigError
from malmoi.presets import PRESETS, automatic_settings, kind_of_pairs, preset_settings, settings_for
from malmoi.settings import build_config, merge, parse_overrides


@dataclass
class Side:
    mean_characters: float
    long_characters: int
    mean_words: float
    is_words: bool = False
    is_symbols: bool = False


@dataclass(frozen=True)
class SomeFacts:
    num_pairs: int
    source: Side
    target: Side


SENTENCES = SomeFacts(29_000, Side(62.0, 120, 12.0), Side(70.0, 150, 11.0))
SHORT_SENTENCES = SomeFacts(5_000, Side(18.0, 38, 4.0), Side(17.0, 36, 4.0))
WORD = Side(7.5, 14, 1.0, is_words=True)
PRONUNCIATIONS = SomeFacts(120_000, WORD, Side(15.0, 32, 6.3, is_symbols=True))
INFLECTION = SomeFacts(10_000, WORD, WORD)
TAGGED_INFLECTION = SomeFacts(10_000, Side(20.0, 35, 2.0), WORD)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_valid_config(name: str) -> None:
    assert build_config(preset_settings(name)).model.architecture == preset_settings(name)["model"]["architecture"]


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("facts", [SENTENCES, PRONUNCIATIONS, INFLECTION])
def test_every_preset_lies_on_what_is_chosen_automatically(name: str, facts: SomeFacts) -> None:
    config = build_config(settings_for(facts, preset_settings(name)))
    assert config.model == build_config(settings_for(SENTENCES, preset_settings(name))).model.model_copy(
        update={"tying": "all" if config.text.shared_vocabulary else "target"}
    )


def test_paper_presets_are_the_papers() -> None:
    """Table 3 of "Attention Is All You Need"."""
    base = build_config(preset_settings("paper-base")).model
    assert base == TransformerConfig()
    big = build_config(preset_settings("paper-big")).model
    assert isinstance(big, TransformerConfig)
    assert (big.width, big.heads, big.feed_forward, big.dropout) == (1024, 16, 4096, 0.3)


def test_the_two_systems_before_it_have_presets() -> None:
    for name, attention in (("seq2seq", "none"), ("seq2seq-attention", "additive")):
        model = build_config(preset_settings(name)).model
        assert isinstance(model, RnnConfig) and model.attention == attention


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean paper-base"):
        preset_settings("paper_base")
    with pytest.raises(ConfigError, match="there are paper-base, paper-big"):
        preset_settings("xyzzy")


def test_a_preset_cannot_be_changed_by_its_user() -> None:
    preset_settings("tiny")["model"]["width"] = 1
    assert preset_settings("tiny")["model"]["width"] == 128


@pytest.mark.parametrize("pairs", [1, 10, 999, 1_000, 9_999, 10_000, 30_000, 150_000, 1_000_000, 40_000_000])
@pytest.mark.parametrize("facts", [SENTENCES, PRONUNCIATIONS, INFLECTION, TAGGED_INFLECTION])
def test_every_choice_is_a_valid_config(facts: SomeFacts, pairs: int) -> None:
    config = build_config(automatic_settings(replace(facts, num_pairs=pairs)))
    assert config.training.max_steps is not None
    assert config.training.warmup_steps <= config.training.max_steps
    assert config.training.validate_every <= config.training.max_steps


def test_kinds_are_told_apart() -> None:
    assert kind_of_pairs(SENTENCES) == "sentences"
    assert kind_of_pairs(SHORT_SENTENCES) == "sentences"
    for facts in (PRONUNCIATIONS, INFLECTION, TAGGED_INFLECTION):
        assert kind_of_pairs(facts) == "short strings"


def test_sentences_share_subwords_and_short_strings_do_not() -> None:
    text = build_config(automatic_settings(SENTENCES)).text
    assert (text.source_kind, text.target_kind, text.shared_vocabulary) == ("bpe", "bpe", True)
    text = build_config(automatic_settings(PRONUNCIATIONS)).text
    assert (text.source_kind, text.target_kind, text.shared_vocabulary) == ("characters", "words", False)
    text = build_config(automatic_settings(INFLECTION)).text
    assert (text.source_kind, text.target_kind) == ("characters", "characters")


def test_more_pairs_never_get_a_smaller_vocabulary_or_model() -> None:
    configs = [
        build_config(automatic_settings(replace(SENTENCES, num_pairs=pairs)))
        for pairs in (1_000, 4_000, 10_000, 30_000, 200_000, 5_000_000)
    ]
    sizes = [config.text.vocabulary_size for config in configs]
    widths = [config.model.width for config in configs]
    assert sizes == sorted(sizes) and widths == sorted(widths)
    assert sizes[0] < sizes[-1] and widths[0] < widths[-1]


def test_the_papers_rate_is_not_overruled_by_the_automatic_one() -> None:
    assert build_config(settings_for(SENTENCES, preset_settings("paper-base"))).training.lr is None


@pytest.mark.parametrize(
    "words",
    [
        ["text.tokenizer=bpe"],
        ["text.shared_vocabulary=true", "text.tokenizer=characters"],
        ["model.architecture=rnn"],
        ["model.width=64"],
        ["training.average=20", "training.keep_last=20"],
        ["training.keep_last=2"],
        ["training.metrics=['loss']"],
        ["training.schedule=paper"],
        ["training.max_steps=1"],
        ["training.max_minutes=5"],
        ["training.schedule=cosine", "training.max_steps=100"],
    ],
)
@pytest.mark.parametrize("facts", [SENTENCES, PRONUNCIATIONS, INFLECTION])
def test_one_word_of_the_user_wins_and_what_was_chosen_gives_way(facts: SomeFacts, words: list[str]) -> None:
    """Every word stands in the config, which is valid; and where it clashes with what was chosen, the choice goes."""
    given = parse_overrides(words)
    config = build_config(settings_for(facts, given)).model_dump(mode="json")
    for table, settings in given.items():
        assert {key: config[table][key] for key in settings} == settings


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (PRONUNCIATIONS, ["text.shared_vocabulary=true", "text.tokenizer=characters"]),
        (SENTENCES, ["text.shared_vocabulary=false"]),
        (SENTENCES, ["training.keep_last=2"]),
        (PRONUNCIATIONS, ["training.metrics=['loss']"]),
    ],
)
def test_words_clash_with_what_was_chosen_unless_more_than_they_gives_way(facts: SomeFacts, words: list[str]) -> None:
    given = parse_overrides(words)
    with pytest.raises(ConfigError):
        build_config(merge(automatic_settings(facts), given))
    build_config(settings_for(facts, given))


def test_a_named_tokenizer_replaces_both_sides() -> None:
    text = build_config(settings_for(PRONUNCIATIONS, {"text": {"tokenizer": "bpe"}})).text
    assert (text.source_kind, text.target_kind, text.shared_vocabulary) == ("bpe", "bpe", True)


def test_a_limit_of_the_user_is_the_only_one() -> None:
    training = build_config(settings_for(SENTENCES, {"training": {"max_minutes": 3.0}})).training
    assert training.max_steps is None and training.patience == 0 and training.max_minutes == 3.0


def test_faults_in_what_was_given_are_told_and_not_hidden() -> None:
    with pytest.raises(ConfigError, match=r"text: .*\n.*model\.widht: no such setting"):
        build_config(settings_for(SENTENCES, {"text": 3, "model": {"widht": 3}}))
