"""Prepared stores as the data of a run: one, or several that were tokenised alike and may lie on different disks.

In: a config whose data are folders that `malmoi prepare` made. Out: their `Material` as one, with the settings of text
that they share. What a run was begun with is written down in `stores.json`, so that it never goes on with other data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from malmoi.commands.folder import RunFolder
from malmoi.commands.material import READY, Material, Validation, checked, open_material
from malmoi.commands.plan import plain
from malmoi.config.run import RunConfig
from malmoi.config.text import DataSource
from malmoi.data.store import Store
from malmoi.errors import CheckpointError, ConfigError, DataError
from malmoi.evaluation.references import References
from malmoi.files import write_atomically
from malmoi.settings import Settings

STORES = "stores.json"


@dataclass(frozen=True)
class Prepared:
    """A complete store and the settings that it was made with."""

    folder: RunFolder
    config: RunConfig
    material: Material

    @property
    def fixed(self) -> Settings:
        """Settings of every run on it."""
        return {"text": plain(self.config.text), "cleaning": plain(self.config.cleaning)}

    @property
    def shared(self) -> Settings:
        """Settings of every store like it; the seed decides which sources are held out."""
        return {**self.fixed, "training": {"seed": self.config.training.seed}}


def stores_of(config: RunConfig) -> tuple[DataSource, ...]:
    """The data of a run where it lies in prepared stores; nothing where it is text."""
    stores = [source for source in config.data if source.pairs is not None and Path(source.pairs).is_dir()]
    if not stores:
        return ()
    if len(stores) < len(config.data):
        raise ConfigError(
            f"{stores[0].pairs}: a prepared store and text cannot be the data of one run; prepare the text too, with "
            f"`malmoi prepare ... --like {stores[0].pairs}`"
        )
    if config.valid:
        raise ConfigError(
            f"{stores[0].pairs}: a prepared store holds its validation data; give --valid to `malmoi prepare`"
        )
    names = [str(source.pairs) for source in stores]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name}: given twice; a weight says how often its pairs are seen")
        check_complete(Path(name))
    return tuple(stores)


def check_complete(path: Path) -> None:
    """`ConfigError` for what is no store."""
    if not (path / "data" / READY).exists():
        raise ConfigError(f"{path}: not a complete store that `malmoi prepare` made")


def open_prepared(path: Path) -> Prepared:
    """A store by itself; it may lack validation data, where it was prepared like another one."""
    check_complete(path)
    folder = RunFolder(path)
    material, config = open_material(folder, ()), folder.read_config()
    if material is None or config is None:
        raise ConfigError(f"{folder.config}: missing; the store is not complete")
    return Prepared(folder, config, material)


def open_stores(sources: Sequence[DataSource]) -> Prepared:
    """All stores as one: the corpora of each after those of the one before, and so their validation pairs.

    The weight of a store multiplies those of its corpora. `ConfigError` where they were not prepared alike.
    """
    first, *others = [open_prepared(Path(str(source.pairs))) for source in sources]
    tokenizers = first.material.tokenizers
    for other in others:
        if tokenizers.maybe_different(other.material.tokenizers) is not None or other.shared != first.shared:
            raise ConfigError(
                f"{other.folder.path}: was prepared with another vocabulary or other settings than "
                f"{first.folder.path}; prepare it with --like {first.folder.path}"
            )
        tokenizers = tokenizers.after(other.material.tokenizers)
    parts = [first, *others]
    train = tuple(
        replace(store, weight=store.weight * source.weight)
        for part, source in zip(parts, sources, strict=True)
        for store in part.material.train
    )
    validation = Validation(
        [text for part in parts for text in part.material.validation.sources],
        References(tuple(row for part in parts for row in part.material.validation.references.answers)),
    )
    facts = replace(first.material.facts, num_pairs=sum(part.material.facts.num_pairs for part in parts))
    valid = tuple(store for part in parts for store in part.material.valid)
    material = Material(tokenizers, train, valid, validation, facts, first.material.held_out_share)
    if not valid:
        raise DataError(
            f"{first.folder.path}: holds no pairs for validation, as it was prepared like another store; "
            "name that one too"
        )
    return replace(first, material=checked(material))


def note_stores(folder: RunFolder, stores: Sequence[Store]) -> None:
    """Write down what a new run is made from."""
    keys = {str(store.folder): store.manifest.key for store in stores}
    write_atomically(folder.path / STORES, json.dumps(keys, ensure_ascii=False, indent=1).encode() + b"\n")


def check_stores(folder: RunFolder, stores: Sequence[Store]) -> None:
    """`DataError` with the name of a store that holds something else than when the run began."""
    place = folder.path / STORES
    try:
        noted = cast(dict[str, Any], json.loads(place.read_bytes()))
        changed = [store.folder for store in stores if noted.get(str(store.folder)) != store.manifest.key]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{place}: gone or damaged ({error}); put it back, or start anew") from error
    if changed:
        raise DataError(
            f"{changed[0]}: this store changed; {folder.path} was made from what it held before. Put it back as it "
            "was, or start anew with another --out"
        )


def check_stages(config: RunConfig, num_corpora: int) -> None:
    """`ConfigError` unless stages follow each other, and each has a weight for each corpus."""
    begins = [stage.after_steps for stage in config.stages]
    if begins != sorted(set(begins)):
        raise ConfigError(f"stages: each must begin after the one before it, but their after_steps are {begins}")
    for stage in config.stages:
        if not any(stage.weights):
            raise ConfigError(f"stages: after {stage.after_steps} steps all weights are 0: nothing is left to train on")
        if len(stage.weights) != num_corpora:
            raise ConfigError(
                f"stages: the one after {stage.after_steps} steps has {len(stage.weights)} weights, but there are "
                f"{num_corpora} corpora to train on (those of a prepared store count one by one)"
            )
