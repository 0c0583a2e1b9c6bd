"""The models of a service: what they are called, what they translate, and one copy of each in memory.

In: words of the operator, `[NAME=]MODEL`. Out: models by name and by pair of languages. A name that a client sends is
looked up among those of the operator and never made into a path.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from malmoi.card import Card
from malmoi.config.run import StoredConfig
from malmoi.config.training import Device
from malmoi.decoding.batch import SearchBatch
from malmoi.engine.choose import allows_threads
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.serving.batcher import Batcher
from malmoi.serving.languages import maybe_match, name_of
from malmoi.serving.limits import RefusedError, ServingConfig, shown
from malmoi.serving.metrics import Metrics
from malmoi.serving.tickets import Group
from malmoi.stored import CARD_FILE, find_model, load_card, load_config
from malmoi.translate import Translator

CODE = r"[a-z]{2,3}(?:-[A-Z][A-Za-z]{1,3})?"
PAIR = re.compile(f"({CODE})-({CODE})")
LONGEST_EXAMPLE = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Description:
    """What is known of a model before it is loaded; codes of languages are empty where its name says none."""

    name: str
    path: Path
    source: str
    target: str
    config: StoredConfig
    num_parameters: int
    examples: tuple[str, ...] = ()
    """Sentences to try it with."""

    @property
    def has_attention(self) -> bool:
        model = self.config.model
        return model.architecture == "transformer" or model.attention != "none"

    @property
    def source_name(self) -> str:
        return name_of(self.source) if self.source else self.name

    @property
    def target_name(self) -> str:
        return name_of(self.target) if self.target else self.name


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and the threads that search with it."""

    translator: Translator
    batcher: Batcher


class ServedModel:
    """One model, loaded when it is first asked for, once however many ask at the same time."""

    def __init__(
        self, description: Description, limits: ServingConfig, metrics: Metrics, *, device: Device, threads: int
    ) -> None:
        self.description = description
        self.limits = limits
        self.metrics = metrics
        self.device: Device = device
        self.threads = threads
        self.lock = threading.Lock()
        self.maybe_loaded: Loaded | None = None

    def load(self) -> Loaded:
        """The model in memory; `CheckpointError` where it cannot be read."""
        with self.lock:
            if self.maybe_loaded is None:
                self.maybe_loaded = self.read()
            return self.maybe_loaded

    def read(self) -> Loaded:
        one = self.description
        translator = Translator.load(one.path, device=self.device, threads=self.threads)
        # Notes go to the client; they may hold text of theirs.
        translator.tell = False
        scorer = translator.scorer_for(translator.decoding)
        self.metrics.add("loads", model=one.name)
        get_logger().info("%s: loaded from %s", one.name, one.path)

        def make(group: Group) -> SearchBatch:
            return SearchBatch(
                translator.scorer_for(group.config),
                group.config,
                translator.forbidden_ids(group.config),
                keep_attention=group.keep_attention,
                is_patient=False,
            )

        workers = translator.threads if allows_threads(scorer) else 1
        return Loaded(translator, Batcher(make, self.limits, self.metrics, name=one.name, workers=workers))

    def close(self, seconds: float) -> None:
        """End the threads, if there are any, once what was accepted is done."""
        with self.lock:
            if self.maybe_loaded is not None:
                self.maybe_loaded.batcher.close(seconds)


class Models:
    """All models of a service."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name = {model.description.name: model for model in models}
        if len(self.by_name) < len(models):
            names = [model.description.name for model in models]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{twice}: two models have this name; give them others, as NAME=MODEL")
        self.by_pair: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            one = model.description
            if one.source and one.target:
                self.by_pair.setdefault((one.source, one.target), model)

    def named(self, name: str) -> ServedModel:
        """The model of this name; `RefusedError` where there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise RefusedError(404, "no_such_model", f"there is no model {shown(name)!r} here")
        return found

    @property
    def sources(self) -> list[str]:
        """Codes of source languages, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self.by_pair))

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(target for _, target in self.by_pair))

    def targets_of(self, source: str) -> list[str]:
        return [target for one, target in self.by_pair if one == source]

    def maybe_for(self, source: str, target: str) -> ServedModel | None:
        """The model for a pair of codes as a client writes them."""
        found = maybe_match(source, self.sources)
        wanted = maybe_match(target, self.targets_of(found)) if found is not None else None
        return self.by_pair[found, wanted] if found is not None and wanted is not None else None

    def give_up(self) -> None:
        """Tell all who still wait that nothing comes any more."""
        for model in self.by_name.values():
            if model.maybe_loaded is not None:
                model.maybe_loaded.batcher.give_up()

    def close(self, seconds: float) -> None:
        for model in self.by_name.values():
            model.close(seconds)


def describe(word: str) -> Description:
    """What `[NAME=]MODEL` names; `ConfigError` for a name that cannot be, `CheckpointError` for what is no model."""
    before, separator, behind = word.partition("=")
    has_name = bool(separator) and "/" not in before and not Path(word).exists()
    path = Path(behind if has_name else word)
    folder = find_model(path)
    name = before if has_name else default_name(path)
    if not NAME.fullmatch(name):
        raise ConfigError(f"{word}: {name!r} is no name for a model: letters, digits, _ . - and at most 64 of them")
    config = load_config(folder)
    card = Card.model_validate(load_card(folder / CARD_FILE))
    pair = PAIR.fullmatch(name)
    if pair is None:
        get_logger().info(
            "%s: the name is no pair of languages, so the model is served under /api alone; for LibreTranslate's and "
            "DeepL's clients write it as en-de=%s",
            name,
            path,
        )
    source, target = pair.groups() if pair is not None else ("", "")
    examples = tuple(one.source for one in card.sentences if len(one.source) <= LONGEST_EXAMPLE)[:3]
    return Description(name, path, source, target, config, card.num_parameters, examples)


def default_name(path: Path) -> str:
    """What a model is called that was given no name: as its folder, or as its run."""
    resolved = path.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name
