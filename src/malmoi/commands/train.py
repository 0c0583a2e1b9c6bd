"""`malmoi train`: pairs of text to a finished model, or on with a run that was stopped.

In: data, settings and a folder. Out: the run folder, with `model/` in it when the run is over; on standard output what
came of it. The order of work: check everything, read and clean, choose settings, tokenise, train, finish.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, TypeAlias

from malmoi.checkpoint import load_model
from malmoi.commands.finish import finish
from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import Material, make_material, open_corpora, open_material, scan_corpora
from malmoi.commands.plan import ORDINARY_FACTS, Given, TrainRequest, continued, plain
from malmoi.commands.progress import progress_bar
from malmoi.commands.results import write_json, write_line
from malmoi.commands.running import run_trainer
from malmoi.commands.stores import check_stages, check_stores, note_stores, open_stores, stores_of
from malmoi.config.run import RunConfig, StoredConfig
from malmoi.config.text import DataSource
from malmoi.device import choose_device, keep_freed_memory, set_threads
from malmoi.errors import CheckpointError, ConfigError
from malmoi.evaluation.evaluate import Report
from malmoi.files import write_atomically
from malmoi.log import add_log_file, configure_logging, get_logger
from malmoi.models.build import build_model, count_parameters
from malmoi.models.interface import Seq2Seq
from malmoi.report.curves import learning_curves, read_metrics
from malmoi.settings import Settings, to_toml
from malmoi.text.tokenizer import Tokenizers
from malmoi.training.memory import free_memory
from malmoi.training.outcome import Outcome
from malmoi.training.ranks import Ranks, join_ranks
from malmoi.training.signals import StopSignals
from malmoi.training.surroundings import describe_surroundings

FINE_TUNING: Settings = {"training": {"schedule": "inverse_sqrt", "lr": 3e-4, "warmup_steps": 100}}
"""Under what the user said, for a run that starts from a model: its weights are good already."""


@dataclass(frozen=True)
class Trained:
    """What came of a start of `malmoi train`; `report` is None where a signal ended it, or another process finishes."""

    folder: RunFolder
    config: RunConfig
    material: Material
    outcome: Outcome
    report: Report | None
    is_first: bool
    """Whether this process speaks for all that trained together."""


def run_train(request: TrainRequest, given: Given, *, as_json: bool, quiet: bool) -> int:
    """Train, print what came of it, and return the exit status."""
    trained = train(request, given, quiet=quiet)
    outcome, report = trained.outcome, trained.report
    if not trained.is_first:
        return outcome.exit_status
    if as_json:
        write_json(
            {
                "run": str(trained.folder.path),
                "model": str(trained.folder.model) if report is not None else None,
                "reason": outcome.reason,
                "steps": outcome.step,
                "epochs": outcome.epoch,
                "target_tokens": outcome.target_tokens,
                "seconds": outcome.seconds,
                "scores": [score.to_json() for score in report.scores] if report is not None else [],
            }
        )
    elif report is not None:
        write_line(f"{trained.folder.model}: {outcome.step:,} updates in {outcome.seconds / 60:.1f} minutes")
        for line in report.lines():
            write_line(line)
    return outcome.exit_status


def train(request: TrainRequest, given: Given, *, quiet: bool) -> Trained:
    """The whole road; raises `ConfigError`, `DataError` or `CheckpointError` for what cannot work."""
    with ExitStack() as stack:
        with join_ranks(os.environ) as ranks:
            quiet = quiet or not ranks.is_first
            with ranks.first_ahead():
                lead = lead_run if ranks.is_first else follow_run
                folder, config, material, maybe_network = lead(request, given, ranks, stack, quiet=quiet)
            if maybe_network is None:
                sizes = material.tokenizers.source.size, material.tokenizers.target.size
                maybe_network = build_model(config.model, *sizes, seed=config.training.seed)
            num_parameters = sum(parameter.numel() for parameter in maybe_network.parameters())
            get_logger().info("%s with %s parameters", config.model.architecture, f"{num_parameters:,}")
            with progress_bar("training", 1.0, quiet=quiet) as bar:
                outcome = run_trainer(folder, config, material, maybe_network, bar, ranks)
        report = None
        if ranks.is_first:
            if folder.metrics.exists():
                write_atomically(folder.curves, learning_curves(read_metrics(folder.metrics)).encode())
            if outcome.signal_number is None:
                with StopSignals(is_launched=ranks.count > 1) as signals:
                    trained = outcome
                    report = signals.cut_short(lambda: finish_run(folder, config, material, trained))
                if report is None:
                    outcome = stopped_while_finishing(outcome, signals)
    return Trained(folder, config, material, outcome, report, ranks.is_first)


Started: TypeAlias = tuple[RunFolder, RunConfig, Material, Seq2Seq | None]


def lead_run(request: TrainRequest, given: Given, ranks: Ranks, stack: ExitStack, *, quiet: bool) -> Started:
    """The run as this process alone makes it ready, in a folder that is its own until the stack is left."""
    folder = claim_folder(request.out)
    stack.enter_context(alone_in(folder))
    handler = add_log_file(folder.log)
    stack.callback(handler.close)
    stack.callback(get_logger().removeHandler, handler)
    config, material, maybe_network = resolve(request, given, folder, quiet=quiet)
    note_start(folder, config, ranks.count)
    return folder, config, material, maybe_network


def follow_run(request: TrainRequest, given: Given, ranks: Ranks, stack: ExitStack, *, quiet: bool) -> Started:
    """The run as the first process made it ready: all that the user said is in its config."""
    del given, stack
    configure_logging(quiet=quiet, speaker=f"rank {ranks.rank}: ")
    folder = RunFolder(request.out)
    config = folder.read_config()
    if config is None:
        raise CheckpointError(f"{folder.config}: not to be seen from here; all processes must see the same run folder")
    check_machine(config)
    material = reopen(folder, config)
    if material is None:
        raise CheckpointError(f"{folder.data}: not to be seen from here; all processes must see the same data")
    return folder, config, material, None


def resolve(
    request: TrainRequest, given: Given, folder: RunFolder, *, quiet: bool
) -> tuple[RunConfig, Material, Seq2Seq | None]:
    """The run's config and material, and a network where it starts from a model; new, or as the folder holds them."""
    stored = folder.read_config()
    if stored is not None:
        config = continued(stored, given, folder.path)
        check_machine(config)
        material = reopen(folder, config)
        if material is not None:
            if request.init is not None:
                get_logger().info("--init was for the start of this run; it goes on from its own state")
            write_config(folder, config)
            return config, material, None
    else:
        config = given.config(ORDINARY_FACTS)
    stores = stores_of(config)
    check_machine(config)
    if not config.data:
        raise ConfigError("there is nothing to train on: name files with pairs, as in `malmoi train a.en a.de`")
    started = load_model(request.init) if request.init is not None else None
    below: list[Settings] = []
    if started is not None:
        below += [FINE_TUNING, {"text": plain(started.config.text), "model": plain(started.config.model)}]
    if stores:
        config, material = from_stores(stores, given, stored, below)
        if started is not None:
            if material.tokenizers.maybe_different(started.tokenizers) is not None:
                raise ConfigError(f"--init {request.init}: its vocabulary is not that of the prepared store")
            material = replace(material, tokenizers=material.tokenizers.after(started.tokenizers))
        # First of all that a run holds: by it the folder is known when the start is made again.
        write_config(folder, config)
        note_stores(folder, material.train)
        material.tokenizers.save(folder.tokenizer)
    else:
        check_stages(config, len(config.data))
        corpora = open_corpora(config.data, config.valid)
        found, share = scan_corpora(corpora, config, quiet=quiet)
        config = stored or given.config(found.facts, *below)
        write_config(folder, config)
        material = make_material(
            folder,
            config,
            corpora,
            found,
            share,
            maybe_tokenizers=started.tokenizers if started is not None else None,
            workers=request.workers,
            quiet=quiet,
        )
    write_config(folder, config)
    if started is None:
        return config, material, None
    return config, material, start_from(started.network, config, started.config, material.tokenizers)


