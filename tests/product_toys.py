"""A toy corpus, and the command line in processes of their own: what the tests of the product share."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SYLLABLES = ("ka", "mi", "to", "ne", "su", "ré", "ha", "yo", "wi", "lu")
FAST = (
    "model.width=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward=64",
    "text.tokenizer=bpe",
    "text.vocabulary_size=100",
    "training.batch_tokens=400",
    "training.log_every=5",
    "training.validate_every=10",
    "training.max_steps=20",
    "decoding.max_length_ratio=1.0",
    "decoding.max_length_extra=3",
)


def run_malmoi(
    *words: str | Path, cwd: Path, stdin: bytes = b"", environment: dict[str, str] | None = None, status: int = 0
) -> "subprocess.CompletedProcess[bytes]":
    """One command in a process of its own; its status must be the expected one."""
    result = subprocess.run(
        [sys.executable, "-m", "malmoi", *map(str, words)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        check=False,
    )
    assert result.returncode == status, result.stderr.decode(errors="replace")
    return result


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Sources of made-up words, and targets with the words the other way round."""
    draw = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    for _ in range(count):
        words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(draw.randint(3, 9))]
        pairs.append((" ".join(words) + ".", " ".join(reversed(words)) + "!"))
    return pairs


def write(path: Path, lines: Sequence[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
