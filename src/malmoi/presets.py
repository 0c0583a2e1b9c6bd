"""Ready-made settings: named presets, and what `malmoi train` chooses by itself from the data.

In: a preset's name, or the facts of a corpus. Out: settings as nested dictionaries, the layer that config files and
`key=value` words lie upon. Pure functions: nothing is read, nothing is measured here.
"""

import difflib
from collections.abc import Mapping, Set
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, Protocol, cast

from malmoi.errors import ConfigError
from malmoi.settings import Settings, merge

Kind = Literal["sentences", "short strings"]

TOKENIZER_KEYS = frozenset({"tokenizer", "source_tokenizer", "target_tokenizer", "shared_vocabulary"})
LIMIT_KEYS = frozenset({"max_steps", "max_epochs", "max_target_tokens", "max_minutes"})

RNN_RATE = 1e-3

LONGEST_SHORT_STRING = 40
"""Characters up to which a text can be a word with its tags, a form or a pronunciation rather than a sentence."""


class SideFacts(Protocol):
    """What must be known of one side of a corpus to choose settings for it."""

    mean_characters: float
    long_characters: int
    mean_words: float
    is_symbols: bool

    @property
    def is_words(self) -> bool: ...


class Facts(Protocol):
    """What must be known of a corpus to choose settings for it."""

    @property
    def num_pairs(self) -> int: ...
    @property
    def source(self) -> SideFacts: ...
    @property
    def target(self) -> SideFacts: ...


@dataclass(frozen=True)
class Size:
    """A Transformer's size, and the dropout that so small a corpus needs with it."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    feed_forward: int
    dropout: float

    def as_settings(self) -> Settings:
        return {
            "architecture": "transformer",
            "width": self.width,
            "heads": self.heads,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "feed_forward": self.feed_forward,
            "dropout": self.dropout,
        }


PRESETS: dict[str, Settings] = {
    # Vaswani et al. (2017), table 3: rows "base" and "big"; the rate follows from width and warm-up (section 5.3).
    "paper-base": {
        "text": {"tokenizer": "bpe", "vocabulary_size": 37000, "shared_vocabulary": True},
        "model": Size(512, 8, 6, 6, 2048, 0.1).as_settings(),
        "training": {
            "schedule": "paper",
            "warmup_steps": 4000,
            "batch_tokens": 25000,
            "max_steps": 100_000,
            "validate_every": 2000,
            "keep_last": 5,
            "average": 5,
        },
        "decoding": {"beam_size": 4, "length_penalty": "wu", "length_alpha": 0.6},
    },
    "paper-big": {
        "text": {"tokenizer": "bpe", "vocabulary_size": 37000, "shared_vocabulary": True},
        "model": Size(1024, 16, 6, 6, 4096, 0.3).as_settings(),
        "training": {
            "schedule": "paper",
            "warmup_steps": 4000,
            "batch_tokens": 25000,
            "max_steps": 300_000,
            "validate_every": 2000,
            "keep_last": 20,
            "average": 20,
        },
        "decoding": {"beam_size": 4, "length_penalty": "wu", "length_alpha": 0.6},
    },
    "tiny": {
        "model": Size(128, 4, 4, 4, 256, 0.3).as_settings(),
        "training": {"schedule": "inverse_sqrt", "lr": 5e-3, "warmup_steps": 2000, "batch_tokens": 4096},
    },
    "small": {
        "model": Size(256, 4, 4, 4, 1024, 0.2).as_settings(),
        "training": {"schedule": "inverse_sqrt", "lr": 2e-3, "warmup_steps": 2000, "batch_tokens": 8192},
    },
    # The two systems that came before: Sutskever et al. (2014), Bahdanau et al. (2015).
    "seq2seq": {
        "model": {"architecture": "rnn", "cell": "gru", "attention": "none", "width": 256, "hidden": 512},
        "training": {"schedule": "inverse_sqrt", "lr": 1e-3, "warmup_steps": 500, "clip_norm": 1.0},
    },
    "seq2seq-attention": {
        "model": {"architecture": "rnn", "cell": "gru", "attention": "additive", "width": 256, "hidden": 512},
        "training": {"schedule": "inverse_sqrt", "lr": 1e-3, "warmup_steps": 500, "clip_norm": 1.0},
    },
}


def preset_settings(name: str) -> Settings:
    """The settings of a preset; a `ConfigError` names the nearest one where there is none of that name."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise ConfigError(f"--preset {name}: no such preset; {hint}")
    return deepcopy(PRESETS[name])


