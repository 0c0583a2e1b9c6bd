"""Settings: frozen tables, strict about names and values, with every default in one place.

How TOML and `key=value` words become such tables stands in `settings.py`.
"""

from typing import Annotated, Literal, Self, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator

TokenizerKind = Literal["bpe", "unigram", "characters", "bytes", "words"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
NormPlace = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "swiglu"]
Tying = Literal["all", "target", "none"]
Cell = Literal["gru", "lstm"]
RnnAttention = Literal["none", "additive", "dot"]
ScheduleKind = Literal["paper", "inverse_sqrt", "cosine", "constant"]
ParallelKind = Literal["ddp", "fsdp"]
Metric = Literal["loss", "bleu", "chrf", "ter", "exact", "segment_error", "wer", "ser"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["fp32", "int8"]

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]

WORD_ERROR_OF_SYMBOLS = (
    "wer counts words, but each symbol of such targets is a word already: take ser (edits per symbol) or segment_error "
    "(the share of wrong segments; for pronunciations this is what is called word error rate)"
)


def higher_is_better(metric: Metric) -> bool:
    """The direction of a metric."""
    match metric:
        case "bleu" | "chrf" | "exact":
            return True
        case "loss" | "ter" | "segment_error" | "wer" | "ser":
            return False
        case _:
            assert_never(metric)


class Table(BaseModel):
    """A table of settings: unknown keys are refused, values cannot change after the check."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class DataSource(Table):
    """One corpus: either one file that holds pairs, or one file for each side."""

    pairs: str | None = None
    source: str | None = None
    target: str | None = None
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
    source_tokenizer: TokenizerKind | None = None
    target_tokenizer: TokenizerKind | None = None
    vocabulary_size: Annotated[int, Field(ge=2, le=10_000_000)] = 8000
    """Wanted size for `bpe` and `unigram` (lowered where the text is too small), a limit for `characters`, `words`."""
    shared_vocabulary: bool = True
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
    max_tokens: Count = 256
    """Longest side of a training pair in tokens, end symbol included."""
    max_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Longest side over shortest side, in characters; 0 is off."""
    drop_duplicates: bool = False
    drop_control_characters: bool = True


class TransformerConfig(Table):
    """The encoder-decoder of "Attention Is All You Need"; the defaults are its base model."""

    architecture: Literal["transformer"] = "transformer"
    width: Width = 512
    heads: Count = 8
    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    feed_forward: Width = 2048
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    positions: Positions = "sinusoidal"
    max_positions: Width = 1024
    """Rows of the table of `learned` positions: a longer sentence is refused. Others grow as needed."""
    relative_distance: Width = 16
    """Clipping distance k of `relative` positions (Shaw et al., 2018)."""
    norm_place: NormPlace = "post"
    norm: NormKind = "layer"
    activation: Activation = "relu"
    tying: Tying = "all"
    output_bias: bool = False

    @model_validator(mode="after")
    def check_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be cut into {self.heads} heads of equal size")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, so width / heads must be even, not {self.width // self.heads}"
            )
        return self


class RnnConfig(Table):
    """Seq2Seq (attention none) and Seq2Seq with attention (additive: Bahdanau, dot: Luong)."""

    architecture: Literal["rnn"] = "rnn"
    cell: Cell = "gru"
    attention: RnnAttention = "additive"
    width: Width = 256
    """Size of the embeddings."""
    hidden: Width = 512
    """Size of the decoder's state; each direction of a bidirectional encoder has half of it."""
    encoder_layers: Layers = 1
    decoder_layers: Layers = 1
    bidirectional: bool = True
    dropout: Probability = 0.2
    tying: Tying = "all"
    output_bias: bool = True

    @model_validator(mode="after")
    def check_hidden(self) -> Self:
        if self.bidirectional and self.hidden % 2:
            raise ValueError(f"a bidirectional encoder halves `hidden`, so it must be even, not {self.hidden}")
        return self


ModelConfig = Annotated[TransformerConfig | RnnConfig, Field(discriminator="architecture")]


