"""What several ranks do together, for `tests/parity/test_ranks.py`: `python -m tests.rank_scenarios FOLDER`.

Everything is imported once, for which the process alone goes the way first; the ranks are forks of it, which saves most
of their time. Each group writes what it found, as JSON, to `FOLDER/N.json`, N being the number of its ranks.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from malmoi.config.model import RnnConfig
from malmoi.config.text import Stage
from malmoi.data import batching
from malmoi.data.batch import Batch, collate
from malmoi.data.store import Store, StoreWriter
from malmoi.data.stream import BatchStream
from malmoi.errors import DataError, MalmoiError
from malmoi.log import configure_logging
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from malmoi.training.agreement import Agreement
from malmoi.training.objective import ModelWithLoss
from malmoi.training.ranks import Ranks, join_ranks
from malmoi.training.signals import StopSignals
from malmoi.training.trainer import Trainer
from malmoi.training.validation import Divide, Validation, validate
from tests.rank_processes import fork_ranks
from tests.rank_runs import Found, RankRun, part_of
from tests.training_toys import VOCABULARY, ToyStream, limit_memory, toy_batch, toy_network, toy_pairs


def tiny_rnn() -> Seq2Seq:
    return build_model(RnnConfig(width=8, hidden=8, encoder_layers=2, dropout=0.0), 20, 20, 1)


def training(folder: Path, ranks: Ranks) -> Found:
    """Both kinds, whole and in parts, in both precisions, and an RNN."""
    found: Found = {}
    parts = {"micro_batch_tokens": 12, "average_decay": 0.9, "validate_every": 3}
    for kind in ("ddp", "fsdp"):
        found[f"{kind} parts"] = RankRun(folder / f"{kind}-parts", ranks, parallel=kind, **parts).go()
        if ranks.count > 2:
            continue
        found[f"{kind} whole"] = RankRun(folder / f"{kind}-whole", ranks, parallel=kind).go(max_steps=3)
        single = RankRun(folder / f"{kind}-fp32", ranks, parallel=kind)
        single.double = False
        found[f"{kind} fp32"] = single.go()
        again = RankRun(folder / f"{kind}-again", ranks, parallel=kind, recompute=True)
        found[f"{kind} again"] = again.go(max_steps=3)
        rnn = RankRun(folder / f"{kind}-rnn", ranks, parallel=kind)
        rnn.build = tiny_rnn
        found[f"{kind} rnn"] = rnn.go(max_steps=2)
    return found


def splitting(folder: Path, ranks: Ranks) -> Found:
    """The last of several ranks has too little memory: in its forward half, in its backward half, for a while alone."""
    found: Found = {}
    is_last = ranks.count > 1 and ranks.rank == ranks.count - 1
    for name, backward in (("forward", False), ("backward", True)):
        gradients: list[dict[str, list[float]]] = []
        for is_limited in (False, True):
            trainer = RankRun(folder / f"{name}-gradients", ranks).trainer()
            trainer.updater.may_run_out = True
            if is_last and is_limited:
                limit_memory(trainer.network, 13, backward=backward)
            trainer.model.train()
            batch = part_of(toy_pairs([5, 4, 3, 6, 2, 6, 1, 5], seed=1), ranks)
            result = trainer.updater.update(batch, 0.01, (1, 1))
            mine = {name: p.grad.flatten().tolist() for name, p in trainer.parameters.items() if p.grad is not None}
            gradients.append({"loss": [result.loss], **mine})
        found[f"{name} gradients"] = gradients
        found[f"{name} sizes"] = ranks.gather(trainer.updater.micro_batch_tokens)
        run = RankRun(folder / name, ranks)
        found[name] = limited(run, 7 if is_last else None, backward).go()
    for name, stops in (("long", ()), ("stopped", (3, 4))):
        run = limited(RankRun(folder / name, ranks), 7 if is_last else None, False)
        run.build = lambda: toy_network(dropout=0.3)
        for stop in stops:
            run.go(max_steps=stop)
        found[name] = run.go(max_steps=5)
    return found


def limited(run: RankRun, maybe_limit: int | None, backward: bool) -> RankRun:
    """A run whose device can run out of memory, and does above a limit."""
    original = run.trainer

    def trainer(**overrides: Any) -> Trainer:
        one = original(**overrides)
        one.updater.may_run_out = True
        if maybe_limit is not None:
            limit_memory(one.network, maybe_limit, backward=backward)
        return one

    run.trainer = trainer  # type: ignore[method-assign]
    # Whoever measures has memory enough.
    run.held_out = run.held_out[:0] or [toy_batch(toy_pairs([1]))]
    return run


def reading(folder: Path, ranks: Ranks) -> Found:
    """Real stores in several windows, with weights that change, stopped in between."""
    names = [folder / "one", folder / "two"]
    if ranks.is_first:
        for number, name in enumerate(names):
            write_store(name, [2 + (5 * row + number) % 6 for row in range(40 + 30 * number)])
    ranks.wait()
    stores = [Store.open(name) for name in names]
    sizes = batching.WINDOW_PAIRS, batching.STRETCH_PAIRS
    batching.WINDOW_PAIRS, batching.STRETCH_PAIRS = 40, 8
    try:
        stages = (Stage(after_steps=7, weights=(0.5, 1.0)),)
        plan = batching.BatchPlan(stores, 60, seed=1, weights=(1.0, 0.75), stages=stages)
        assert plan.num_windows() == 3
        run = RankRun(folder / "run", ranks)
        read: list[list[int]] = []

        def make(indices: Any, epoch: int, position: int) -> Batch:
            mine = indices[ranks.part]
            read.append([int(index) for index in mine])
            batch = collate(stores, mine if len(mine) else indices[:1], VOCABULARY, VOCABULARY)
            return batch if len(mine) else batch.without_targets()

        def open_stream(state: Any) -> BatchStream:
            return BatchStream(plan, make, plan.resume(state) if state else batching.BEGINNING, prefetch=0)

        run.open_stream = open_stream  # type: ignore[method-assign, assignment]
        for steps in (2, 5):
            run.go(max_steps=steps)
        return {**run.go(max_steps=12), "read": ranks.merge([read])}
    finally:
        batching.WINDOW_PAIRS, batching.STRETCH_PAIRS = sizes


def write_store(folder: Path, lengths: Sequence[int]) -> None:
    """Pairs of so many tokens a side."""
    sizes = np.array(lengths)
    with StoreWriter(folder, VOCABULARY, VOCABULARY) as writer:
        ids = 2 + np.arange(sizes.sum()) % (VOCABULARY - 2)
        writer.add(ids, sizes, ids[::-1], sizes, np.arange(1, len(sizes) + 1))
        writer.finish(key=folder.name, description="toy", inputs={}, weight=1.0, cleaning={})


def resuming(folder: Path, ranks: Ranks) -> Found:
    """From one kind to the other; with dropout a stop that must leave no trace; what other ranks have begun."""
    found: Found = {}
    moved = RankRun(folder / "moved", ranks, parallel="fsdp", average_decay=0.9)
    moved.go(max_steps=2)
    moved.settings["parallel"] = "ddp"
    found["moved"] = moved.go(max_steps=4)
    for name, stops in (("long", ()), ("stopped", (2, 3))):
        run = RankRun(folder / name, ranks)
        run.build = lambda: toy_network(dropout=0.3)
        for stop in stops:
            run.go(max_steps=stop)
        found[name] = run.go(max_steps=4)
    found["handed on"] = hand_on(folder, ranks)
    return found


def hand_on(folder: Path, ranks: Ranks) -> Found:
    """Two updates of one run, which each group takes over from the one before."""
    return RankRun(folder.parent.parent / "handed-on", ranks).go(max_steps={1: 2, 2: 4}.get(ranks.count, 6))


def validating(folder: Path, ranks: Ranks) -> Found:
    """The same weights in every group: the numbers must be the very same."""
    found: Found = {}
    for num_texts in (61, 3):
        run = RankRun(folder / "nothing", ranks)
        run.num_texts = num_texts
        pairs = toy_pairs([1 + number % 7 for number in range(num_texts)], seed=61)
        batches = [toy_batch(pairs[first : first + 9]) for first in range(0, num_texts, 9)]
        model = ModelWithLoss(toy_network().double(), 0.1)
        agreement = Agreement(ranks, StopSignals(), lambda: 0.0)
        validation = Validation(batches, 300, run.evaluate_texts)
        metrics = validate(model, model.network, validation, torch.device("cpu"), agreement)
        found[str(num_texts)] = {"metrics": metrics, "texts": run.texts}
    return found


def stopping(folder: Path, ranks: Ranks) -> Found:
    """Early stopping by scores, and a signal that only the last rank hears."""
    scores = iter([5.0, 7.0, 6.0, 1.0, 99.0])
    patient = RankRun(
        folder / "patient",
        ranks,
        metrics=("loss", "bleu"),
        best_metric="bleu",
        patience=2,
        validate_every=1,
    )
    # Another rank's own score would never stop it.
    patient.evaluate = lambda _: {"bleu": next(scores) if ranks.is_first else time.monotonic()}
    found: Found = {"patient": patient.go(max_steps=20)}
    for moment in ("in an update", "while waiting", "in validation"):
        run = RankRun(folder / moment, ranks, validate_every=2)
        is_last = ranks.rank == ranks.count - 1
        began = time.monotonic()
        found[moment] = (Signalled(run, moment) if is_last else run).go(max_steps=20)
        found[moment]["seconds"] = time.monotonic() - began
    return found


class Signalled:
    """A run whose rank hears SIGTERM in its third update or around it."""

    def __init__(self, run: RankRun, moment: str) -> None:
        self.run = run
        open_stream, evaluate_texts = run.open_stream, run.evaluate_texts
        times = iter(range(100))

        def in_update(state: Any) -> ToyStream:
            stream = open_stream(state)
            whereabouts = stream.state

            def told() -> Found:
                if next(times) == 2:
                    signal.raise_signal(signal.SIGTERM)
                return whereabouts()

            stream.state = told  # type: ignore[method-assign]
            return stream

        def waiting(state: Any) -> ToyStream:
            stream = open_stream(state)
            give = stream.__next__

            class Waiting:
                num_batches = stream.num_batches
                state, close = stream.state, stream.close

                def __next__(self) -> Any:
                    if next(times) == 2:
                        signal.raise_signal(signal.SIGTERM)
                        raise AssertionError("not cut short")
                    return give()

            return Waiting()  # type: ignore[return-value]

        def in_validation(network: Seq2Seq, divide: Divide) -> dict[str, float]:
            def told(texts: Sequence[str]) -> list[str]:
                signal.raise_signal(signal.SIGTERM)
                raise AssertionError("not cut short")

            divide([str(number) for number in range(61)], told)
            return evaluate_texts(network, divide)

        match moment:
            case "in an update":
                run.open_stream = in_update  # type: ignore[method-assign]
            case "while waiting":
                run.open_stream = waiting  # type: ignore[method-assign]
            case _:
                run.evaluate_texts = in_validation  # type: ignore[method-assign]

    def go(self, **overrides: Any) -> Found:
        return self.run.go(**overrides)


def poisoned(folder: Path, ranks: Ranks) -> Found:
    """The last rank alone has gradients that are no numbers: ten times in a row, after a sound state."""
    run = RankRun(folder / "poisoned", ranks, save_every=2)
    trainers: list[Trainer] = []
    original = run.trainer

    def trainer(**overrides: Any) -> Trainer:
        trainers.append(original(**overrides))
        updater = trainers[0].updater
        add = updater.add_gradients
        calls = iter(range(1000))

        def add_poison(*arguments: Any) -> Any:
            loss, nll = add(*arguments)
            is_bad = 2 <= next(calls) < 12 and ranks.rank == ranks.count - 1
            return (loss * torch.inf if is_bad else loss), nll

        updater.add_gradients = add_poison  # type: ignore[method-assign]
        return trainers[0]

    run.trainer = trainer  # type: ignore[method-assign]
    return run.go()


def failing(folder: Path, ranks: Ranks) -> Found:
    """The last rank cannot read its third batch."""
    run = RankRun(folder / "failing", ranks)
    original = run.open_stream

    def open_stream(state: Any) -> ToyStream:
        stream = original(state)
        if ranks.rank == ranks.count - 1:
            del stream.batches
            stream.batches = Broken(run.batches)
        return stream

    run.open_stream = open_stream  # type: ignore[method-assign]
    return run.go()


class Broken(list[Batch]):
    """Batches that are not there from the third on."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        self.taken += 1
        if self.taken > 2:
            raise DataError("train.src, line 7: cannot be read")
        return super().__getitem__(place)


