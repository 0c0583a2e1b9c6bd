"""`malmoi compare`: several systems trained alike on the same data, or runs that are there already, side by side.

In: data, or run folders, and a folder. Out: in the folder `compare.json` (what is compared), `store/`, `test.jsonl`,
`runs/SYSTEM-SEED/` (ordinary run folders), `tests/` (what each run made of the test pairs), `report.json` and
`report.html`; on standard output the scores, or with `--json` what `report.json` holds (the fields of
`report/findings.py` as keys).

Everything is written down as it comes, so that the same command goes on where it was stopped: within a training, as
`malmoi train` does, and otherwise with what is missing.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from malmoi.commands.compare_plan import PLAN, CompareRequest, read_stored
from malmoi.commands.comparison import Contestant, Entry, gather
from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.plan import Given, TrainRequest, differences, plain
from malmoi.commands.results import finite, write_json, write_line
from malmoi.commands.shared_data import (
    STORE,
    TEST,
    SharedData,
    is_ready,
    open_sources,
    read_test,
    share_data,
    write_test,
)
from malmoi.commands.systems import Plan, System, run_config, run_settings
from malmoi.commands.train import train
from malmoi.commands.trials import find_trial, make_trial, weights_hash
from malmoi.config.model import RnnConfig
from malmoi.errors import CheckpointError, ConfigError
from malmoi.files import measure, write_atomically
from malmoi.log import add_log_file, get_logger
from malmoi.models.build import count_parameters
from malmoi.report.comparison import Language, comparison_page
from malmoi.report.findings import Findings
from malmoi.settings import Settings, merge

REPORT, PAGE, RUNS, TRIALS = "report.json", "report.html", "runs", "tests"


def run_compare(request: CompareRequest, maybe_plan: Plan | None, *, as_json: bool, quiet: bool) -> int:
    """Train what is missing, test it, write the report; returns the exit status. `maybe_plan` None goes on with what
    the folder holds."""
    folder = claim_folder(request.out, mark=PLAN)
    with ExitStack() as stack:
        stack.enter_context(alone_in(folder))
        handler = add_log_file(folder.log)
        stack.callback(handler.close)
        stack.callback(get_logger().removeHandler, handler)
        plan = settle(folder, maybe_plan)
        findings = of_runs(folder, plan, request) if plan.runs else of_systems(folder, plan, request, quiet=quiet)
        if isinstance(findings, int):
            return findings
        report(folder, findings, cast(Language, request.language), as_json=as_json, out=request.out)
    return 0


def of_systems(folder: RunFolder, plan: Plan, request: CompareRequest, *, quiet: bool) -> Findings | int:
    """Train and test all systems; the exit status where a signal came in between."""
    maybe_sources = open_sources(folder, plan)
    write_json_file(folder.path / PLAN, {"plan": plan.to_json()})
    shared = share_data(folder, plan, maybe_sources, workers=request.workers, quiet=quiet)
    entries: list[Entry] = []
    ahead = [(system, seed) for seed in plan.seeds for system in plan.systems]
    for number, (system, seed) in enumerate(ahead, start=1):
        get_logger().info("%d of %d: %s, seed %d", number, len(ahead), system.label, seed)
        status, found = train_and_test(folder, plan, shared, system, seed, quiet=quiet)
        if found is None:
            return status
        entries.append(found)
    order = [system.name for system in plan.systems]
    entries.sort(key=lambda one: order.index(one[0].system))
    return gather(plan, shared.test, entries, out=request.out)


def of_runs(folder: RunFolder, plan: Plan, request: CompareRequest) -> Findings:
    """Test runs that are there already."""
    test = read_test(plan)
    write_json_file(folder.path / PLAN, {"plan": plan.to_json()})
    write_test(folder, test)
    test_hash = measure(folder.path / TEST)[1]
    entries: list[Entry] = []
    for system, path in zip(plan.systems, plan.runs, strict=True):
        run = RunFolder(Path(path))
        config = run.read_config()
        if config is None:
            raise CheckpointError(f"{run.config}: missing; this is no run any more")
        place = folder.path / TRIALS / f"{system.name}.json"
        settings = {"run": path, "model": weights_hash(run)}
        trial = find_trial(place, settings, test_hash)
        if trial is None:
            get_logger().info("%s: translating the test pairs", system.name)
            place.parent.mkdir(exist_ok=True)
            trial = make_trial(run, config, settings, test, test_hash, place)
        entries.append((Contestant(system.name, system.label, config.training.seed, run, config), trial))
    return gather(plan, test, entries, out=request.out)


def settle(folder: RunFolder, maybe_plan: Plan | None) -> Plan:
    """The plan that holds: a stored one may be trained for longer or with more seeds, and nothing else, once there is
    data that was prepared by it, or a run that was tested by it."""
    place = folder.path / PLAN
    if maybe_plan is not None and not is_ready(folder) and not (folder.path / TRIALS).is_dir():
        return maybe_plan
    stored = read_stored(place)
    plan = maybe_plan or stored
    refuse_changes(folder, stored, plan)
    return plan


def refuse_changes(folder: RunFolder, stored: Plan, plan: Plan) -> None:
    """Whatever would make it another comparison is named; limits of training are looked at by each run itself."""
    before, after = (cast(Settings, json.loads(json.dumps(one.to_json()))) for one in (stored, plan))
    changes = [change for change in differences(before, after) if not change.startswith("settings.training.max_")]
    refused = [change for change in changes if not change.startswith("num_seeds:")]
    if plan.num_seeds < stored.num_seeds:
        refused.append(f"num_seeds: {stored.num_seeds} -> {plan.num_seeds}")
    if refused:
        listed = "\n".join(f"  {change}" for change in refused)
        raise ConfigError(
            f"{folder.path} holds another comparison:\n{listed}\n"
            "Leave them as they are to go on, or give another --out."
        )


def train_and_test(
    folder: RunFolder, plan: Plan, shared: SharedData, system: System, seed: int, *, quiet: bool
) -> tuple[int, Entry | None]:
    """One run, unless it is done: trained by the road of `malmoi train`, then tested. A signal gives its status."""
    name = f"{system.name}-{seed}"
    run = RunFolder(folder.path / RUNS / name)
    place = folder.path / TRIALS / f"{name}.json"
    settings = merge(
        {"text": plain(shared.config.text), "cleaning": plain(shared.config.cleaning)},
        run_settings(plan, system, shared.material.facts, seed, maybe_hidden(plan, system, shared, seed)),
        {"data": [{"pairs": str(folder.path.absolute() / STORE)}]},
    )
    test = measure(folder.path / TEST)[1]
    trial = find_trial(place, settings, test)
    if trial is None or not run.model.is_dir() or trial.model != weights_hash(run):
        request = TrainRequest(words=(), out=run.path)
        trained = train(request, Given(settings, f"the settings of {system.name}"), quiet=quiet)
        if trained.report is None:
            get_logger().info("stopped; the same command goes on from here")
            return trained.outcome.exit_status, None
        place.parent.mkdir(exist_ok=True)
        get_logger().info("%s: translating the test pairs", name)
        trial = make_trial(run, trained.config, settings, shared.test, test, place)
    config = run.read_config()
    if config is None:
        raise CheckpointError(f"{run.config}: missing, though the run was finished; remove {run.path} and go on")
    return 0, (Contestant(system.name, system.label, seed, run, config), trial)


def maybe_hidden(plan: Plan, system: System, shared: SharedData, seed: int) -> int | None:
    """The size of recurrent states, where the rule is to choose it."""
    if plan.rule != "parameters" or system.architecture != "rnn":
        return None
    facts, vocabularies = shared.material.facts, sizes_of(shared)
    wanted = count_parameters(run_config(plan, plan.leader, facts, seed).model, *vocabularies)
    config = run_config(plan, system, facts, seed).model
    assert isinstance(config, RnnConfig)
    return nearest_hidden(config, wanted, vocabularies)


def nearest_hidden(config: RnnConfig, wanted: int, vocabularies: tuple[int, int]) -> int:
    """The size of the states with which a recurrent system comes nearest to so many parameters: their number grows
    with it, so that halving finds it. It is even, since both directions of the encoder have half of it."""

    def count(half: int) -> int:
        return count_parameters(config.model_copy(update={"hidden": 2 * half}), *vocabularies)

    low, high = 1, 1
    while count(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    return 2 * min((low, high), key=lambda half: abs(count(half) - wanted))


def sizes_of(shared: SharedData) -> tuple[int, int]:
    """Sizes of the tokenisers."""
    return shared.material.tokenizers.source.size, shared.material.tokenizers.target.size


def report(folder: RunFolder, findings: Findings, language: Language, *, as_json: bool, out: Path) -> None:
    """Write the page and the JSON, and say what came out."""
    found = finite(findings.to_json())
    write_json_file(folder.path / REPORT, found)
    write_atomically(folder.path / PAGE, comparison_page(findings, language).encode("utf-8"))
    if as_json:
        write_json(found)
        return
    for line in as_table(findings):
        write_line(line)
    write_line(str(out / PAGE))


def write_json_file(path: Path, value: Mapping[str, Any]) -> None:
    """A file that is whole or not there."""
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n")


def as_table(findings: Findings) -> Sequence[str]:
    """Scores, what they cost, and what is clear, for a terminal."""
    scores = findings.quality.scores
    head = [one.label for one in next(iter(scores.values()))]
    rows = [f"{'':24}" + "".join(f"{label:>20}" for label in head) + f"{'minutes':>10}{'parameters':>14}"]
    for system in findings.systems:
        values = "".join(
            f"{one.mean:20.2f}" if one.deviation is None else f"{f'{one.mean:.2f} ± {one.deviation:.2f}':>20}"
            for one in scores[system.name]
        )
        cost = system.cost
        rows.append(f"{system.label:24}{values}{cost.training_seconds / 60:10.1f}{cost.num_parameters:14,}")
    rows += [f"  {one.label}: {one.signature}" for one in next(iter(scores.values()))]
    labels = {system.name: system.label for system in findings.systems}
    for pairing in findings.quality.pairings:
        one = pairing.difference
        verdict = "clear" if pairing.is_clear else "may be luck"
        rows.append(
            f"{labels[pairing.system]} minus {labels[pairing.baseline]}, {one.label}: {one.difference:+.2f} "
            f"[{one.interval[0]:+.2f}, {one.interval[1]:+.2f}], p = {one.p_value:.4f}, {verdict}"
        )
    return rows
