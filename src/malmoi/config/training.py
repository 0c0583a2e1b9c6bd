"""Settings of training."""

from typing import Annotated, Literal, Self, assert_never

from pydantic import Field, model_validator

from malmoi.config.tables import Count, Probability, Seed, Table

ScheduleKind = Literal["paper", "inverse_sqrt", "cosine", "constant"]
ParallelKind = Literal["ddp", "fsdp"]
Metric = Literal["loss", "bleu", "chrf", "ter", "exact", "segment_error", "wer", "ser"]
Device = Literal["auto", "cpu", "cuda", "mps"]


def higher_is_better(metric: Metric) -> bool:
    """The direction of a metric."""
    match metric:
        case "bleu" | "chrf" | "exact":
            return True
        case "loss" | "ter" | "segment_error" | "wer" | "ser":
            return False
        case _:
            assert_never(metric)


class TrainingConfig(Table):
    """From logits to weights. Limits left out do not apply; training ends at the first that is reached."""

    seed: Seed = 1
    """Start weights, order of the pairs and dropout are functions of it."""
    device: Device = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the processor; 0 takes all."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Type of the matrix products; weights and sums stay in fp32."""
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
    """Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019)."""
    lr: Annotated[float, Field(gt=0.0)] | None = None
    """Peak learning rate; left out: width^-0.5 * warmup_steps^-0.5, as in the paper (5.3)."""
    beta1: Probability = 0.9
    """Adam's decay of the mean of gradients."""
    beta2: Probability = 0.98
    """Adam's decay of the mean of their squares."""
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-9
    """What Adam adds to the root of that mean."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Pull towards 0 on all weights but biases and gains of norms: in the gradient (adam) or beside it (adamw)."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 0.0
    """Largest norm of the gradient of the loss per token; 0 is off."""
    schedule: ScheduleKind = "paper"
    """How the rate falls after the warm-up: with the root of the step (paper, inverse_sqrt), to 0 at max_steps (cosine)
    or not at all."""
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    """Updates in which the rate rises in a straight line."""
    label_smoothing: Probability = 0.1
    """Share of the wanted probability that is spread over all symbols (5.4)."""
    consistency: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of R-Drop (Liang et al., 2021): every pair is computed twice with different dropout, and what the two say
    is held together. An update takes twice the time and memory; 0 is off."""
    average_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Decay of the exponential average of the weights, per step; 0 is off."""
    freeze: tuple[str, ...] = ()
    """Parameters whose names start with one of these keep their values."""
    max_steps: Count | None = None
    """Updates at most."""
    max_epochs: Count | None = None
    """Passes over the pairs at most."""
    max_target_tokens: Count | None = None
    """Target tokens trained on at most, end symbols included."""
    max_minutes: Annotated[float, Field(gt=0.0)] | None = None
    """Minutes at most, of all starts together."""
    log_every: Count = 50
    """Updates from one line of progress to the next."""
    validate_every: Count = 500
    """Updates from one validation to the next."""
    save_every: Annotated[int, Field(ge=0)] = 0
    """Steps between states to resume from; 0: with every validation."""
    metrics: tuple[Metric, ...] = ("loss",)
    """What validation measures; all but `loss` need decoded text. `exact`: share of outputs that are exactly right,
    `segment_error`: share of those that are not; `wer`: edits per word; `ser`: edits per symbol, which is a word of a
    `words` target, else a character."""
    best_metric: Metric = "loss"
    """Which of `metrics` says which checkpoint is best."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations without a better `best_metric` before training stops; 0 is never."""
    validation_beam: Annotated[int, Field(ge=1, le=1000)] = 1
    """Width of the beam in validation; 1 is greedy."""
    validation_pairs: Annotated[int, Field(ge=0)] = 0
    """At most so many pairs are decoded in a validation; 0: all."""
    keep_last: Annotated[int, Field(ge=0)] = 1
    """So many of the latest checkpoints stay."""
    keep_best: Annotated[int, Field(ge=0)] = 1
    """So many of the best checkpoints stay."""
    average: Annotated[int, Field(ge=0)] = 0
    """The finished model is the mean of so many last checkpoints, where it does better on validation than the best one;
    0 or 1: the best one."""
    tensorboard: bool = False
    """Write curves for TensorBoard too (extra `tensorboard`)."""

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
