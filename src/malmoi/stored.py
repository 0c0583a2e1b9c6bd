"""What lies in a model folder, but for the weights: read without torch.

In: the path of a model folder or a run folder. Out: the folder, its settings, tokenisers and card. How a folder is
written, and how it becomes a network, stands in `checkpoint.py`. What could hold code is refused by name.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import ValidationError

from malmoi.card import Card
from malmoi.config.run import StoredConfig
from malmoi.config.training import Metric, higher_is_better
from malmoi.errors import CheckpointError, ConfigError
from malmoi.files import present
from malmoi.settings import read_toml, validate
from malmoi.text.tokenizer import Tokenizers

CONFIG_FILE = "config.toml"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "card.json"
TOKENIZER_FOLDER = "tokenizer"
PICKLED_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib", ".npz", ".mar")


@dataclass(frozen=True)
class Stored:
    """A model folder whose weights have not been read yet."""

    folder: Path
    config: StoredConfig
    tokenizers: Tokenizers
    card: dict[str, Any]


def read_stored(path: Path) -> Stored:
    """The model of a model folder or of a run folder (its finished model, else its best checkpoint).

    `CheckpointError` names the file that is missing, damaged or does not fit the others.
    """
    folder = find_model(Path(path))
    config = load_config(folder)
    tokenizers = Tokenizers.load(folder / TOKENIZER_FOLDER)
    if config.text.shared_vocabulary != tokenizers.shared:
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: text.shared_vocabulary is {str(config.text.shared_vocabulary).lower()}, which is "
            f"not what {TOKENIZER_FOLDER}/ holds"
        )
    return Stored(folder, config, tokenizers, load_card(folder / CARD_FILE))


def find_model(path: Path) -> Path:
    """The model folder that a path stands for."""
    if path.is_file():
        refuse_pickle(path)
        raise CheckpointError(f"{path}: this is a file; a model is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    path = present(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such model folder or run folder")
    if (path / WEIGHTS_FILE).is_file():
        return path
    finished = present(path / "model")
    if (finished / WEIGHTS_FILE).is_file():
        return finished
    checkpoints = sorted(one.parent for one in path.glob(f"checkpoints/*/{WEIGHTS_FILE}") if one.parent.name[0] != ".")
    if checkpoints:
        return best_checkpoint(path, checkpoints)
    for file in sorted(path.iterdir()):
        if file.is_file():
            refuse_pickle(file)
    raise CheckpointError(f"{path}: holds neither {WEIGHTS_FILE} nor a run with a model or checkpoints")


def best_checkpoint(run: Path, checkpoints: Sequence[Path]) -> Path:
    """The checkpoint with the best value of the run's `best_metric` in `metrics.jsonl`, else the last one."""
    training = read_toml(run / CONFIG_FILE).get("training", {}) if (run / CONFIG_FILE).is_file() else {}
    metric = cast(Metric, given if (given := training.get("best_metric")) in get_args(Metric) else "loss")
    values: dict[int, float] = {}
    if (run / "metrics.jsonl").is_file():
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            row = parse_row(line)
            if isinstance(row.get(f"valid_{metric}"), int | float) and isinstance(row.get("step"), int):
                values[row["step"]] = float(row[f"valid_{metric}"])
    sign = 1.0 if higher_is_better(metric) else -1.0
    measured = [one for one in checkpoints if step_of(one) in values]
    return max(measured, key=lambda one: sign * values[step_of(one)]) if measured else checkpoints[-1]


def parse_row(line: str) -> dict[str, Any]:
    """A line of `metrics.jsonl`; the last one may have been cut by a kill and says nothing then."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return cast(dict[str, Any], row) if isinstance(row, dict) else {}


def step_of(checkpoint: Path) -> int:
    digits = checkpoint.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def refuse_pickle(path: Path) -> None:
    """`CheckpointError` for a file whose loading could run code, told by its content or its name."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    # From protocol 2 on, a pickle begins with its number; older ones have no mark. Byte 9 of safetensors is a brace.
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and head[8:9] != b"{"
    if head.startswith(b"PK\x03\x04") or is_pickle or path.suffix.lower() in PICKLED_SUFFIXES:
        raise CheckpointError(
            f"{path}: refused, since a pickled file can run code when it is loaded; a model of malmoi is a folder with "
            f"{CONFIG_FILE} and {WEIGHTS_FILE}"
        )


def load_config(folder: Path) -> StoredConfig:
    place = folder / CONFIG_FILE
    try:
        return validate(StoredConfig, read_toml(place), str(place))
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def load_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; the model folder is not complete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(card, dict):
        raise CheckpointError(f"{path}: must hold one JSON object")
    try:
        Card.model_validate(card)
    except ValidationError as error:
        places = "; ".join(".".join(map(str, fault["loc"])) + f": {fault['msg']}" for fault in error.errors()[:3])
        raise CheckpointError(f"{path}: not a card that malmoi wrote ({places})") from None
    return cast(dict[str, Any], card)
