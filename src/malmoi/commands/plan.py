"""What a run is to be: everything that the user said, checked before any work starts.

In: words and options of the command line. Out: settings in layers (preset, config file, `key=value`), later a
`RunConfig` once the facts of the data are known; for a run that goes on, the stored config with what may change.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from malmoi.config.run import RunConfig
from malmoi.config.tables import Table
from malmoi.config.text import DataSource
from malmoi.data.prepare import Facts, SideFacts
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.presets import preset_settings, settings_for
from malmoi.settings import Settings, build_config, merge, parse_overrides, read_toml
from malmoi.text.cmudict import PACKAGE_PREFIX
from malmoi.text.corpus import sources_from_words

SETTING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*=")

MAY_CHANGE = re.compile(
    r"decoding\.|training\.(max_|patience|log_every|validate_every|save_every|keep_|average:|threads|device|tensorboard"
    r"|micro_batch_tokens|fit_memory|parallel|validation_)"
)
"""What a run that goes on may change; anything else would make it another run."""

ORDINARY = SideFacts(mean_characters=60.0, long_characters=150, mean_words=12.0)
ORDINARY_FACTS = Facts(num_pairs=30_000, source=ORDINARY, target=ORDINARY)
"""Stands for the data as long as it was not read, so that faults in settings are told first."""


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asked for."""

    words: tuple[str, ...]
    out: Path
    valid: tuple[str, ...] = ()
    config: Path | None = None
    preset: str | None = None
    init: Path | None = None
    workers: int = 0
    like: Path | None = None
    """A store to prepare another one like."""


@dataclass(frozen=True)
class Given:
    """All that the user said, as settings, and where it was said."""

    settings: Settings
    origin: str

    def config(self, facts: Facts, *below: Mapping[str, Any]) -> RunConfig:
        """The config for data with these facts; `below` are settings that lie under what the user said."""
        return build_config(settings_for(facts, *below, self.settings), self.origin)


def read_given(request: TrainRequest) -> Given:
    """The layers of the command line as one, with paths made absolute; faults are told all at once."""
    data_words, overrides = split_words(request.words)
    layers: list[Mapping[str, Any]] = []
    origins: list[str] = []
    if request.preset is not None:
        layers.append(preset_settings(request.preset))
        origins.append(f"--preset {request.preset}")
    if request.config is not None:
        layers.append(read_toml(request.config))
        origins.append(str(request.config))
    if overrides:
        layers.append(parse_overrides(overrides))
        origins.append(" ".join(overrides))
    settings = merge(*layers)
    for key, words, where in (("data", data_words, "DATA"), ("valid", request.valid, "--valid")):
        if words:
            settings[key] = [plain(source) for source in sources_from_words(words, where)]
    given = Given(settings, " and ".join(origins) or "the command line")
    checked = given.config(ORDINARY_FACTS)
    for key, sources in (("data", checked.data), ("valid", checked.valid)):
        if sources:
            settings[key] = [plain(anchored(source)) for source in sources]
    return given


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Data and `key=value` settings; a file whose name looks like a setting is data."""
    data: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_setting = SETTING.match(word) is not None and not Path(word).exists()
        (overrides if is_setting else data).append(word)
    return data, overrides


def anchored(source: DataSource) -> DataSource:
    """The same corpus by absolute paths, so that a run can go on from another folder."""

    def absolute(name: str | None) -> str | None:
        is_path = name is not None and name != "-" and not name.startswith(PACKAGE_PREFIX)
        return str(Path(name).absolute()) if name is not None and is_path else name

    names = {key: absolute(getattr(source, key)) for key in ("pairs", "source", "target")}
    return source.model_copy(update=names)


def plain(table: Table) -> dict[str, Any]:
    """A table as plain settings, without what has no value."""
    return table.model_dump(mode="json", exclude_none=True)


def continued(stored: RunConfig, given: Given, where: Path) -> RunConfig:
    """The config of a run that goes on: the stored one with changes that do no harm; others are refused by name."""
    config = build_config(merge(plain(stored), given.settings), given.origin)
    changes = differences(plain(stored), plain(config))
    refused = [change for change in changes if not MAY_CHANGE.match(change)]
    if refused:
        listed = "\n".join(f"  {change}" for change in refused)
        raise ConfigError(
            f"{where} holds a run with other settings:\n{listed}\n"
            "Leave them as they are to go on with it, or give another --out; --init starts a new run from its model."
        )
    for change in changes:
        get_logger().info("changed since the run was started: %s", change)
        if change.startswith("training.max_steps:") and config.training.schedule == "cosine":
            get_logger().warning("the cosine schedule ends at max_steps: all rates to come are others")
    return config


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two settings, a line each: `model.width: 128 -> 256`."""
    found: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(cast(Settings, before), cast(Settings, after), f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before} -> {after}")
    return found