SCENARIOS = (training, splitting, reading, resuming, validating, stopping, poisoned)
FEWER = (training, reading, validating, hand_on)
"""Of more than two ranks, which take turns on the cores of a small machine."""


def take_part(folder: Path, environment: dict[str, str]) -> int:
    """All scenarios of one rank, then the one that ends the group; an exit status."""
    rank, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    mine = folder / f"{count} ranks"
    try:
        with join_ranks(environment) as ranks:
            found: Found = {}
            for scenario in SCENARIOS if count <= 2 else FEWER:
                place = mine / scenario.__name__
                if ranks.is_first:
                    place.mkdir(parents=True)
                ranks.wait()
                found[scenario.__name__] = scenario(place, ranks)
            if ranks.is_first:
                (folder / f"{count}.json").write_text(json.dumps(found), encoding="utf-8")
            if count == 2:
                failing(mine, ranks)
    except MalmoiError as error:
        message = {"kind": type(error).__name__, "message": str(error), "time": time.time()}
        (folder / f"failed-{count}-{rank}.json").write_text(json.dumps(message), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_logging(quiet=True)
    place = Path(sys.argv[1])
    statuses = {1: [take_part(place, {"RANK": "0", "WORLD_SIZE": "1"})]}
    statuses |= {count: fork_ranks(count, lambda environment: take_part(place, environment)) for count in (2, 4)}
    (place / "statuses.json").write_text(json.dumps(statuses), encoding="utf-8")
