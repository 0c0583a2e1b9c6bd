"""What a finished model is: a folder of plain formats, written whole or not at all.

In: settings, weights, tokenisers and a card. Out: a folder with `config.toml`, `model.safetensors`, `tokenizer/` and
`card.json`, and the `Model` that it loads as. Nothing is ever unpickled. What can be read without torch: `stored.py`.

A folder is written under a temporary name beside its own, flushed and renamed, so that a kill or a full disk leaves the
former one. Tied weights are stored once.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from malmoi.config.model import ModelConfig
from malmoi.config.run import StoredConfig
from malmoi.errors import CheckpointError, ConfigError
from malmoi.files import TEMPORARY, flush, recover, replace_folder
from malmoi.models.build import outline_model
from malmoi.models.interface import Seq2Seq
from malmoi.settings import to_toml
from malmoi.stored import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    Stored,
    find_model,
    load_card,
    load_config,
    read_stored,
    refuse_pickle,
)
from malmoi.text.tokenizer import Tokenizers

NOT_OF_AN_AVERAGE = ("scores", "sentences", "metrics", "perplexity_per_token", "perplexity_per_character")
"""What a card says of the very weights that it lies beside."""


@dataclass
class Model:
    """A loaded model: the network is in evaluation mode, in fp32 unless another type was asked for."""

    config: StoredConfig
    network: Seq2Seq
    tokenizers: Tokenizers
    card: dict[str, Any]


def save_model(
    folder: Path,
    config: StoredConfig,
    weights: Mapping[str, Tensor] | Seq2Seq,
    tokenizers: Tokenizers,
    card: Mapping[str, Any],
) -> None:
    """Write a model folder; one that is there already is replaced only when the new one is complete.

    The card gets `malmoi` (version), `num_parameters` and `weights_type` where it does not say them.
    `CheckpointError` where the folder cannot be written (no room, no permission); the former one is then unchanged.
    """
    named = weights.state_dict() if isinstance(weights, Seq2Seq) else dict(weights)
    stored = untie(named, config.model)
    facts = {
        "malmoi": version("malmoi"),
        "num_parameters": sum(tensor.numel() for tensor in stored.values() if tensor.is_floating_point()),
        "weights_type": ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in stored.values()})),
    }
    text = json.dumps({**facts, **card}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_folder(folder, stored, to_toml(config) + "\n", text, tokenizers)


def write_folder(folder: Path, weights: Mapping[str, Tensor], config: str, card: str, tokenizers: Tokenizers) -> None:
    temporary = folder.with_name(f"{TEMPORARY}{folder.name}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        tokenizers.save(temporary / TOKENIZER_FOLDER)
        (temporary / CONFIG_FILE).write_text(config, encoding="utf-8", newline="\n")
        (temporary / CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS_FILE
        )
        # safetensors writes for its owner alone; a model is for whoever may read the rest of its folder.
        (temporary / WEIGHTS_FILE).chmod((temporary / CONFIG_FILE).stat().st_mode)
        for path in [*sorted(temporary.rglob("*")), temporary]:
            flush(path)
        replace_folder(temporary, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        recover(folder)
        raise CheckpointError(
            f"{folder}: the model cannot be written ({error}); what was there before is unchanged"
        ) from error


def load_model(path: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = torch.float32) -> Model:
    """The model of a model folder or of a run folder (its finished model, else its best checkpoint).

    Weights are computed with in `dtype`, None for the type in which they are stored. `CheckpointError` names the file
    that is missing, damaged or does not fit the others; anything that could be a pickle is refused.
    """
    stored = read_stored(path)
    network = load_network(stored, device, dtype)
    return Model(stored.config, network, stored.tokenizers, stored.card)


def load_network(
    stored: Stored, device: str | torch.device = "cpu", dtype: torch.dtype | None = torch.float32
) -> Seq2Seq:
    """The network of a model folder, in evaluation mode; as `load_model`."""
    folder, config, tokenizers = stored.folder, stored.config, stored.tokenizers
    weights = load_weights(folder / WEIGHTS_FILE)
    check_depth(weights, config.model, folder)
    try:
        network = outline_model(config.model, tokenizers.source.size, tokenizers.target.size)
    except ConfigError as error:
        raise CheckpointError(f"{folder / CONFIG_FILE}: {error}") from error
    check_weights(weights, untie(network.state_dict(), config.model), folder, tokenizers)
    fill(network, weights, torch.device(device), dtype or next(iter(weights.values())).dtype)
    return network.eval()


def fill(network: Seq2Seq, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
    """Give an outline its values, each in memory of its own: those of a file may be the file itself."""
    values = {name: tensor.to(device, dtype, copy=True) for name, tensor in weights.items()}
    # The second name of a tied tensor is not stored.
    network.load_state_dict(values, strict=False, assign=True)
    assert not any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers())), "a value is missing"


def load_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a safetensors file, on the CPU, in the types in which they are stored; all are finite."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the model folder is not complete")
    refuse_pickle(path)
    try:
        weights = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: damaged or cut short ({error}); use a copy, or another checkpoint of the run"
        ) from error
    for name, tensor in weights.items():
        # Least and greatest are not numbers where any value is not; they take no memory.
        if tensor.is_floating_point() and tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax()):
            raise CheckpointError(f"{path}: {name} holds values that are not finite")
    return weights


def check_depth(weights: Mapping[str, Tensor], config: ModelConfig, folder: Path) -> None:
    """Refuse more layers than there are tensors before any are made; `check_weights` finds all else."""
    for name, value in (("encoder_layers", config.encoder_layers), ("decoder_layers", config.decoder_layers)):
        if value > len(weights):
            raise CheckpointError(
                f"{folder / WEIGHTS_FILE}: does not fit {CONFIG_FILE}, whose model.{name} is {value}: the weights are "
                "of a smaller model"
            )


def check_weights(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path, tokenizers: Tokenizers
) -> None:
    """Refuse weights that are not exactly those that the settings and tokenisers ask for; all faults are told."""
    place = folder / WEIGHTS_FILE
    faults = [f"{name} is missing" for name in wanted if name not in weights]
    faults += [f"{name} is not part of such a model" for name in weights if name not in wanted]
    for name, tensor in wanted.items():
        if name in weights and weights[name].shape != tensor.shape:
            faults.append(f"{name} has the shape {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}")
    if faults:
        sizes = f"{tokenizers.source.size} source and {tokenizers.target.size} target ids"
        shown = "; ".join(faults[:5]) + ("" if len(faults) <= 5 else f"; and {len(faults) - 5} more")
        raise CheckpointError(f"{place}: does not fit {CONFIG_FILE} and tokenisers of {sizes}: {shown}")


def untie(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Each tensor once: with one embedding for both sides its source name is left out."""
    stored = dict(weights)
    if config.tying == "all" and "source_embedding.weight" in stored:
        source = stored.pop("source_embedding.weight")
        target = stored.get("target_embedding.weight")
        assert target is not None, "a tied embedding is stored under its target name"
        assert source.is_meta or torch.equal(source, target), "tied embeddings differ"
    return stored


