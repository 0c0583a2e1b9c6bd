"""Who is explained: one network with its tokenisers and settings, however the user names it.

In: a path, a loaded model or a translator. Out: a `Subject`, and what a search for one text needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from malmoi.card import Card
from malmoi.checkpoint import Model, load_model
from malmoi.config.decoding import DecodingConfig, Precision
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.decoding.interface import DecoderState, Ids, Integers, Numbers
from malmoi.decoding.scorer import ModelScorer, NetworkMemory, NetworkState
from malmoi.engine.choose import fastest_scorer
from malmoi.errors import ConfigError, DataError
from malmoi.models.interface import Seq2Seq
from malmoi.models.rnn import Rnn
from malmoi.models.transformer import Transformer
from malmoi.text.ids import END_ID
from malmoi.text.lines import normalize, one_line
from malmoi.text.tokenizer import Tokenizers
from malmoi.translate import Prepared, Translator

Check = Callable[[], None]
"""Is called before each piece of work, and raises where nobody waits for the rest any more."""


class WatchedScorer(ModelScorer):
    """A network that is asked no more once nobody waits."""

    def __init__(self, network: Seq2Seq, check: Check) -> None:
        super().__init__(network)
        self.check = check

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> NetworkMemory:
        self.check()
        return super().encode(source_BS, source_lengths_B)

    def step_tensor(self, token_R: Integers, state: DecoderState) -> tuple[Tensor, NetworkState]:
        self.check()
        return super().step_tensor(token_R, state)

    def score_targets(
        self, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
    ) -> Numbers:
        self.check()
        return super().score_targets(source_BS, source_lengths_B, target_BT, target_lengths_B)


@dataclass(frozen=True)
class Subject:
    """A network and what belongs to it; `sentences` are those stored with the model: source and output.

    `translator` searches with the network itself; `precision` is what the user's own search computes in.
    """

    network: Transformer | Rnn
    scorer: ModelScorer
    tokenizers: Tokenizers
    translator: Translator
    sentences: tuple[tuple[str, str], ...] = ()
    precision: Precision = "fp32"

    @property
    def config(self) -> TransformerConfig | RnnConfig:
        return self.network.config

    def searcher(self, precision: Precision) -> Translator:
        """What searches as the user does; `ConfigError` where int8 is asked for and cannot be."""
        if precision == "fp32":
            return self.translator
        scorer = fastest_scorer(self.network, precision)
        known = self.translator
        return Translator(scorer, self.tokenizers, known.decoding, known.max_source_tokens, tell=False)

    def prepare(self, text: str) -> Prepared:
        """A text with its ids; `DataError` where there is nothing that the model could be asked."""
        plain = one_line(normalize(text))
        ids, left_out = self.tokenizers.encode_source(plain), self.tokenizers.left_out([plain])[0]
        prepared = self.translator.prepare(plain, ids, left_out, "", (), 1)
        if prepared.request is None:
            known = prepared.maybe_known
            reasons = known.notes if known is not None and known.notes else ("the text is blank",)
            raise DataError(f"there is nothing to explain: {reasons[0]}")
        return prepared

    def maybe_pair(self, source: str, target: str) -> tuple[Ids, Ids] | None:
        """The ids of a stored pair with their end symbols; None where the model cannot take them."""
        source_ids = (*self.tokenizers.encode_source(one_line(normalize(source))), END_ID)
        target_ids = (*self.tokenizers.encode_target(one_line(normalize(target))), END_ID)
        most = self.network.max_positions
        is_short = most is None or max(len(source_ids), len(target_ids)) <= most
        return (source_ids, target_ids) if len(source_ids) > 1 and len(target_ids) > 1 and is_short else None


def open_subject(model: str | Path | Model | Translator, check: Check = lambda: None) -> Subject:
    """`CheckpointError` for what cannot be read, `ConfigError` for an ensemble and for weights below fp32."""
    if isinstance(model, Translator):
        if not isinstance(model.scorer, ModelScorer):
            raise ConfigError("one model is explained at a time: an ensemble has no attention of its own")
        scorer = WatchedScorer(model.scorer.network, check)
        return make_subject(scorer, model.tokenizers, model.decoding, (), model.max_source_tokens)
    loaded = model if isinstance(model, Model) else load_model(Path(model))
    card = Card.model_validate(loaded.card)
    stored = tuple((one.source, one.text) for one in card.sentences)
    scorer = WatchedScorer(loaded.network, check)
    return make_subject(scorer, loaded.tokenizers, loaded.config.decoding, stored, card.max_source_tokens)


def make_subject(
    scorer: ModelScorer,
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    sentences: tuple[tuple[str, str], ...],
    max_source_tokens: int | None,
) -> Subject:
    network = scorer.network
    if network.output_weight_VD.dtype not in (torch.float32, torch.float64):
        raise ConfigError("a replay is made in fp32: load the model in that type")
    assert isinstance(network, Transformer | Rnn)
    translator = Translator(scorer, tokenizers, decoding, max_source_tokens, tell=False)
    return Subject(network, scorer, tokenizers, translator, sentences, decoding.precision)


def describe(subject: Subject) -> str:
    """The model in one line."""
    config = subject.config
    if isinstance(config, RnnConfig):
        return (
            f"{config.cell.upper()} {config.encoder_layers}+{config.decoder_layers}, attention {config.attention}, "
            f"width {config.width}, hidden {config.hidden}"
        )
    return (
        f"Transformer {config.encoder_layers}+{config.decoder_layers}, width {config.width}, {config.heads} heads, "
        f"feed-forward {config.feed_forward}, {config.positions} positions, {config.norm_place}-norm"
    )
