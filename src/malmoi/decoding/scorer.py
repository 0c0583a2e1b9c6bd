"""Networks as scorers: one of them, or an ensemble.

In: networks that `models/build.py` made, in evaluation mode. Out: log-probabilities over V, float32 at least.

Letters: B sentences, S source places, R live rows, D width, V vocabulary, M members of an ensemble.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from malmoi.decoding.interface import Scorer
from malmoi.errors import ConfigError
from malmoi.models.interface import DecoderState, Memory, Seq2Seq

END_ID = 1
"""`</s>` in every tokeniser of ours."""


class ModelScorer:
    """A network as a `Scorer`."""

    def __init__(self, network: Seq2Seq, end_id: int = END_ID) -> None:
        self.network = network
        self.end_id = end_id
        self.vocabulary_size = network.target_vocabulary_size
        self.start_id = network.start_id
        self.source_padding_id = network.source_vocabulary_size
        self.max_steps = network.max_positions

    @property
    def device(self) -> torch.device:
        return self.network.output_weight_VD.device

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        assert not self.network.training, "a network in training mode drops units at random: call eval() first"
        return self.network.encode(source_BS, source_lengths_B)

    def start(self, memory: Memory, keep_attention: bool = False) -> DecoderState:
        return self.network.start(memory, keep_attention)

    def step(self, token_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden_RD, state = self.network.step(token_R, state)
        logits_RV = torch.nn.functional.linear(hidden_RD, self.network.output_weight_VD, self.network.output_bias_V)
        if logits_RV.dtype in (torch.bfloat16, torch.float16):
            logits_RV = logits_RV.float()
        return torch.log_softmax(logits_RV, dim=-1), state


class EnsembleMemory(Memory):
    def __init__(self, members: Sequence[Memory]) -> None:
        self.members = tuple(members)

    @property
    def num_sentences(self) -> int:
        return self.members[0].num_sentences


class EnsembleState(DecoderState):
    """The states of the members; attention is their mean, None as soon as one has none."""

    def __init__(self, members: Sequence[DecoderState]) -> None:
        self.members = tuple(members)
        attention = [member.attention_RS for member in self.members if member.attention_RS is not None]
        complete = len(attention) == len(self.members)
        self.attention_RS = torch.stack(attention).mean(0) if complete else None

    @property
    def num_rows(self) -> int:
        return self.members[0].num_rows

    def select(self, rows_R: Tensor) -> Self:
        return type(self)([member.select(rows_R) for member in self.members])

    def append(self, other: DecoderState) -> Self:
        assert isinstance(other, EnsembleState)
        return type(self)([mine.append(theirs) for mine, theirs in zip(self.members, other.members, strict=True)])


class EnsembleScorer:
    """Several scorers as one: the mean of their probabilities, token by token."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if not scorers:
            raise ConfigError("an ensemble needs at least one model")
        first = scorers[0]
        for number, scorer in enumerate(scorers[1:], start=2):
            mine = (first.vocabulary_size, first.start_id, first.end_id, first.source_padding_id)
            theirs = (scorer.vocabulary_size, scorer.start_id, scorer.end_id, scorer.source_padding_id)
            if mine != theirs:
                raise ConfigError(
                    f"model {number} of the ensemble has {scorer.source_padding_id} source and "
                    f"{scorer.vocabulary_size} target ids, model 1 has {first.source_padding_id} and "
                    f"{first.vocabulary_size}: an ensemble needs models with the same vocabularies"
                )
            if scorer.device != first.device:
                raise ConfigError(f"model {number} of the ensemble is on {scorer.device}, model 1 on {first.device}")
        self.scorers = tuple(scorers)
        self.vocabulary_size = first.vocabulary_size
        self.start_id = first.start_id
        self.end_id = first.end_id
        self.source_padding_id = first.source_padding_id
        limits = [scorer.max_steps for scorer in scorers if scorer.max_steps is not None]
        self.max_steps = min(limits, default=None)

    @property
    def device(self) -> torch.device:
        return self.scorers[0].device

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        return EnsembleMemory([scorer.encode(source_BS, source_lengths_B) for scorer in self.scorers])

    def start(self, memory: Memory, keep_attention: bool = False) -> DecoderState:
        assert isinstance(memory, EnsembleMemory)
        members = zip(self.scorers, memory.members, strict=True)
        return EnsembleState([scorer.start(member, keep_attention) for scorer, member in members])

    def step(self, token_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        assert isinstance(state, EnsembleState)
        steps = [scorer.step(token_R, member) for scorer, member in zip(self.scorers, state.members, strict=True)]
        mean_RV = steps[0][0]
        for log_probs_RV, _ in steps[1:]:
            mean_RV = torch.logaddexp(mean_RV, log_probs_RV)
        if len(steps) > 1:
            mean_RV = mean_RV - torch.log(torch.tensor(float(len(steps)), dtype=mean_RV.dtype, device=mean_RV.device))
        return mean_RV, EnsembleState([member for _, member in steps])
