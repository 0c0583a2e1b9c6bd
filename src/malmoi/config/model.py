"""Settings of models: the Transformer, and the two systems that came before it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from malmoi.config.tables import Count, Layers, Probability, Table, Width

Positions = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
NormPlace = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "swiglu"]
Tying = Literal["all", "target", "none"]
Cell = Literal["gru", "lstm"]
RnnAttention = Literal["none", "additive", "dot"]


class TransformerConfig(Table):
    """The encoder-decoder of "Attention Is All You Need"; the defaults are its base model."""

    architecture: Literal["transformer"] = "transformer"
    """Which of the systems."""
    width: Width = 512
    """d_model of the paper: size of embeddings and of every layer's output."""
    heads: Count = 8
    """Attention heads; they share the width."""
    encoder_layers: Layers = 6
    """Layers that read the source."""
    decoder_layers: Layers = 6
    """Layers that write the target."""
    feed_forward: Width = 2048
    """d_ff of the paper: inner size of the feed-forward layers."""
    dropout: Probability = 0.1
    """Share of zeros after embeddings and after each sublayer (5.4)."""
    attention_dropout: Probability = 0.0
    """Share of zeros among the weights of attention."""
    activation_dropout: Probability = 0.0
    """Share of zeros inside the feed-forward layers."""
    positions: Positions = "sinusoidal"
    """How the order of words is told."""
    max_positions: Width = 1024
    """Rows of the table of `learned` positions: a longer sentence is refused. Others grow as needed."""
    relative_distance: Width = 16
    """Clipping distance k of `relative` positions (Shaw et al., 2018)."""
    norm_place: NormPlace = "post"
    """Norm after each residual sum, as in the paper, or before each sublayer."""
    norm: NormKind = "layer"
    """LayerNorm or RMSNorm."""
    activation: Activation = "relu"
    """Of the feed-forward layers."""
    tying: Tying = "all"
    """Which weights are one: both embeddings and the output layer, the target's embedding and that layer, or none."""
    output_bias: bool = False
    """A bias for each symbol of the output."""

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
    """Which of the systems."""
    cell: Cell = "gru"
    """What carries the state from step to step."""
    attention: RnnAttention = "additive"
    """None, additive (Bahdanau et al., 2015) or dot (Luong et al., 2015)."""
    width: Width = 256
    """Size of the embeddings."""
    hidden: Width = 512
    """Size of the decoder's state; each direction of a bidirectional encoder has half of it."""
    encoder_layers: Layers = 1
    """Layers that read the source."""
    decoder_layers: Layers = 1
    """Layers that write the target."""
    bidirectional: bool = True
    """Read the source from both ends."""
    dropout: Probability = 0.2
    """Share of zeros after embeddings, after the encoder, between layers and before the output."""
    tying: Tying = "all"
    """Which weights are one: both embeddings and the output layer, the target's embedding and that layer, or none."""
    output_bias: bool = True
    """A bias for each symbol of the output."""

    @model_validator(mode="after")
    def check_hidden(self) -> Self:
        if self.bidirectional and self.hidden % 2:
            raise ValueError(f"a bidirectional encoder halves `hidden`, so it must be even, not {self.hidden}")
        return self


ModelConfig = Annotated[TransformerConfig | RnnConfig, Field(discriminator="architecture")]
