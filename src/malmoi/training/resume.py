"""What has changed between a saved run and the one that goes on from it.

In: a saved state, the settings and surroundings of now, the folder of checkpoints. Out: messages, and a list of
checkpoints that agrees with the disk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malmoi.log import get_logger
from malmoi.training.checkpoints import Checkpoint, remove_folder
from malmoi.training.state import SavedNumbers


def name_differences(saved: SavedNumbers, training: Mapping[str, Any], surroundings: Mapping[str, str]) -> None:
    """Say what is not as it was; the settings given now are the ones that count."""
    for name in sorted(training):
        if name in saved.training and training[name] != saved.training[name]:
            get_logger().warning("training.%s was %s and is now %s", name, saved.training[name], training[name])
    changed = [
        f"{name} was {saved.surroundings.get(name, 'unknown')} and is now {value}"
        for name, value in surroundings.items()
        if saved.surroundings.get(name) != value
    ]
    if changed:
        get_logger().warning(
            "%s: batches and learning rates go on exactly, but losses may differ in their last digits",
            ", ".join(changed),
        )


def match_checkpoints(folder: Path, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Remove model folders that a state does not know, which came after it; returns those that are still there."""
    known = {checkpoint.name for checkpoint in checkpoints}
    for found in sorted(folder.glob("step-*")):
        if found.name not in known:
            remove_folder(found)
    present = [checkpoint for checkpoint in checkpoints if (folder / checkpoint.name).exists()]
    for checkpoint in checkpoints:
        if checkpoint not in present:
            get_logger().warning("%s is gone and no longer counted", folder / checkpoint.name)
    return present
