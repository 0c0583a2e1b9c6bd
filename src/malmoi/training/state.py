"""All that a run needs to go on as if it had never stopped.

In: tensors (weights, moments, averages) and a `RunState` of plain numbers. Out: folders
`state/step-00000500-0003/` with `tensors.safetensors` and `state.json`; the last number counts the saves.

A folder is written under a temporary name, flushed to the disk and then renamed, and older ones are removed only after
that, so that whatever happens meanwhile the one before it stays whole. Size and hash of the tensors stand in the JSON:
a damaged state is named and the one before it is used. Nothing is ever unpickled.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from malmoi.errors import CheckpointError
from malmoi.files import TEMPORARY, flush, measure
from malmoi.log import get_logger
from malmoi.training.checkpoints import Checkpoint, remove_folder, remove_temporaries
from malmoi.training.meters import Meter

FORMAT = 2
TENSORS, NUMBERS = "tensors.safetensors", "state.json"
KEPT_STATES = 2


@dataclass
class RunState:
    """Where a run stands."""

    step: int = 0
    """Updates applied."""
    epoch: int = 0
    """Of the last batch used, from 0."""
    stream: dict[str, Any] | None = None
    """Position of the batches, as the stream gave it; None before the first."""
    target_tokens: int = 0
    seconds: float = 0.0
    factor: float = 1.0
    """What the schedule's rate is multiplied by; below 1 after a rescue."""
    rollbacks: int = 0
    skipped: int = 0
    """Updates thrown away because something in them was not finite."""
    skipped_in_row: int = 0
    micro_batch_tokens: int = 0
    meter: Meter = field(default_factory=Meter)
    num_rows: int = 0
    """Rows of metrics written."""
    logged_step: int = 0
    """Step of the last row of training."""
    validated_step: int = 0
    """Step of the last complete validation."""
    best_value: float | None = None
    best_step: int = 0
    stale_validations: int = 0
    """Validations since the best one."""
    widest_outputs: float = 0.0
    """Highest share of distinct outputs in a validation so far."""
    is_narrow: bool = False
    """Whether the outputs of the last validation were all the same."""
    collapsed_validations: int = 0
    """Such validations in a row, once they are no longer to be expected."""
    checkpoints: list[Checkpoint] = field(default_factory=list[Checkpoint])

    @property
    def is_good(self) -> bool:
        """Whether this is worth going back to: the start, or a model that was sound when last looked at."""
        return not self.is_narrow and self.skipped_in_row == 0


@dataclass(frozen=True)
class SavedNumbers:
    """A state as read, without its tensors."""

    folder: Path
    run: RunState
    surroundings: dict[str, str]
    training: dict[str, Any]
    """The settings that the run had."""
    tensors_size: int
    tensors_hash: str


class StateStore:
    """The states of one run, in the folder `state`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: set[Path] = set()

    def clean(self) -> None:
        """Make the folder and remove what a kill left under temporary names."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_temporaries(self.folder)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written ({error.strerror})") from error

    def folders(self) -> list[Path]:
        """Complete states, newest first."""
        return sorted(self.folder.glob("step-*-*"), key=save_number, reverse=True)

    def save(
        self,
        run: RunState,
        tensors: Mapping[str, Tensor],
        surroundings: Mapping[str, str],
        training: Mapping[str, Any],
    ) -> Path:
        """Write a new state beside the old ones; on failure those stay as they were (`CheckpointError`)."""
        before = self.folders()
        number = save_number(before[0]) + 1 if before else 1
        final = self.folder / f"step-{run.step:08d}-{number:04d}"
        temporary = self.folder / f"{TEMPORARY}{final.name}"
        try:
            temporary.mkdir()
            save_file(dict(tensors), temporary / TENSORS)
            size, digest = measure(temporary / TENSORS)
            numbers = {
                "format": FORMAT,
                "run": asdict(run),
                "surroundings": dict(surroundings),
                "training": dict(training),
                "tensors": {"size": size, "blake2b": digest},
            }
            (temporary / NUMBERS).write_text(json.dumps(numbers, indent=1), encoding="utf-8")
            flush(temporary / TENSORS)
            flush(temporary / NUMBERS)
            flush(temporary)
            temporary.rename(final)
            flush(self.folder)
        except (OSError, SafetensorError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            kept = f"the state in {before[0]} is intact" if before else "no state was saved before"
            raise CheckpointError(f"{final}: the run's state cannot be saved ({reason}); {kept}") from error
        finally:
            # Gone after the rename; still there after an error, a disk full or a second signal.
            shutil.rmtree(temporary, ignore_errors=True)
        return final

    def remove_old(self) -> None:
        """Keep the newest sound states, and the newest good one to go back to."""
        sound = [folder for folder in self.folders() if folder not in self.damaged]
        kept = set(sound[:KEPT_STATES])
        kept.update([folder for folder in sound if self.is_good(folder)][:1])
        for folder in self.folders():
            if folder not in kept:
                remove_folder(folder)

    def is_good(self, folder: Path) -> bool:
        """Whether a state is worth going back to; a damaged one is not, and is remembered."""
        try:
            return read_numbers(folder).run.is_good
        except CheckpointError as error:
            get_logger().warning("%s", error)
            self.damaged.add(folder)
            return False

    def newest(self, *, good: bool = False) -> tuple[SavedNumbers, dict[str, Tensor]] | None:
        """The newest sound state (if `good`, one worth going back to) and its tensors; None if there is none at all.

        A damaged one is named and passed over; `CheckpointError` if all are damaged.
        """
        failures: list[str] = []
        for folder in self.folders():
            try:
                numbers = read_numbers(folder)
                if good and not numbers.run.is_good:
                    continue
                tensors = read_tensors(numbers)
            except CheckpointError as error:
                self.damaged.add(folder)
                failures.append(str(error))
                continue
            for failure in failures:
                get_logger().warning("%s; going on from %s instead", failure, folder)
            return numbers, tensors
        if failures:
            raise CheckpointError(
                "no state of this run can be used:\n  " + "\n  ".join(failures) + "\n"
                "start anew in another folder, with --init and one of the run's checkpoints to keep what it learned"
            )
        return None


def save_number(folder: Path) -> int:
    """How many saves came up to this one."""
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def read_numbers(folder: Path) -> SavedNumbers:
    """Read and check `state.json` of a state."""
    path = folder / NUMBERS
    try:
        numbers = cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
        if numbers["format"] != FORMAT:
            raise CheckpointError(f"{path}: written by another version of malmoi (format {numbers['format']})")
        run = TypeAdapter(RunState).validate_python(numbers["run"])
        surroundings, training = dict(numbers["surroundings"]), dict(numbers["training"])
        size, digest = int(numbers["tensors"]["size"]), str(numbers["tensors"]["blake2b"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged or incomplete ({describe(error)})") from error
    return SavedNumbers(folder, run, surroundings, training, size, digest)


def read_tensors(numbers: SavedNumbers) -> dict[str, Tensor]:
    """Read and check the tensors of a state."""
    path = numbers.folder / TENSORS
    try:
        if measure(path) != (numbers.tensors_size, numbers.tensors_hash):
            raise CheckpointError(f"{path}: damaged (size or hash differs from what was saved)")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged or incomplete ({describe(error)})") from error


def describe(error: Exception) -> str:
    """The first line of an error, with its kind where it says little."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
