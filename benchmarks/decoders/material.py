"""What all systems translate, and with which weights.

In: sizes, or a trained model with its test set. Out: sentences in files, a model folder, copies of it for CTranslate2.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 10_000
MEAN_WORDS, SPREAD, MOST_WORDS = 14.0, 4.5, 60
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "width": 128, "heads": 4, "hidden": 256},
    "paper-base": {"layers": 6, "width": 512, "heads": 8, "hidden": 2048},
}


def write_sentences(path: Path, count: int, seed: int) -> None:
    """Words of the vocabulary, drawn evenly; lengths roughly those of subwords in Multi30k."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.normal(MEAN_WORDS, SPREAD, count).round(), 3, MOST_WORDS).astype(int)
    rows = (" ".join(f"w{word}" for word in random.integers(0, VOCABULARY - 2, length)) for length in lengths)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def make_model(folder: Path, size: str, seed: int) -> None:
    """A Transformer of the paper's kind with start values for weights, which seldom says `</s>`."""
    from malmoi.checkpoint import save_model
    from malmoi.config.decoding import DecodingConfig
    from malmoi.config.model import TransformerConfig
    from malmoi.config.run import StoredConfig
    from malmoi.config.text import TextConfig
    from malmoi.models.build import build_model
    from malmoi.text.tokenizer import Tokenizers, train_tokenizer

    shape = SIZES[size]
    config = TransformerConfig(
        width=shape["width"],
        heads=shape["heads"],
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        feed_forward=shape["hidden"],
    )
    words = train_tokenizer("words", (f"w{word}" for word in range(VOCABULARY - 2)), vocabulary_size=VOCABULARY)
    assert words.size == VOCABULARY
    text = TextConfig(tokenizer="words", vocabulary_size=VOCABULARY)
    stored = StoredConfig(text=text, model=config, decoding=DecodingConfig())
    network = build_model(config, VOCABULARY, VOCABULARY, seed=seed)
    save_model(folder, stored, network, Tokenizers(words, words, shared=True), {})


def export(model: Path, folder: Path, kind: str) -> tuple[Path, str]:
    """A copy for CTranslate2 that `malmoi export` has proved, and what there is to say about it.

    int8 of random weights may not keep its bound, which is made for trained ones: then the float32 copy is rounded when
    it is loaded.
    """
    out = folder / f"ctranslate2-{kind}"
    words = [sys.executable, "-m", "malmoi", "export", str(model), "--to", "ctranslate2", "--out", str(out)]
    if out.exists():
        return out, ""
    quantization = [] if kind == "float32" else ["--quantization", kind]
    done = subprocess.run([*words, *quantization], capture_output=True, text=True, check=False)
    if not done.returncode:
        return out, ""
    if kind == "float32":
        raise SystemExit(done.stderr)
    return export(model, folder, "float32")[0], "rounded when loaded"


def sizes_of(model: Path) -> dict[str, int] | None:
    """What is told to Hugging Face of a Transformer whose both sides have as many layers; None for other models."""
    from malmoi.checkpoint import find_model, load_model

    loaded = load_model(find_model(model))
    config = loaded.config.model
    if config.architecture != "transformer" or config.encoder_layers != config.decoder_layers:
        return None
    return {
        "layers": config.encoder_layers,
        "width": config.width,
        "heads": config.heads,
        "hidden": config.feed_forward,
        "vocabulary": loaded.tokenizers.target.size,
    }


def stand_in(model: Path, lines: list[str]) -> list[str]:
    """For each sentence one of as many words as the model's tokeniser makes tokens of it."""
    from malmoi.checkpoint import find_model, load_model

    tokenizer = load_model(find_model(model)).tokenizers.source
    return [" ".join(f"w{word}" for word in tokenizer.encode(line)) for line in lines]


def num_parameters(model: Path) -> int:
    """Weights of a model folder or a run folder."""
    from malmoi.checkpoint import find_model, load_model

    return sum(one.numel() for one in load_model(find_model(model)).network.parameters())


def bleu(outputs: Path, reference: Path, num_lines: int | None = None) -> float:
    """BLEU of text that is tokenised already, against so many lines of the reference."""
    import sacrebleu

    lines = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in (outputs, reference)]
    score: Any = sacrebleu.corpus_bleu(lines[0], [lines[1][:num_lines]], tokenize="none", force=True)
    return float(score.score)
