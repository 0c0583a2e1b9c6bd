"""What `malmoi compare` is asked for, checked before any work starts.

In: words and options of the command line, or what an earlier start wrote down. Out: a `Plan`; `ConfigError` for systems
that could not be compared: on other text, with another budget, or with settings that a comparison chooses by itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from malmoi.commands.plan import ORDINARY_FACTS, anchored, plain, split_words
from malmoi.commands.systems import SYSTEMS, Plan, Rule, System, run_config
from malmoi.config.run import RunConfig
from malmoi.errors import CheckpointError, ConfigError
from malmoi.presets import LIMIT_KEYS, table_of
from malmoi.settings import Settings, merge, parse_overrides, read_toml
from malmoi.text.corpus import sources_from_words

PLAN = "compare.json"
LANGUAGES = ("en", "ko")
MOST_SEEDS = 20


@dataclass(frozen=True)
class CompareRequest:
    """What the command line asked for."""

    words: tuple[str, ...]
    out: Path
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    configs: tuple[Path, ...] = ()
    rule: str | None = None
    num_seeds: int | None = None
    language: str = "en"
    workers: int = 0


def read_request(request: CompareRequest) -> Plan | None:
    """The plan that the command line asks for, checked; None where it names no data and so goes on with a folder's."""
    if request.language not in LANGUAGES:
        raise ConfigError(f"--language {request.language}: the page is written in {' and '.join(LANGUAGES)}")
    words, overrides = split_words(request.words)
    runs = [word for word in words if is_run(word)]
    others = [word for word in words if word not in runs]
    if runs and others:
        raise ConfigError(f"{others[0]}: is no finished run as {runs[0]} is; name runs alone, or data alone")
    if runs:
        return plan_of_runs(request, words, overrides)
    if words:
        return read_plan(request)
    place = request.out / PLAN
    if not place.is_file():
        raise ConfigError("there is nothing to compare on: name files with pairs, as in `malmoi compare a.en a.de`")
    stored = read_stored(place)
    if stored.runs and (overrides or request.rule or request.num_seeds):
        raise ConfigError(f"{request.out} compares runs that were trained already: there is nothing to train on")
    if request.valid or request.test or request.configs:
        raise ConfigError(f"{request.out} goes on with its own data and systems: leave --valid, --test, --system out")
    if not overrides and request.rule is None and request.num_seeds is None:
        return None
    return equalise(stored, overrides, request.rule, request.num_seeds)


def is_run(word: str) -> bool:
    """Whether a word names a finished run, rather than data."""
    return (Path(word) / "model").is_dir() and (Path(word) / "config.toml").is_file()


def plan_of_runs(request: CompareRequest, words: Sequence[str], overrides: Sequence[str]) -> Plan:
    """Runs that are there already, told apart by the names of their folders."""
    given = {
        "settings": overrides,
        "--valid": request.valid,
        "--system": request.configs,
        "--equal": request.rule,
        "--seeds": request.num_seeds,
    }
    for option, value in given.items():
        if value:
            raise ConfigError(f"{option}: these runs are trained already; give --test and --out alone")
    if not request.test:
        raise ConfigError("--test: say what pairs the runs are to be tested on")
    names = [Path(word).absolute().name for word in words]
    check_names(names, "two runs")
    systems = tuple(System(name, {}) for name in names)
    runs = tuple(str(Path(word).absolute()) for word in words)
    return Plan(systems, "given", 1, {}, (), (), corpora(request.test, "--test"), runs)


