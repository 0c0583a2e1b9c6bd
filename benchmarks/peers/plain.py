"""A plain loop around `torch.nn.Transformer`: what one writes first. Runs where malmoi runs.

Fused Adam, cross-entropy with smoothing on whole logits, one embedding for source, target and output, batches of pairs
of like length. `python -m peers.plain FOLDER` is the loop; it reads `setting.json` there.
"""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.record import read_record
from peers.setting import BETAS, DROPOUT, RATE, SMOOTHING, Command, Contestant, Setting

SPECIALS = 3
"""Padding, start, end."""
PADDING, START, END = 0, 1, 2


def prepare(setting: Setting, python: str) -> list[Command]:
    return []


def command(setting: Setting, python: str) -> Command:
    corpus = setting.corpus
    told = asdict(setting.size) | {
        "source": str(corpus.train_source),
        "target": str(corpus.train_target),
        "vocabulary": str(corpus.vocabulary),
        "batch_tokens": setting.batch_tokens,
        "bf16": setting.precision == "bf16",
        "seed": setting.seed,
    }
    (setting.folder / "setting.json").write_text(json.dumps(told), encoding="utf-8")
    return [python, "-m", "peers.plain", str(setting.folder)]


def read_pairs(told: dict[str, Any]) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Ids of all pairs, with an end symbol, and how many ids there are."""
    words = Path(told["vocabulary"]).read_text(encoding="utf-8").splitlines()
    ids = {word: number for number, word in enumerate(words, start=SPECIALS)}
    sides = [
        [[*(ids[word] for word in line.split()), END] for line in Path(told[side]).read_text("utf-8").splitlines()]
        for side in ("source", "target")
    ]
    return list(zip(*sides, strict=True)), len(words) + SPECIALS


def cut(pairs: list[tuple[list[int], list[int]]], batch_tokens: int) -> list[list[tuple[list[int], list[int]]]]:
    """Pairs sorted by length, as many to a batch as `batch_tokens` holds of the longest side."""
    batches: list[list[tuple[list[int], list[int]]]] = []
    longest = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
        longest = max(longest, len(pair[0]), len(pair[1]))
        if not batches or (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = max(len(pair[0]), len(pair[1]))
        batches[-1].append(pair)
    return batches


def sines(length: int, width: int) -> Any:
    """Positions as in the paper, section 3.5."""
    import torch

    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def build_model(told: dict[str, Any], num_ids: int) -> Any:
    """The module."""
    import torch
    from torch import nn

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width, layers = told["width"], told["layers"]
            self.embedding = nn.Embedding(num_ids, width)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.transformer = nn.Transformer(
                width, told["heads"], layers, layers, told["hidden"], DROPOUT, batch_first=True
            )
            for module in self.transformer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
            self.dropout = nn.Dropout(DROPOUT)
            self.positions: torch.Tensor
            self.register_buffer("positions", sines(1024, width))

        def embed(self, ids: Any) -> Any:
            return self.dropout(self.embedding(ids) * told["width"] ** 0.5 + self.positions[: ids.size(1)])

        def forward(self, source: Any, target: Any) -> Any:
            padding = source == PADDING
            maybe_padding = padding if bool(padding.any()) else None
            hidden = self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1),
                tgt_is_causal=True,
                src_key_padding_mask=maybe_padding,
                memory_key_padding_mask=maybe_padding,
            )
            return hidden @ self.embedding.weight.T

    return Plain().train()


def main(folder: str) -> None:
    """The loop; it ends when it is stopped."""
    import random

    import torch
    from torch import nn

    from peers.probe import Probe

    told = json.loads((Path(folder) / "setting.json").read_text(encoding="utf-8"))
    torch.manual_seed(told["seed"])
    order = random.Random(told["seed"])
    pairs, num_ids = read_pairs(told)
    batches = cut(pairs, told["batch_tokens"])
    model = build_model(told, num_ids)
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=BETAS, fused=True)
    probe = Probe()

    def padded(rows: list[list[int]]) -> Any:
        return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PADDING)

    while True:
        order.shuffle(batches)
        for batch in batches:
            source = padded([pair[0] for pair in batch])
            wanted = padded([pair[1] for pair in batch])
            begun = padded([[START, *pair[1][:-1]] for pair in batch])
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=told["bf16"]):
                logits = model(source, begun)
                loss = nn.functional.cross_entropy(
                    logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING, label_smoothing=SMOOTHING
                )
            loss.backward()
            probe.consumed(int((wanted != PADDING).sum()), loss.item())
            optimizer.step()


PLAIN = Contestant(
    name="plain",
    label="plain loop, torch.nn.Transformer",
    requirements=(),
    sizes=frozenset({"tiny", "paper-base"}),
    precisions=("fp32", "bf16"),
    processes=(1,),
    prepare=prepare,
    command=command,
    updates=read_record,
    batch_counts="as malmoi",
    counted="labels that are not padding, in the loop itself",
    differs="fused Adam; its dropout on attention weights, which malmoi does not have, is switched off; one more on "
    "the activation inside the feed-forward layer",
)

if __name__ == "__main__":
    main(sys.argv[1])
