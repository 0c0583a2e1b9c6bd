"""Makes the golden files of this folder anew.

    python -m tests.golden.make curves   loss_curves.json: the losses of 20 updates of each system
    python -m tests.golden.make model    model/, lines.source, lines.target: a trained model and what it says

Run it from the root of the checkout when a change is meant to change numbers or the stored format, and say in the
commit why they may change. A model made anew must load in every version from then on.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import torch

from malmoi.checkpoint import load_model, save_model
from malmoi.config.model import ModelConfig, RnnConfig, TransformerConfig
from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch, batch_of_rows
from malmoi.models.build import build_model
from malmoi.training.objective import ModelWithLoss
from malmoi.training.optimizer import Adam, trainable_parameters
from malmoi.training.schedule import learning_rate
from malmoi.training.step import Updater
from malmoi.translate import Translator

HERE = Path(__file__).parent
CURVES, MODEL = HERE / "loss_curves.json", HERE / "model"
SOURCE_LINES, TARGET_LINES = HERE / "lines.source", HERE / "lines.target"

NUM_STEPS = 20
VOCABULARY = 30
END = 1
RNN_SIZES = {"width": 16, "hidden": 24, "dropout": 0.2}
SYSTEMS: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(
        width=16, heads=2, encoder_layers=2, decoder_layers=2, feed_forward=32, dropout=0.1
    ),
    "seq2seq": RnnConfig(attention="none", **RNN_SIZES),
    "seq2seq + additive attention": RnnConfig(attention="additive", **RNN_SIZES),
    "seq2seq + dot attention": RnnConfig(attention="dot", cell="lstm", **RNN_SIZES),
}
TRAINING = TrainingConfig(lr=0.01, warmup_steps=10, clip_norm=1.0)

# Number, adjective, noun and verb change their order on the way, and each verb takes the end of a polite sentence.
NUMBERS = {"one": "한", "two": "두", "three": "세", "four": "네"}
ADJECTIVES = {"red": "빨간", "white": "하얀", "small": "작은", "old": "늙은", "happy": "행복한"}
NOUNS = {"dog": "개", "cat": "고양이", "bird": "새", "tiger": "호랑이", "rabbit": "토끼", "horse": "말"}
VERBS = {"sleep": "잡니다", "run": "달립니다", "eat": "먹습니다", "sing": "노래합니다", "play": "놉니다"}
SMALLEST_MARGIN = 0.5
"""Between the scores of the two best outputs of each stored line; differences of kernels are below 0.0001."""
OVERRIDES = (
    "text.tokenizer=bpe",
    "text.vocabulary_size=380",
    "model.width=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward=64",
    "model.dropout=0.1",
    "training.lr=0.005",
    "training.warmup_steps=50",
    "training.batch_tokens=800",
    "training.max_steps=600",
    "training.validate_every=300",
    "training.average=0",
    "training.device=cpu",
    "training.threads=1",
)


def make_batch(step: int) -> Batch:
    """Six pairs of ids and the same ids backwards, by Python's own generator, which never changes."""
    draw = random.Random(step)
    rows = [[draw.randrange(2, VOCABULARY) for _ in range(draw.randrange(1, 8))] for _ in range(6)]
    sources, targets = [[*row, END] for row in rows], [[*row[::-1], END] for row in rows]
    return batch_of_rows(sources, targets, np.arange(1, 7), VOCABULARY, VOCABULARY)


def loss_curve(config: ModelConfig, dtype: torch.dtype = torch.float32) -> list[float]:
    """Smoothed loss per token in each of the updates."""
    network = build_model(config, VOCABULARY, VOCABULARY, seed=1).to(dtype)
    parameters = trainable_parameters(network)
    model = ModelWithLoss(network, TRAINING.label_smoothing).train()
    updater = Updater(model, parameters, Adam(parameters, TRAINING), clip_norm=TRAINING.clip_norm)
    losses: list[float] = []
    for step in range(1, NUM_STEPS + 1):
        rate = learning_rate(step, TRAINING, network.width)
        result = updater.update(make_batch(step), rate, (TRAINING.seed, step))
        losses.append(result.loss / result.num_tokens)
    return losses


def largest_difference(curve: list[float], wanted: list[float]) -> float:
    """Relative to the wanted one."""
    return max(abs(loss - other) / other for loss, other in zip(curve, wanted, strict=True))


def make_curves() -> None:
    """Write the curves, and tell how far float64 is from them."""
    curves = {name: loss_curve(config) for name, config in SYSTEMS.items()}
    for name, config in SYSTEMS.items():
        difference = largest_difference(curves[name], loss_curve(config, torch.float64))
        sys.stdout.write(
            f"{name}: {curves[name][0]:.4f} to {curves[name][-1]:.4f}, float64 differs by {difference:.1e}\n"
        )
    rounded = {name: [float(f"{loss:.8g}") for loss in curve] for name, curve in curves.items()}
    CURVES.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def toy_language() -> dict[str, str]:
    """Every sentence and its translation, in an order drawn once for all."""
    pairs: dict[str, str] = {}
    for number, adjective, noun, verb in product(NUMBERS, ADJECTIVES, NOUNS, VERBS):
        source = f"{number} {adjective} {noun}{'' if number == 'one' else 's'} {verb}{'s' if number == 'one' else ''}."
        pairs[source] = f"{ADJECTIVES[adjective]} {NOUNS[noun]} {NUMBERS[number]} 마리가 {VERBS[verb]}."
    order = list(pairs)
    random.Random(1).shuffle(order)
    return {source: pairs[source] for source in order}


def make_model() -> None:
    """Train on the toy language through the command line, store the weights in bf16, and prove the margins."""
    pairs = toy_language()
    held_out, *rest = np.array_split(np.array(list(pairs)), 12)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, sources in (("train.tsv", np.concatenate(rest)), ("valid.tsv", held_out)):
            text = "".join(f"{source}\t{pairs[source]}\n" for source in sources)
            (folder / file).write_text(text, encoding="utf-8")
        words = ["train", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv"), "--out", str(folder / "run")]
        subprocess.run([sys.executable, "-m", "malmoi", *words, *OVERRIDES], check=True)
        store_model(folder / "run", [str(source) for source in held_out[:10]], pairs)


def store_model(run: Path, sources: list[str], pairs: Mapping[str, str]) -> None:
    """The folder of the tests, from a finished run."""
    trained = load_model(run)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in trained.network.state_dict().items()}
    shutil.rmtree(MODEL, ignore_errors=True)
    card = {"max_source_tokens": trained.card["max_source_tokens"]}
    save_model(MODEL, trained.config, weights, trained.tokenizers, card)
    found = Translator.load(MODEL, device="cpu").translate(sources, options={"n_best": 2})
    margins = [one.score - other.score for one in found for other in one.alternatives if one.score and other.score]
    assert len(margins) == len(sources) and min(margins) > SMALLEST_MARGIN, f"too close: {sorted(margins)[:3]}"
    wrong = [one.text for one, source in zip(found, sources, strict=True) if one.text != pairs[source]]
    sys.stdout.write(f"margins from {min(margins):.2f} to {max(margins):.2f}; wrong: {wrong}\n")
    SOURCE_LINES.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8", newline="\n")
    TARGET_LINES.write_text("".join(f"{one.text}\n" for one in found), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    makers = {"curves": make_curves, "model": make_model}
    if len(sys.argv) != 2 or sys.argv[1] not in makers:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    makers[sys.argv[1]]()
