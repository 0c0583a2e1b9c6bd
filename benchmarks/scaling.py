"""What WMT14 English-German takes with the paper's two models: all of it calculated, nothing measured.

    python benchmarks/scaling.py                     the tables
    python benchmarks/scaling.py --write docs/scaling.md     the same, into the page

Parameters are counted in the model as malmoi builds it, outlined without memory. Operations are those of
`benchmarks/growth.py`: two for each product of two numbers and its sum, three passes of them. A test holds the page to
what this prints.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from command import table
from growth import Case
from torch import nn

from malmoi.config.model import TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.models.build import outline_model
from malmoi.presets import preset_settings
from malmoi.settings import build_config
from malmoi.training.loss import ACCELERATOR_CHUNK_ELEMENTS

PRESETS = ("paper-base", "paper-big")
BEGIN, END = "<!-- printed by benchmarks/scaling.py -->\n", "<!-- end -->"
LENGTH = 28
"""Tokens of a sentence, on average; it decides what attention takes, a few percent of all."""
NUM_PAIRS = 4_500_000
NUM_GPUS = (1, 8)
SHARES = (0.2, 0.4, 0.6)
PARTS = (25_000, 3125, 1024)
"""Tokens of a micro-batch; the second is a GPU's share among eight."""
GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """Ceilings from the vendor's data sheets, dense, in operations and bytes per second."""

    name: str
    bf16: float
    fp32: float
    """Without TF32, which malmoi leaves off."""
    memory: int
    """In GB."""
    link: float
    """To the others of its machine, one way."""


GPUS = (
    Gpu("A100 (SXM)", 312e12, 19.5e12, 80, 300e9),
    Gpu("H100 (SXM)", 989e12, 67e12, 80, 450e9),
    Gpu("RTX 4090", 165e12, 82.6e12, 24, 32e9),
)


@dataclass(frozen=True)
class Model:
    """A preset and what follows from it."""

    name: str
    config: RunConfig
    num_parameters: int
    largest_layer: int
    """Parameters of the largest layer of a stack."""
    in_layers: int
    """Parameters of all layers; what remains is the embedding, mostly."""

    @property
    def shape(self) -> TransformerConfig:
        assert isinstance(self.config.model, TransformerConfig)
        return self.config.model

    @property
    def steps(self) -> int:
        assert self.config.training.max_steps is not None
        return self.config.training.max_steps

    @property
    def tokens(self) -> int:
        """Of an update, on each side."""
        return self.config.training.batch_tokens

    @property
    def vocabulary(self) -> int:
        return self.config.text.vocabulary_size

    @property
    def operations(self) -> int:
        """Of an update."""
        shape = self.shape
        sizes = {"width": shape.width, "feed_forward": shape.feed_forward, "heads": shape.heads}
        case = Case(length=LENGTH, rows=1, vocabulary=self.vocabulary, layers=shape.encoder_layers, **sizes)
        return case.operations * self.tokens // LENGTH

    def pass_bytes(self, tokens: int, *, bf16: bool, recompute: bool = False) -> float:
        """Of a pass over so many tokens a side: what the backward half needs, masks of dropout, the loss.

        Kept numbers as in `growth.py`; under bf16 a quarter less, as inputs of products are half as large and sums and
        norms are not. `recompute` keeps a state for each layer, and all of the one pair of layers that is at work.
        """
        width, inner, layers = self.shape.width, self.shape.feed_forward, self.shape.encoder_layers
        in_layers = (21 * width + 4 * inner) * (3 if bf16 else 4) + 5 * width
        kept = layers * 2 * width * 4 + in_layers if recompute else layers * in_layers
        # A chunk of logits in fp32, and in bf16 before and after it.
        logits = min(ACCELERATOR_CHUNK_ELEMENTS, tokens * self.vocabulary) * (8 if bf16 else 4)
        loss = 4 * self.vocabulary * width + 8 * tokens * width
        return tokens * kept + logits + loss

    def model_bytes(self, num_gpus: int, *, bf16: bool, fsdp: bool) -> float:
        """Weights, gradients and two moments, and what a pass makes of the weights."""
        if not fsdp:
            return (16 + (2 if bf16 else 0)) * self.num_parameters
        rest = self.num_parameters - self.in_layers
        # Embedding and its gradient whole, a layer at work and the next one, the gradient of one.
        gathered = 8 * rest + 12 * self.largest_layer
        return 16 * self.num_parameters / num_gpus + gathered + (2 * (rest + self.largest_layer) if bf16 else 0)