def average_models(folders: Sequence[Path], out: Path) -> None:
    """Write the mean of several models of one run: settings, tokenisers and card are those of the last one.

    Sums are made in float64 and stored in the type of the inputs; what is not floating point is taken from the last
    one. `CheckpointError` for a model that is given twice, is `out`, is damaged, or has other settings, vocabularies or
    types; it names the model.
    """
    if not folders:
        raise CheckpointError("no models to average")
    found = [find_model(Path(folder)) for folder in folders]
    check_distinct(found, Path(out))
    last = found[-1]
    config, tokenizers = load_config(last), Tokenizers.load(last / TOKENIZER_FOLDER)
    weights = load_weights(last / WEIGHTS_FILE)
    sums = {name: tensor.double() for name, tensor in weights.items() if tensor.is_floating_point()}
    for folder in found[:-1]:
        check_alike(folder, last, config, tokenizers)
        others = load_weights(folder / WEIGHTS_FILE)
        if {name: (t.shape, t.dtype) for name, t in others.items()} != {
            name: (t.shape, t.dtype) for name, t in weights.items()
        }:
            raise CheckpointError(f"{folder / WEIGHTS_FILE}: names, shapes or types differ from {last / WEIGHTS_FILE}")
        for name, total in sums.items():
            total += others[name]
    mean = {
        name: (sums[name] / len(found)).to(tensor.dtype) if name in sums else tensor for name, tensor in weights.items()
    }
    card = {key: value for key, value in load_card(last / CARD_FILE).items() if key not in NOT_OF_AN_AVERAGE}
    save_model(Path(out), config, mean, tokenizers, {**card, "averaged": [folder.name for folder in found]})


def check_distinct(folders: Sequence[Path], out: Path) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for folder in folders:
        status = (folder / WEIGHTS_FILE).stat()
        earlier = seen.setdefault((status.st_dev, status.st_ino), folder)
        if earlier is not folder:
            raise CheckpointError(f"{folder}: the same model as {earlier}; give each model once")
        if out.resolve() == folder.resolve():
            raise CheckpointError(f"{out}: is one of the models to average; give another name for the mean")


def check_alike(folder: Path, last: Path, config: StoredConfig, tokenizers: Tokenizers) -> None:
    mine, theirs = load_config(folder), Tokenizers.load(folder / TOKENIZER_FOLDER)
    if (mine.model, mine.text) != (config.model, config.text):
        raise CheckpointError(f"{folder / CONFIG_FILE}: another model or text settings than {last / CONFIG_FILE}")
    if theirs.maybe_different(tokenizers) is not None:
        raise CheckpointError(f"{folder / TOKENIZER_FOLDER}: another vocabulary than {last / TOKENIZER_FOLDER}")
