"""Small models on disk, for tests of what is written and read."""

from pathlib import Path

from malmoi.checkpoint import save_model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import ModelConfig, TransformerConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.models.build import build_model
from malmoi.models.interface import Seq2Seq
from malmoi.text.tokenizer import Tokenizers, train_tokenizers

TEXT = TextConfig(tokenizer="characters")
SMALL = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8)


def small_tokenizers() -> Tokenizers:
    return train_tokenizers(TEXT, ["abc", "cde"], ["xyz"], seed=1)


def make(tokenizers: Tokenizers, model: ModelConfig = SMALL, seed: int = 1) -> tuple[StoredConfig, Seq2Seq]:
    config = StoredConfig(text=TEXT, model=model, decoding=DecodingConfig(beam_size=3))
    return config, build_model(model, tokenizers.source.size, tokenizers.target.size, seed)


def save(folder: Path, tokenizers: Tokenizers, model: ModelConfig = SMALL, seed: int = 1) -> Seq2Seq:
    config, network = make(tokenizers, model, seed)
    save_model(folder, config, network, tokenizers, {"steps": seed})
    return network