def kind_of_pairs(facts: Facts) -> Kind:
    """Sentences, or short strings such as words with their pronunciations or inflected forms."""
    sides = (facts.source, facts.target)
    short = all(side.is_words or side.is_symbols or side.long_characters <= LONGEST_SHORT_STRING for side in sides)
    return "short strings" if short and any(side.is_words or side.is_symbols for side in sides) else "sentences"


def automatic_settings(facts: Facts) -> Settings:
    """Settings for data of which nothing but its facts is known: all that `malmoi train` decides by itself."""
    return short_string_settings(facts) if kind_of_pairs(facts) == "short strings" else sentence_settings(facts)


def settings_for(facts: Facts, *layers: Mapping[str, Any]) -> Settings:
    """Automatic settings with what the user gave lying upon them: preset, config file, `key=value` words.

    Some choices make sense together only, so more gives way than the very same keys. Whoever names a tokeniser chooses
    all of them; whoever names a schedule, the rate; whoever limits a run, when it ends; and how weights are tied
    follows from the vocabularies, where it was not said.
    """
    given = merge(*layers)
    text, model, training = (table_of(given, name) for name in ("text", "model", "training"))
    automatic = automatic_settings(facts)
    if TOKENIZER_KEYS & text.keys():
        drop(automatic["text"], TOKENIZER_KEYS)
    if "schedule" in training:
        drop(automatic["training"], {"lr", "warmup_steps"})
    elif model.get("architecture") == "rnn":
        automatic["training"].update(lr=RNN_RATE, clip_norm=1.0)
    elif isinstance(model.get("width"), int):
        # Wider models diverge at rates that narrow ones need.
        automatic["training"]["lr"] *= min(1.0, automatic["model"]["width"] / max(1, model["width"]))
    if LIMIT_KEYS & training.keys():
        drop(automatic["training"], {"max_steps", "patience"})
        if "warmup_steps" in automatic["training"] and "max_steps" in training:
            automatic["training"]["warmup_steps"] = warmup(training["max_steps"])
    for keys in ({"metrics", "best_metric"}, {"average", "keep_last"}):
        if keys & training.keys():
            drop(automatic["training"], keys)
    settings = merge(automatic, given)
    if "tying" not in model and isinstance(settings["model"], dict):
        shared = table_of(settings, "text").get("shared_vocabulary", True)
        settings["model"]["tying"] = "all" if shared else "target"
    return settings


