"""Models with start values whose explanations and pages are looked at."""

from malmoi.checkpoint import Model
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import ModelConfig
from malmoi.config.run import StoredConfig
from malmoi.config.text import TextConfig
from malmoi.models.build import build_model
from malmoi.text.tokenizer import train_tokenizers


def make_model(config: ModelConfig, lines: list[str], max_length: int = 12) -> Model:
    """A model of whole words whose outputs are all `max_length` tokens long."""
    text = TextConfig(tokenizer="words", vocabulary_size=600)
    tokenizers = train_tokenizers(text, lines, lines, 1)
    network = build_model(config, tokenizers.source.size, tokenizers.target.size, 5)
    decoding = DecodingConfig(beam_size=1, max_length=max_length, min_length=max_length)
    return Model(StoredConfig(text=text, model=config, decoding=decoding), network.eval(), tokenizers, {})
