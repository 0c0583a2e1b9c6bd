"""`malmoi average`: several checkpoints to one model whose weights are their mean.

In: a run folder, or checkpoint folders of one run. Out: a model folder, and its name on standard output.
"""

from pathlib import Path

from malmoi.checkpoint import average_models
from malmoi.commands.results import write_json, write_line
from malmoi.errors import CheckpointError, ConfigError


def run_average(folders: tuple[Path, ...], *, out: Path, last: int, as_json: bool) -> None:
    """Average and say where the model lies."""
    checkpoints = [one for folder in folders for one in checkpoints_of(folder)]
    if last:
        checkpoints = checkpoints[-last:]
    if len(checkpoints) < 2:
        raise ConfigError(
            f"an average needs two checkpoints at least, but there is {len(checkpoints)}; a run keeps more of them "
            "with training.keep_last=10"
        )
    if out.exists():
        raise ConfigError(f"--out {out}: is there already; choose another name or remove it")
    average_models(checkpoints, out)
    if as_json:
        write_json({"model": str(out), "checkpoints": [str(path) for path in checkpoints]})
    else:
        write_line(
            f"{out}: the mean of {len(checkpoints)} checkpoints, {checkpoints[0].name} to {checkpoints[-1].name}"
        )


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run by step, or the folder itself where it is one."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run or checkpoint folder")
    inside = folder / "checkpoints"
    return sorted(path for path in inside.glob("step-*") if path.is_dir()) if inside.is_dir() else [folder]