class TrainingConfig(Table):
    """From logits to weights. Limits left out do not apply; training ends at the first that is reached."""

    seed: Seed = 1
    device: Device = "auto"
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the processor; 0 takes all."""
    precision: Literal["fp32", "bf16"] = "fp32"
    batch_tokens: Count = 4096
    """Size of one update: sentences times the longest source or target among them, end symbols included."""
    micro_batch_tokens: Annotated[int, Field(ge=0)] = 0
    """Most tokens in the memory of a process at once; its share of an update is cut into such parts. 0: all of it."""
    fit_memory: bool = False
    """Find `micro_batch_tokens` by trying, before training starts."""
    recompute: bool = False
    """Keep one state for each layer of a Transformer and compute the rest again in the backward pass: less memory, more
    time."""
    parallel: ParallelKind = "ddp"
    """What several processes do (torchrun): `ddp`, each holds the whole model; `fsdp`, each holds a part of it."""
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: Annotated[float, Field(gt=0.0)] | None = None
    """Peak learning rate; left out: width^-0.5 * warmup_steps^-0.5, as in the paper (5.3)."""
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-9
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    clip_norm: Annotated[float, Field(ge=0.0)] = 0.0
    """Largest norm of the gradient of the loss per token; 0 is off."""
    schedule: ScheduleKind = "paper"
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    label_smoothing: Probability = 0.1
    average_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Decay of the exponential average of the weights, per step; 0 is off."""
    freeze: tuple[str, ...] = ()
    """Parameters whose names start with one of these keep their values."""
    max_steps: Count | None = None
    max_epochs: Count | None = None
    max_target_tokens: Count | None = None
    max_minutes: Annotated[float, Field(gt=0.0)] | None = None
    log_every: Count = 50
    validate_every: Count = 500
    save_every: Annotated[int, Field(ge=0)] = 0
    """Steps between states to resume from; 0: with every validation."""
    metrics: tuple[Metric, ...] = ("loss",)
    """What validation measures; all but `loss` need decoded text. `exact`: share of outputs that are exactly right,
    `segment_error`: share of those that are not; `wer`: edits per word; `ser`: edits per symbol, which is a word of a
    `words` target, else a character."""
    best_metric: Metric = "loss"
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations without a better `best_metric` before training stops; 0 is never."""
    validation_beam: Annotated[int, Field(ge=1, le=1000)] = 1
    validation_pairs: Annotated[int, Field(ge=0)] = 0
    """At most so many pairs are decoded in a validation; 0: all."""
    keep_last: Annotated[int, Field(ge=0)] = 1
    keep_best: Annotated[int, Field(ge=0)] = 1
    average: Annotated[int, Field(ge=0)] = 0
    """The finished model is the mean of so many last checkpoints, where it does better on validation than the best one;
    0 or 1: the best one."""
    tensorboard: bool = False

    @model_validator(mode="after")
    def check_training(self) -> Self:
        if self.best_metric not in self.metrics:
            raise ValueError(f"best_metric is {self.best_metric}, which is not among metrics {list(self.metrics)}")
        if self.average > 1 and self.keep_last < self.average:
            raise ValueError(f"average = {self.average} needs keep_last = {self.average} or more, not {self.keep_last}")
        if not self.keep_last and not self.keep_best:
            raise ValueError("keep_last and keep_best are both 0, so no checkpoint would be left to be the model")
        if self.schedule == "cosine" and self.max_steps is None:
            raise ValueError("the cosine schedule ends at max_steps: set max_steps")
        if self.schedule == "paper" and self.lr is None and self.warmup_steps == 0:
            raise ValueError("the paper's rate is width^-0.5 * warmup_steps^-0.5: set lr or a warmup_steps above 0")
        return self


class DecodingConfig(Table):
    """How a finished model turns hidden states into text; a model stores its own defaults."""

    method: Literal["beam", "sample"] = "beam"
    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """1 is greedy search."""
    n_best: Annotated[int, Field(ge=1, le=1000)] = 1
    length_penalty: Literal["wu", "divide", "none"] = "wu"
    """What a sum of log-probabilities is divided by: ((5 + n) / 6)^alpha (Wu et al., 2016, eq. 14), n^alpha, 1;
    n counts the tokens of the target, end symbol and forced prefix included."""
    length_alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    coverage_beta: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Weight of the coverage penalty (Wu et al., 2016, eq. 14); needs a model with attention."""
    diverse_groups: Count = 1
    diversity: Annotated[float, Field(ge=0.0)] = 0.5
    """Penalty for a token that an earlier group took in this step (Vijayakumar et al., 2018)."""
    min_length: Annotated[int, Field(ge=0)] = 0
    """Fewest tokens of an output, end symbol not counted."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Most tokens of an output, end symbol not counted; also at most max_length_ratio * source + max_length_extra."""
    max_length_ratio: Annotated[float, Field(ge=0.0)] = 2.0
    max_length_extra: Annotated[int, Field(ge=0)] = 20
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    seed: Seed = 1
    replace_unknown: bool = False
    """An unknown word of a `words` model becomes the source word that attention points to."""
    merge_equal_texts: bool = False
    """Keep only the best of several segmentations that spell the same text in an n-best list."""
    batch_tokens: Count = 4096
    """Most live tokens (sentences times beam times longest source) in one decoding batch; each thread of the engine has
    a batch of its own."""
    precision: Precision = "fp32"
    """`int8`: weights in 8 bits and activations in 7, about twice as fast on a processor; needs the engine."""

    @model_validator(mode="after")
    def check_decoding(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        if self.method == "beam" and self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} needs a beam_size of at least {self.n_best}, not {self.beam_size}")
        if self.beam_size % self.diverse_groups:
            raise ValueError(
                f"beam_size {self.beam_size} cannot be cut into {self.diverse_groups} groups of equal size"
            )
        return self


class RunConfig(Table):
    """Everything that a training run depends on beside its data."""

    data: tuple[DataSource, ...] = ()
    valid: tuple[DataSource, ...] = ()
    valid_share: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    """Share of the training pairs held out where no validation data is given; at most `valid_pairs`."""
    valid_pairs: Count = 1000
    stages: tuple[Stage, ...] = ()
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
