"""Settings of search."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from malmoi.config.tables import Count, Seed, Table

Precision = Literal["fp32", "int8"]


class DecodingConfig(Table):
    """How a finished model turns hidden states into text; a model stores its own defaults."""

    method: Literal["beam", "sample"] = "beam"
    """Search for the best output, or draw one by chance."""
    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """1 is greedy search."""
    n_best: Annotated[int, Field(ge=1, le=1000)] = 1
    """Outputs of each source, best first."""
    length_penalty: Literal["wu", "divide", "none"] = "wu"
    """What a sum of log-probabilities is divided by: ((5 + n) / 6)^alpha (Wu et al., 2016, eq. 14), n^alpha, 1;
    n counts the tokens of the target, end symbol and forced prefix included."""
    length_alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Power of the length penalty; 0 is none."""
    coverage_beta: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Weight of the coverage penalty (Wu et al., 2016, eq. 14); needs a model with attention."""
    diverse_groups: Count = 1
    """Groups that the beam is cut into, each kept apart from those before it."""
    diversity: Annotated[float, Field(ge=0.0)] = 0.5
    """Penalty for a token that an earlier group took in this step (Vijayakumar et al., 2018)."""
    min_length: Annotated[int, Field(ge=0)] = 0
    """Fewest tokens of an output, end symbol not counted."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Fewest tokens of an output for each token of its source."""
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Most tokens of an output, end symbol not counted; also at most max_length_ratio * source + max_length_extra."""
    max_length_ratio: Annotated[float, Field(ge=0.0)] = 2.0
    """See max_length."""
    max_length_extra: Annotated[int, Field(ge=0)] = 20
    """See max_length."""
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    """No sequence of so many tokens comes twice in an output; 0 is off."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """`sample`: below 1 keeps nearer to the best, above 1 strays farther."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """`sample`: only the so many likeliest tokens; 0 is all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """`sample`: only the likeliest tokens that together have this probability."""
    seed: Seed = 1
    """`sample`: what the draws are a function of."""
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