def check_names(names: Sequence[str], what: str) -> None:
    """At least two systems, each with a name of its own."""
    if len(names) < 2:
        raise ConfigError(f"{names[0]}: one system alone is no comparison; name all that are to be compared")
    for name in names:
        if not name.isprintable():
            raise ConfigError(
                f"{name!r}: {what} are told apart by their names, and this one cannot be shown: rename it"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{what} are called {name}, by which systems are told apart: rename one")


def read_stored(place: Path) -> Plan:
    """What an earlier start wrote down."""
    try:
        return Plan.from_json(cast(dict[str, Any], json.loads(place.read_bytes())["plan"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{place}: damaged ({error}); give another --out") from None


def read_plan(request: CompareRequest) -> Plan:
    """Everything that the user said; `ConfigError` for what cannot work."""
    data_words, overrides = split_words(request.words)
    plan = Plan(
        read_systems(request.configs),
        checked_rule(request.rule or "tokens"),
        checked_seeds(1 if request.num_seeds is None else request.num_seeds),
        parse_overrides(overrides),
        corpora(data_words, "DATA"),
        corpora(request.valid, "--valid"),
        corpora(request.test, "--test"),
    )
    check_plan(plan)
    return plan


def equalise(stored: Plan, overrides: Sequence[str], rule: str | None, num_seeds: int | None) -> Plan:
    """A stored plan with what a later start says otherwise, checked as a new one is."""
    plan = replace(
        stored,
        settings=merge(stored.settings, parse_overrides(overrides)),
        rule=checked_rule(rule or stored.rule),
        num_seeds=checked_seeds(stored.num_seeds if num_seeds is None else num_seeds),
    )
    check_plan(plan)
    return plan


def checked_rule(rule: str) -> Rule:
    rules = [one for one in get_args(Rule) if one != "given"]
    if rule not in rules:
        raise ConfigError(f"--equal {rule}: there are {', '.join(rules)}")
    return cast(Rule, rule)


def checked_seeds(num_seeds: int) -> int:
    if not 1 <= num_seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {num_seeds}: from 1 to {MOST_SEEDS}")
    return num_seeds


def corpora(words: Sequence[str], where: str) -> tuple[Settings, ...]:
    """Corpora by absolute paths, as settings."""
    return tuple(plain(anchored(source)) for source in sources_from_words(words, where)) if words else ()


def read_systems(configs: Sequence[Path]) -> tuple[System, ...]:
    """The three systems, or one for each config file, by the file's name."""
    if not configs:
        return tuple(System(name, {"model": dict(model)}) for name, model in SYSTEMS.items())
    systems = tuple(System(path.stem, read_toml(path)) for path in configs)
    check_names([system.name for system in systems], "two files")
    for system in systems:
        found = [key for key in ("data", "valid") if key in system.settings]
        if found:
            raise ConfigError(f"--system {system.name}: holds {found[0]}; name the data on the command line, for all")
    return systems


def check_plan(plan: Plan) -> None:
    """All that can be told without looking at the data."""
    check_words(plan, own=not all(system.is_ours for system in plan.systems))
    check_agreement(plan, [run_config(plan, system, ORDINARY_FACTS, plan.seeds[0]) for system in plan.systems])


def check_words(plan: Plan, *, own: bool) -> None:
    """`key=value` words that a comparison cannot follow; `own`: the systems are the user's."""
    training, model = table_of(plan.settings, "training"), table_of(plan.settings, "model")
    for key in ("data", "valid"):
        if key in plan.settings:
            raise ConfigError(f"{key}: name files, not settings")
    if "patience" in training:
        raise ConfigError("training.patience would end one system before the others: all have the same budget")
    for key in ("architecture", *(() if own else ("attention",))):
        if key in model:
            raise ConfigError(f"model.{key} is what tells the systems apart; give --system for each system instead")
    if plan.rule == "parameters":
        if own:
            raise ConfigError(
                "--equal parameters chooses sizes, which --system files say themselves: take tokens or time"
            )
        if "hidden" in model:
            raise ConfigError("--equal parameters chooses model.hidden by itself")


def check_agreement(plan: Plan, configs: Sequence[RunConfig]) -> None:
    """What must agree between systems: text, and when they end."""
    first = configs[0]
    for system, config in zip(plan.systems, configs, strict=True):
        for table in ("text", "cleaning"):
            if getattr(config, table) != getattr(first, table):
                raise ConfigError(
                    f"{system.name} and {plan.systems[0].name} differ in [{table}]: systems on other text cannot be "
                    "compared; say it on the command line, for all"
                )
        training = config.training
        has_clock = training.max_minutes is not None
        if plan.rule == "time":
            others = sorted(LIMIT_KEYS - {"max_minutes"} & {key for key, value in plain(training).items() if value})
            if not has_clock:
                raise ConfigError("--equal time: say how long each system trains, as in training.max_minutes=30")
            if others:
                raise ConfigError(f"--equal time: training.{others[0]} could end a system before its time")
        elif has_clock:
            raise ConfigError(f"--equal {plan.rule}: training.max_minutes would stop slow systems; take --equal time")
        elif budget_of(config) != budget_of(first):
            raise ConfigError(
                f"{system.name} and {plan.systems[0].name} differ in when they end: give both "
                "training.max_target_tokens, on the command line"
            )


def budget_of(config: RunConfig) -> tuple[Any, ...]:
    """When a run ends. Updates and epochs mean the same where batches are of the same size only."""
    training = config.training
    by_updates = training.max_steps is not None or training.max_epochs is not None
    size = training.batch_tokens if by_updates else None
    return training.max_steps, training.max_epochs, training.max_target_tokens, size
