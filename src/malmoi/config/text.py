"""Settings of texts: which corpora, how they become ids, which pairs are left out."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from malmoi.config.tables import Count, Table

TokenizerKind = Literal["bpe", "unigram", "characters", "bytes", "words"]


class DataSource(Table):
    """One corpus: either one file that holds pairs, or one file for each side."""

    pairs: str | None = None
    """One file with both sides: .tsv or .jsonl, also .gz or .zst."""
    source: str | None = None
    """A file of sources, one a line."""
    target: str | None = None
    """A file of their targets, line for line."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """How often each pair is seen in an epoch: 2 is twice, 0.5 is every other epoch."""

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        if (self.pairs is None) == (self.source is None) or (self.source is None) != (self.target is None):
            raise ValueError("give either `pairs` (one file) or both `source` and `target` (two files)")
        return self


class Stage(Table):
    """From an update on, other weights of the corpora."""

    after_steps: Count
    """So many updates were tried before the first one of this stage."""
    weights: tuple[Annotated[float, Field(ge=0.0)], ...]
    """One for each corpus of training, in place of its `weight`; 0 leaves it out."""


class TextConfig(Table):
    """How text becomes ids."""

    tokenizer: TokenizerKind = "bpe"
    """Of both sides. `words` cuts at spaces; `bpe` and `unigram` learn subwords (SentencePiece)."""
    source_tokenizer: TokenizerKind | None = None
    """Another one for sources."""
    target_tokenizer: TokenizerKind | None = None
    """Another one for targets."""
    vocabulary_size: Annotated[int, Field(ge=2, le=10_000_000)] = 8000
    """Wanted size for `bpe` and `unigram` (lowered where the text is too small), a limit for `characters`, `words`."""
    shared_vocabulary: bool = True
    """One vocabulary for both sides."""
    minimum_count: Count = 1
    """A symbol of `characters` or `words` that occurs less often than this in training becomes unknown."""
    sampling: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """BPE-dropout (Provilkov et al., 2020) or unigram sampling (Kudo, 2018) in training; 0 is off."""

    @property
    def source_kind(self) -> TokenizerKind:
        return self.source_tokenizer or self.tokenizer

    @property
    def target_kind(self) -> TokenizerKind:
        return self.target_tokenizer or self.tokenizer

    @model_validator(mode="after")
    def check_sharing(self) -> Self:
        if self.shared_vocabulary and self.source_kind != self.target_kind:
            raise ValueError(
                f"one shared vocabulary needs one tokeniser, but the source uses {self.source_kind} and the target "
                f"{self.target_kind}; set shared_vocabulary = false"
            )
        if self.sampling and not {"bpe", "unigram"} & {self.source_kind, self.target_kind}:
            raise ValueError("sampling needs a bpe or unigram tokeniser on one side at least")
        return self


class CleaningConfig(Table):
    """Which training pairs are left out; every one is counted with its reason."""

    max_characters: Count = 5000
    """Longest side of a training pair in characters."""
    max_tokens: Count = 256
    """Longest side of a training pair in tokens, end symbol included."""
    max_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Longest side over shortest side, in characters; 0 is off."""
    drop_duplicates: bool = False
    """Leave out pairs that came before, both sides alike."""
    drop_control_characters: bool = True
    """Leave out pairs with control characters."""
