"""Which systems `malmoi compare` trains, what is held equal between them, and the settings of each of their runs.

In: words and options of the command line. Out: a `Plan`, checked before any work starts, and from it the settings of
each run once the facts of the data are known.

What is equal whatever the rule: the pairs, the split, the tokenisers and stores, the batches and their order, label
smoothing, dropout, the rhythm of validation, and the search. Three systems are there without being asked for; they have
embeddings of the same width, and the recurrent ones states of twice that width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.config.tables import Table
from malmoi.config.text import DataSource
from malmoi.data.prepare import Facts
from malmoi.presets import automatic_settings, settings_for, table_of
from malmoi.settings import Settings, build_config, merge

Rule = Literal["tokens", "time", "parameters", "given"]
"""`tokens`: the same number of target tokens, which the same updates on the same batches are; `time`: the same wall
clock; `parameters`: as `tokens`, and recurrent states as large as make the number of parameters nearly equal; `given`:
runs that are there already."""

SYSTEMS: dict[str, Settings] = {
    "seq2seq": {"architecture": "rnn", "attention": "none"},
    "seq2seq-attention": {"architecture": "rnn", "attention": "additive"},
    "transformer": {"architecture": "transformer"},
}
LABELS = {"seq2seq": "Seq2Seq", "seq2seq-attention": "Seq2Seq + attention", "transformer": "Transformer"}
KINDS: dict[str, type[Table]] = {"rnn": RnnConfig, "transformer": TransformerConfig}
MOST_SEEDS = 20


@dataclass(frozen=True)
class System:
    """One of the systems: its name, and the settings that make it what it is."""

    name: str
    settings: Settings

    @property
    def is_ours(self) -> bool:
        """Whether this is one of the three; a user's file or run may be called like one of them."""
        return self.name in SYSTEMS and self.settings == {"model": SYSTEMS[self.name]}

    @property
    def label(self) -> str:
        return LABELS[self.name] if self.is_ours else self.name

    @property
    def architecture(self) -> str:
        return str(table_of(self.settings, "model").get("architecture", "transformer"))


@dataclass(frozen=True)
class Plan:
    """What is compared; `settings` are the user's, for all systems, `data`, `valid` and `test` are corpora.

    `runs` are run folders that are there already, one for each system; then there are no settings and no data.
    """

    systems: tuple[System, ...]
    rule: Rule
    num_seeds: int
    settings: Settings
    data: tuple[Settings, ...]
    valid: tuple[Settings, ...]
    test: tuple[Settings, ...]
    runs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Plan":
        """Raises `KeyError` or `TypeError` for what is no plan."""
        systems = tuple(System(one["name"], one["settings"]) for one in stored["systems"])
        corpora = {key: tuple(stored[key]) for key in ("data", "valid", "test")}
        return cls(
            systems, stored["rule"], stored["num_seeds"], stored["settings"], **corpora, runs=tuple(stored["runs"])
        )

    @property
    def seeds(self) -> list[int]:
        first = int(table_of(self.settings, "training").get("seed", 1))
        return list(range(first, first + self.num_seeds))

    @property
    def leader(self) -> System:
        """The one by whose settings data is prepared; a Transformer may have a limit on lengths."""
        return next((one for one in self.systems if one.architecture == "transformer"), self.systems[0])


def run_config(plan: Plan, system: System, facts: Facts, seed: int) -> RunConfig:
    """The config of a run on data with these facts."""
    given = run_settings(plan, system, facts, seed)
    return build_config(settings_for(facts, given), f"the settings of {system.name}")


def run_settings(plan: Plan, system: System, facts: Facts, seed: int, maybe_hidden: int | None = None) -> Settings:
    """What is given for a run of a system: its own settings, and those for all that it knows.

    `maybe_hidden`: the size of recurrent states that `--equal parameters` has chosen.
    """
    common = {**plan.settings}
    common["model"] = {key: value for key, value in table_of(common, "model").items() if is_for(plan, system, key)}
    given = merge(system.settings, common)
    if system.is_ours and system.architecture == "rnn":
        automatic = automatic_settings(facts)["model"]
        width = given["model"].get("width", automatic["width"])
        size = {"width": width, "dropout": automatic["dropout"]}
        if isinstance(width, int):
            size["hidden"] = 2 * width
        given["model"] = {**size, **given["model"]}
    if maybe_hidden is not None:
        given["model"]["hidden"] = maybe_hidden
    return merge(given, {"training": {"patience": 0, "seed": seed}})


def is_for(plan: Plan, system: System, key: str) -> bool:
    """Whether a system has a setting of models; one that no system has is kept, so that it is told as a fault."""
    kinds = {one.architecture: KINDS.get(one.architecture) for one in plan.systems}
    knowing = [name for name, kind in kinds.items() if kind is not None and key in kind.model_fields]
    return system.architecture in knowing or not knowing


def sources_of(settings: Sequence[Settings]) -> tuple[DataSource, ...]:
    """Corpora of a plan."""
    return tuple(DataSource.model_validate(one) for one in settings)
