"""Networks as scorers: one of them, or an ensemble.

In: networks that `models/build.py` made, in evaluation mode. Out: log-probabilities over V, float32 at least.

Letters: B sentences, S source places, T target tokens, R live rows or places of targets, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from malmoi.decoding.interface import Scorer
from malmoi.decoding.targets import target_log_probs
from malmoi.errors import ConfigError
from malmoi.models.interface import DecoderState, Memory, Seq2Seq

END_ID = 1
"""`</s>` in every tokeniser of ours."""

LOGITS_AT_ONCE = 2**22
"""Most numbers in a table of places times vocabulary, where whole targets are scored."""


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
        return self.log_probs(hidden_RD), state

    def log_probs(self, hidden_RD: Tensor) -> Tensor:
        """Log-probabilities `(R, V)` of the token after each hidden state."""
        logits_RV = torch.nn.functional.linear(hidden_RD, self.network.output_weight_VD, self.network.output_bias_V)
        if logits_RV.dtype in (torch.bfloat16, torch.float16):
            logits_RV = logits_RV.float()
        return torch.log_softmax(logits_RV, dim=-1)

    @torch.no_grad()
    def score_targets(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, target_lengths_B: Tensor
    ) -> Tensor:
        """See `WholeTargets`: one forward pass, then the vocabulary for some of the real places at a time."""
        assert not self.network.training, "a network in training mode drops units at random: call eval() first"
        is_real_BT = torch.arange(target_BT.size(1), device=target_BT.device) < target_lengths_B[:, None]
        start_B1 = torch.full_like(target_lengths_B, self.start_id)[:, None]
        input_BT = torch.cat([start_B1, target_BT], 1)[:, :-1]
        hidden_RD = self.network(source_BS, source_lengths_B, input_BT)[is_real_BT]
        token_R1 = target_BT[is_real_BT][:, None]
        num_rows = max(LOGITS_AT_ONCE // self.vocabulary_size, 1)
        chunks = zip(hidden_RD.split(num_rows), token_R1.split(num_rows), strict=True)
        found_R = torch.cat([self.log_probs(hidden).gather(1, token)[:, 0] for hidden, token in chunks])
        return found_R.new_zeros(target_BT.shape).masked_scatter(is_real_BT, found_R)


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
        mean_RV = mean_of_probabilities([log_probs_RV for log_probs_RV, _ in steps])
        return mean_RV, EnsembleState([member for _, member in steps])

    def score_targets(
        self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor, target_lengths_B: Tensor
    ) -> Tensor:
        """See `WholeTargets`; a member that knows steps alone goes step by step."""
        batch = (source_BS, source_lengths_B, target_BT, target_lengths_B)
        return mean_of_probabilities([target_log_probs(scorer, *batch) for scorer in self.scorers])


def mean_of_probabilities(log_probs: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of what the members give."""
    mean = log_probs[0]
    for others in log_probs[1:]:
        mean = torch.logaddexp(mean, others)
    return mean - math.log(len(log_probs)) if len(log_probs) > 1 else mean
