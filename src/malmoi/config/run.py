"""All settings of a run together, and those that a finished model keeps."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import ModelConfig, TransformerConfig
from malmoi.config.tables import Count, Table
from malmoi.config.text import CleaningConfig, DataSource, Stage, TextConfig
from malmoi.config.training import TrainingConfig

WORD_ERROR_OF_SYMBOLS = (
    "wer counts words, but each symbol of such targets is a word already: take ser (edits per symbol) or segment_error "
    "(the share of wrong segments; for pronunciations this is what is called word error rate)"
)


class RunConfig(Table):
    """Everything that a training run depends on beside its data."""

    data: tuple[DataSource, ...] = ()
    """Corpora of training; each may be given as files on the command line instead."""
    valid: tuple[DataSource, ...] = ()
    """Corpora of validation."""
    valid_share: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    """Share of the training pairs held out where no validation data is given; at most `valid_pairs`."""
    valid_pairs: Count = 1000
    """Most pairs held out."""
    stages: tuple[Stage, ...] = ()
    """Other weights of the corpora later on."""
    text: TextConfig = TextConfig()
    cleaning: CleaningConfig = CleaningConfig()
    model: ModelConfig = TransformerConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def check_positions(self) -> Self:
        model, longest = self.model, self.cleaning.max_tokens
        if isinstance(model, TransformerConfig) and model.positions == "learned" and model.max_positions < longest:
            raise ValueError(
                f"learned positions reach to {model.max_positions}, but training pairs may have {longest} tokens: "
                "raise model.max_positions or lower cleaning.max_tokens"
            )
        return self

    @model_validator(mode="after")
    def check_metrics(self) -> Self:
        if "wer" in self.training.metrics and self.text.target_kind == "words":
            raise ValueError(f"training.metrics: {WORD_ERROR_OF_SYMBOLS}")
        return self

    @model_validator(mode="after")
    def check_recompute(self) -> Self:
        if self.training.recompute and self.model.architecture != "transformer":
            raise ValueError(
                "training.recompute: the steps of an rnn are kept as they are, only the layers of a transformer can be "
                "computed again; set recompute = false, and a smaller micro_batch_tokens if memory is short"
            )
        return self

    @model_validator(mode="after")
    def check_tying(self) -> Self:
        if self.model.tying == "all" and not self.text.shared_vocabulary:
            raise ValueError(
                'model.tying = "all" shares one embedding between source and target ids, which mean different words '
                'in separate vocabularies: set text.shared_vocabulary = true, or model.tying = "target"'
            )
        return self


class StoredConfig(Table):
    """The part of a config that a finished model needs: `config.toml` of a model folder."""

    format: Literal[1] = 1
    text: TextConfig
    model: ModelConfig
    decoding: DecodingConfig
