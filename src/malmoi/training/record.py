"""What a run leaves on the disk: rows of metrics, checkpoints, states to go on from.

In: where the run stands, and its tensors. Out: `metrics.jsonl`, `checkpoints/`, `state/` under its folder.

The first rank alone writes, and says what is there. The others call the same methods at the same times, and take their
part in putting together tensors that lie in pieces; they read the folder's states, so it must be visible to all.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter
from torch import Tensor

from malmoi.errors import CheckpointError
from malmoi.training.checkpoints import Checkpoint, remove_folder, remove_temporaries
from malmoi.training.meters import MetricsFile, Row
from malmoi.training.ranks import Ranks
from malmoi.training.resume import match_checkpoints
from malmoi.training.shards import whole_tensors
from malmoi.training.state import RunState, SavedNumbers, StateStore, read_numbers, read_tensors


class SaveModel(Protocol):
    """Writes a complete model folder, in place of an older one of that name, or raises `CheckpointError`."""

    def __call__(
        self, folder: Path, step: int, weights: Mapping[str, Tensor], metrics: Mapping[str, float]
    ) -> None: ...


class Record:
    """The files of one run, and what is known of them."""

    def __init__(
        self,
        folder: Path,
        save_model: SaveModel,
        ranks: Ranks,
        surroundings: Mapping[str, str],
        training_settings: Mapping[str, Any],
    ) -> None:
        """`surroundings` and `training_settings` are stored with each state."""
        self.folder, self.save_model, self.ranks = folder, save_model, ranks
        self.surroundings, self.training_settings = surroundings, training_settings
        self.store = StateStore(folder / "state")
        self.metrics = MetricsFile(folder / "metrics.jsonl")
        self.checkpoints_folder = folder / "checkpoints"
        self.saved_as: tuple[object, ...] = ()
        """Step, last validation and place in the data of the newest saved state."""
        self.condemned: list[Path] = []
        """Folders that are no longer wanted, to go once a state is saved that does not count on them."""
        self.on_row: Callable[[Row], None] | None = None

    def open(self) -> tuple[SavedNumbers, dict[str, Tensor]] | None:
        """The state to go on from, None for a new run; what a kill left half done is removed."""
        if self.ranks.is_first:
            self.store.clean()
            self.checkpoints_folder.mkdir(exist_ok=True)
            remove_temporaries(self.checkpoints_folder)
        found = self.newest()
        if found is None and self.ranks.is_first and self.metrics.rows():
            raise CheckpointError(
                f"{self.folder}: holds metrics of a run but no state to go on from: choose another folder"
            )
        return found

    def newest(self, *, good: bool = False) -> tuple[SavedNumbers, dict[str, Tensor]] | None:
        """The newest sound state (if `good`, one worth going back to), the same in every rank; None without any."""
        found = self.store.newest(good=good) if self.ranks.is_first else None
        maybe_name = self.ranks.from_first(None if found is None else found[0].folder.name)
        if found is None and maybe_name is not None:
            numbers = read_numbers(self.store.folder / maybe_name)
            found = numbers, read_tensors(numbers)
        return found

    def rewind(self, run: RunState) -> RunState:
        """Drop what was written after a state; returns it as far as the disk still agrees with it."""
        if self.ranks.is_first:
            self.metrics.cut_back(run.num_rows)
            run.checkpoints = match_checkpoints(self.checkpoints_folder, run.checkpoints)
        run = TypeAdapter(RunState).validate_python(self.ranks.from_first(asdict(run)))
        self.saved_as = identity(run)
        self.condemned.clear()
        return run

    def save_state(self, run: RunState, collect: Callable[[], Mapping[str, Tensor]]) -> None:
        """A state to go on from, unless the newest one says the same; only then may older ones go."""
        if identity(run) != self.saved_as:
            tensors = whole_tensors(collect(), keep=self.ranks.is_first)
            if self.ranks.is_first:
                self.store.save(run, tensors, self.surroundings, self.training_settings)
            self.saved_as = identity(run)
        if self.ranks.is_first:
            self.store.remove_old()
            for folder in self.condemned:
                remove_folder(folder)
        self.condemned.clear()

    def is_saved(self, run: RunState) -> bool:
        """Whether the newest state has this step and its validation."""
        return self.saved_as[:2] == identity(run)[:2]

    def write_checkpoint(self, new: Checkpoint, weights: Mapping[str, Tensor]) -> None:
        """Write a model folder."""
        complete = whole_tensors(weights, keep=self.ranks.is_first)
        if self.ranks.is_first:
            self.save_model(self.checkpoints_folder / new.name, new.step, complete, new.metrics)

    def condemn(self, checkpoints: list[Checkpoint]) -> None:
        """These go with the next saved state."""
        self.condemned += [self.checkpoints_folder / checkpoint.name for checkpoint in checkpoints]

    def write_row(self, row: Row) -> None:
        """A row of `metrics.jsonl`, also for whoever listens."""
        if self.ranks.is_first:
            self.metrics.append(row)
            if self.on_row is not None:
                self.on_row(row)


def identity(run: RunState) -> tuple[object, ...]:
    """What tells one state of a run from another."""
    return run.step, run.validated_step, run.logged_step, repr(run.stream), run.rollbacks