def table_of(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table within settings; something that is no table is left for the check of the whole config to tell."""
    value = settings.get(name, {})
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def drop(table: Settings, keys: Set[str]) -> None:
    """Remove keys, whether they are there or not."""
    for key in keys:
        table.pop(key, None)


def sentence_settings(facts: Facts) -> Settings:
    """One shared subword vocabulary, and a model that grows with the number of pairs."""
    pairs = facts.num_pairs
    size, lr, batch_tokens = sentence_size(pairs)
    longest = max(facts.source.mean_characters, facts.target.mean_characters)
    # A subword is four characters or so: enough to turn epochs into steps.
    steps_per_epoch = max(1, ceil(pairs * longest / 4 / batch_tokens))
    validate_every = between(100, 2 * steps_per_epoch, 2000)
    return {
        "text": {
            "tokenizer": "bpe",
            "vocabulary_size": vocabulary_size(pairs),
            "shared_vocabulary": True,
        },
        "model": {**size.as_settings(), "tying": "all"},
        "training": {
            **shared_training(lr, batch_tokens, validate_every, max_steps=sentence_steps(pairs, steps_per_epoch)),
            "metrics": ("loss", "bleu", "chrf"),
            "best_metric": "loss",
            "validation_pairs": 500,
        },
        "decoding": {"beam_size": 5, "length_penalty": "wu", "length_alpha": 1.0},
    }


def vocabulary_size(pairs: int) -> int:
    """Subwords: fewer pairs see each subword too seldom to learn it, so their words are cut finer."""
    for limit, size in ((2_000, 1_000), (5_000, 2_000), (15_000, 4_000), (100_000, 8_000), (500_000, 16_000)):
        if pairs < limit:
            return size
    return 32_000


def sentence_size(pairs: int) -> tuple[Size, float, int]:
    """Model, peak rate and tokens per update."""
    if pairs < 5_000:
        return Size(128, 4, 3, 3, 256, 0.3), 3e-3, 2048
    if pairs < 100_000:
        return Size(128, 4, 4, 4, 256, 0.3), 5e-3, 4096
    if pairs < 500_000:
        return Size(256, 4, 4, 4, 1024, 0.2), 2e-3, 8192
    return Size(512, 8, 6, 6, 2048, 0.1), 7e-4, 25_000


def sentence_steps(pairs: int, steps_per_epoch: int) -> int:
    """Updates at most; patience ends most runs before."""
    epochs = 60 if pairs < 15_000 else 40 if pairs < 100_000 else 20
    return between(1_000, epochs * steps_per_epoch, 200_000)


def short_string_settings(facts: Facts) -> Settings:
    """Characters, or whole symbols where a side is written as symbols between spaces; each side on its own."""
    pairs = facts.num_pairs
    source, target = kind_of_symbols(facts.source), kind_of_symbols(facts.target)
    batch_tokens = 1024 if pairs < 5_000 else 2048 if pairs < 30_000 else 4096
    longest = max(mean_symbols(facts.source), mean_symbols(facts.target)) + 1
    steps_per_epoch = max(1, ceil(pairs * longest / batch_tokens))
    size = Size(128, 4, 2, 2, 512, 0.3) if pairs < 10_000 else Size(256, 4, 3, 3, 512, 0.1)
    epochs = 100 if pairs < 10_000 else 40 if pairs < 50_000 else 20
    return {
        "text": {
            "tokenizer": source,
            "source_tokenizer": source,
            "target_tokenizer": target,
            "vocabulary_size": 8_000,
            "shared_vocabulary": False,
        },
        "model": {**size.as_settings(), "tying": "target"},
        "training": {
            **shared_training(
                2e-3,
                batch_tokens,
                between(100, steps_per_epoch, 1000),
                max_steps=between(1_000, epochs * steps_per_epoch, 30_000),
            ),
            "metrics": ("loss", "exact", "ser"),
            "best_metric": "ser",
        },
        "decoding": {"beam_size": 5, "length_penalty": "wu", "length_alpha": 0.0},
    }


def kind_of_symbols(side: SideFacts) -> Literal["characters", "words"]:
    """Whole symbols where a side is written as symbols between spaces, as phonemes and tags are."""
    return "words" if side.is_symbols else "characters"


def mean_symbols(side: SideFacts) -> float:
    """Mean length of a text in what `kind_of_symbols` chose."""
    return side.mean_words if side.is_symbols else side.mean_characters


def shared_training(lr: float, batch_tokens: int, validate_every: int, *, max_steps: int) -> dict[str, Any]:
    """What sentences and short strings have in common."""
    return {
        "schedule": "inverse_sqrt",
        "lr": lr,
        "warmup_steps": warmup(max_steps),
        "batch_tokens": batch_tokens,
        "max_steps": max_steps,
        "validate_every": validate_every,
        "patience": 10,
        "keep_last": 5,
        "average": 5,
    }


def warmup(max_steps: object) -> int:
    """A tenth of the run, within what is usual."""
    return between(1, max_steps // 10, 2000) if isinstance(max_steps, int) else 2000


def between(lowest: int, value: int, highest: int) -> int:
    """The value, or the nearer end of the range where it lies outside."""
    return max(lowest, min(value, highest))