def check_machine(config: RunConfig) -> None:
    """What this machine lacks is told before work starts."""
    choose_device(config.training.device)
    set_threads(config.training.threads)
    keep_freed_memory()
    check_room(config)
    if config.training.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError("training.tensorboard needs tensorboardX: pip install 'malmoi[tensorboard]'")


def check_room(config: RunConfig) -> None:
    """A model whose weights, gradients and two moments are more than the memory that is free is refused.

    Only where it will lie in that memory: an accelerator has its own.
    """
    if choose_device(config.training.device).type != "cpu":
        return
    size = config.text.vocabulary_size
    num_parameters = count_parameters(config.model, size, size)
    needed, maybe_free = 16 * num_parameters, free_memory()
    if maybe_free is not None and needed > maybe_free:
        raise ConfigError(
            f"a model of {num_parameters:,} parameters needs {needed / 2**30:,.0f} GiB to be trained, but "
            f"{maybe_free / 2**30:,.0f} GiB are free: lower model.width, the layers or text.vocabulary_size"
        )


def reopen(folder: RunFolder, config: RunConfig, *, goes_on: bool = True) -> Material | None:
    """The material of a run that was started before, None where its start did not come to an end.

    A run that `goes_on` needs the files that its text came from, or its stores, as they were (`DataError`); one that is
    only looked at does not.
    """
    stores = stores_of(config)
    if not stores:
        return open_material(folder, config.data if goes_on else ())
    if not folder.tokenizer.exists():
        return None
    material = open_stores(stores).material
    if goes_on:
        check_stores(folder, material.train)
    # The run's own tokenisers know what a model that it started from had seen.
    return replace(material, tokenizers=Tokenizers.load(folder.tokenizer))