def open_model(name: str) -> Model:
    """A preset with the parameters of the model that it makes."""
    config = build_config(preset_settings(name))
    size = config.text.vocabulary_size
    outline = outline_model(config.model, size, size)
    layers = [
        sum(parameter.numel() for parameter in layer.parameters())
        for stack in outline.modules()
        if isinstance(stack, nn.ModuleList)
        for layer in stack
        if any(layer.children())
    ]
    total = sum(parameter.numel() for parameter in outline.parameters())
    return Model(name, config, total, max(layers), sum(layers))


def work(models: Sequence[Model]) -> list[str]:
    """Steps, tokens, operations."""
    rows = [["", *(model.name for model in models)]]
    cells = {
        "parameters": [f"{model.num_parameters:,}" for model in models],
        "updates": [f"{model.steps:,}" for model in models],
        "tokens of an update, each side, padding included": [f"{model.tokens:,}" for model in models],
        "target tokens in all": [f"{model.steps * model.tokens / 1e9:.1f} billion" for model in models],
        f"passes over {NUM_PAIRS:,} pairs": [
            f"{model.steps * model.tokens / NUM_PAIRS / LENGTH:.0f}" for model in models
        ],
        "FLOP of an update": [f"{model.operations:.2e}" for model in models],
        "FLOP in all": [f"{model.operations * model.steps:.2e}" for model in models],
    }
    return table([*rows, *([name, *values] for name, values in cells.items())])


def hours(models: Sequence[Model]) -> list[str]:
    """On one and eight GPUs, at shares of their ceilings."""
    head = ["hours at", *(f"{share:.0%} on {count}" for count in NUM_GPUS for share in SHARES)]
    rows = [head]
    for model in models:
        for gpu in GPUS:
            for kind, ceiling in (("bf16", gpu.bf16), ("fp32", gpu.fp32)):
                seconds = model.operations * model.steps / ceiling
                found = [seconds / share / count / 3600 for count in NUM_GPUS for share in SHARES]
                rows.append([f"{model.name}, {gpu.name}, {kind}", *(f"{one:,.1f}" for one in found)])
    return table(rows)


def ways(models: Sequence[Model]) -> list[str]:
    """An update's time on eight GPUs beside the way of its gradients."""
    rows = [["milliseconds of an update on 8", "computing, bf16 at 40%", "gradients between GPUs"]]
    for model in models:
        for gpu in GPUS:
            computing = model.operations / 8 / (0.4 * gpu.bf16)
            # Each GPU sends and gets 7/8 of all twice: sums of parts, then the parts.
            way = 2 * 7 / 8 * 4 * model.num_parameters / gpu.link
            rows.append([f"{model.name}, {gpu.name}", f"{1e3 * computing:.1f}", f"{1e3 * way:.1f}"])
    return table(rows)


def memory(models: Sequence[Model]) -> list[str]:
    """GiB of each GPU for each choice."""
    rows = [["GiB of each GPU", "model", *(f"with micro-batches of {tokens:,} tokens" for tokens in PARTS)]]
    for model in models:
        for count in NUM_GPUS:
            for fsdp in (False, True) if count > 1 else (False,):
                for bf16, again in itertools.product((False, True), repeat=2):
                    own = model.model_bytes(count, bf16=bf16, fsdp=fsdp)
                    found = [own + model.pass_bytes(tokens, bf16=bf16, recompute=again) for tokens in PARTS]
                    # More than its share of an update no GPU ever has.
                    cells = [
                        f"{one / GIB:.1f}" if tokens <= model.tokens / count else ""
                        for tokens, one in zip(PARTS, found, strict=True)
                    ]
                    kind = ("fsdp" if fsdp else "ddp") if count > 1 else "alone"
                    words = [f"{model.name}, {count} GPU{'s' * (count > 1)}", kind, "bf16" if bf16 else "fp32"]
                    name = ", ".join([*words, "recompute"] if again else words)
                    rows.append([name, f"{own / GIB:.1f}", *cells])
    return table(rows)


def tables() -> str:
    """All of them, between the marks of the page."""
    models = [open_model(name) for name in PRESETS]
    parts = [work(models), hours(models), ways(models), memory(models)]
    return BEGIN + "\n" + "\n\n".join("\n".join(part) for part in parts) + "\n\n" + END


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="put the tables into this page")
    options = parser.parse_args()
    if options.write is None:
        print(tables())
        return
    before, rest = options.write.read_text(encoding="utf-8").split(BEGIN)
    options.write.write_text(before + tables() + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