def from_stores(
    sources: Sequence[DataSource], given: Given, stored: RunConfig | None, below: list[Settings]
) -> tuple[RunConfig, Material]:
    """Config and material of a run on prepared stores, whose text settings are fixed."""
    prepared = open_stores(sources)
    config = stored or given.config(prepared.material.facts, *below, prepared.fixed)
    if config.text != prepared.config.text or config.cleaning != prepared.config.cleaning:
        raise ConfigError(
            f"{prepared.folder.path}: was prepared with other text or cleaning settings; prepare the data again"
        )
    check_stages(config, len(prepared.material.train))
    return config, prepared.material


def start_from(network: Seq2Seq, config: RunConfig, started: StoredConfig, tokenizers: Tokenizers) -> Seq2Seq:
    """A network of this run's config with the weights of another model, which must be of the same shape."""
    wanted = {**plain(config.model), **dropouts(started)}
    if wanted != plain(started.model):
        changed = [key for key, value in wanted.items() if plain(started.model).get(key) != value]
        raise ConfigError(f"--init: model.{changed[0]} cannot differ from that of the model to start from")
    mine = build_model(config.model, tokenizers.source.size, tokenizers.target.size, seed=config.training.seed)
    mine.load_state_dict(network.state_dict())
    return mine


def dropouts(config: StoredConfig) -> Settings:
    """The settings of a model that its weights do not depend on."""
    return {key: value for key, value in plain(config.model).items() if key.endswith("dropout")}


def write_config(folder: RunFolder, config: RunConfig) -> None:
    """What the run really uses."""
    write_atomically(folder.config, (to_toml(config) + "\n").encode())


def note_start(folder: RunFolder, config: RunConfig, num_ranks: int) -> None:
    """One more entry in `environment.json`: when, how and on what the run was started."""
    starts: list[Any] = []
    if folder.environment.exists():
        try:
            starts = list(json.loads(folder.environment.read_bytes())["starts"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{folder.environment}: damaged ({error}); nothing depends on it: remove it to go on"
            ) from None
    surroundings = describe_surroundings(choose_device(config.training.device), num_ranks)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    starts.append({"time": time, "command": sys.argv[1:], "surroundings": surroundings})
    write_atomically(folder.environment, json.dumps({"starts": starts}, ensure_ascii=False, indent=1).encode())


def stopped_while_finishing(outcome: Outcome, signals: StopSignals) -> Outcome:
    """The outcome of a run to go on with, as a signal came before its model was there."""
    assert signals.received is not None
    name = signal.Signals(signals.received).name
    get_logger().warning(
        "received %s: training is over and saved, but the finished model is not made; the same command makes it", name
    )
    return replace(outcome, reason="signal", signal_number=signals.received)


def finish_run(folder: RunFolder, config: RunConfig, material: Material, outcome: Outcome) -> Report:
    """The finished model, unless nothing was learned that could be one."""
    if outcome.best is None:
        raise ConfigError("the run ended before its first checkpoint: raise its limits")
    progress = {
        "steps": outcome.step,
        "epochs": outcome.epoch,
        "target_tokens": outcome.target_tokens,
        "seconds": round(outcome.seconds, 1),
        "ended_by": outcome.reason,
    }
    return finish(folder, config, material, sorted(outcome.checkpoints, key=lambda one: one.step), progress)
