"""Networks as scorers: one of them, or an ensemble.

In: networks that `models/build.py` made, in evaluation mode, on any device. Out: log-probabilities over V as arrays,
float32 at least, or each row's best candidates, chosen where the network computes.

Letters: B sentences, S source places, T target tokens, R live rows or places of targets, D width, V vocabulary.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from malmoi.decoding.interface import NOT_NUMBERS, Best, DecoderState, Flags, Integers, Memory, Numbers, Scorer
from malmoi.decoding.targets import target_log_probs
from malmoi.decoding.topk import best_of_rows
from malmoi.errors import CheckpointError, ConfigError
from malmoi.models.interface import DecoderState as NetworkRows
from malmoi.models.interface import Memory as NetworkSentences
from malmoi.models.interface import Seq2Seq
from malmoi.text.ids import END_ID

LOGITS_AT_ONCE = 2**22
"""Most numbers in a table of places times vocabulary, where whole targets are scored."""


class TensorScorer(ABC):
    """What networks and ensembles of them have in common: tensors within, arrays without."""

    vocabulary_size: int
    end_id: int
    most_candidates = sys.maxsize

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where log-probabilities are made."""

    @abstractmethod
    def step_tensor(self, token_R: Integers, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """As `step`, in inference mode, with `log_probs_RV` where they were made."""

    @torch.inference_mode()
    def step(self, token_R: Integers, state: DecoderState) -> tuple[Numbers, DecoderState]:
        """See `Scorer`."""
        log_probs_RV, state = self.step_tensor(token_R, state)
        return log_probs_RV.cpu().numpy(), state

    @torch.inference_mode()
    def step_best(
        self,
        token_R: Integers,
        state: DecoderState,
        num_candidates: int,
        forbidden_ids: Integers,
        no_end_R: Flags | None,
    ) -> tuple[Best, DecoderState]:
        """See `BestScorer`."""
        log_probs_RV, state = self.step_tensor(token_R, state)
        if no_end_R is not None:
            log_probs_RV[torch.from_numpy(no_end_R).to(self.device), self.end_id] = -torch.inf
        end_R = log_probs_RV[:, self.end_id].cpu().numpy().astype(np.float64)
        log_probs_RV.index_fill_(1, torch.from_numpy(forbidden_ids).to(self.device), -torch.inf)
        values_RC, ids_RC = best_of_rows(log_probs_RV, num_candidates)
        best = Best(values_RC.cpu().numpy().astype(np.float64), ids_RC.cpu().numpy(), end_R)
        if np.isnan(best.log_probs_RC).any():
            raise CheckpointError(NOT_NUMBERS)
        return best, state


class NetworkMemory(Memory):
    """What a network keeps of its sources."""

    def __init__(self, sentences: NetworkSentences) -> None:
        self.sentences = sentences

    @property
    def num_sentences(self) -> int:
        return self.sentences.num_sentences


class NetworkState(DecoderState):
    """The rows of a network."""

    def __init__(self, rows: NetworkRows, device: torch.device) -> None:
        self.rows = rows
        self.device = device
        self.attention_RS = None if rows.attention_RS is None else rows.attention_RS.cpu().numpy()

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @torch.inference_mode()
    def select(self, rows_R: Integers) -> Self:
        return type(self)(self.rows.select(torch.from_numpy(rows_R).to(self.device)), self.device)

    @torch.inference_mode()
    def append(self, other: DecoderState) -> Self:
        assert isinstance(other, NetworkState)
        return type(self)(self.rows.append(other.rows), self.device)


class ModelScorer(TensorScorer):
    """A network as a `Scorer` and a `BestScorer`."""

    def __init__(self, network: Seq2Seq, end_id: int = END_ID) -> None:
        self.network = network
        self.end_id = end_id
        self.vocabulary_size = network.target_vocabulary_size
        self.start_id = network.start_id
        self.source_padding_id = network.source_vocabulary_size
        self.max_steps = network.max_positions

    @property
    def device(self) -> torch.device:
        """Where the network is, which may be moved."""
        return self.network.output_weight_VD.device

    @torch.inference_mode()
    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> NetworkMemory:
        """See `Scorer`."""
        assert not self.network.training, "a network in training mode drops units at random: call eval() first"
        device = self.device
        source = (torch.from_numpy(source_BS).to(device), torch.from_numpy(source_lengths_B).to(device))
        return NetworkMemory(self.network.encode(*source))

    @torch.inference_mode()
    def start(self, memory: Memory, keep_attention: bool = False) -> NetworkState:
        """See `Scorer`."""
        assert isinstance(memory, NetworkMemory)
        return NetworkState(self.network.start(memory.sentences, keep_attention), self.device)

    def step_tensor(self, token_R: Integers, state: DecoderState) -> tuple[Tensor, NetworkState]:
        assert isinstance(state, NetworkState)
        hidden_RD, rows = self.network.step(torch.from_numpy(token_R).to(state.device), state.rows)
        return self.log_probs(hidden_RD), NetworkState(rows, state.device)

    def log_probs(self, hidden_RD: Tensor) -> Tensor:
        """Log-probabilities `(R, V)` of the token after each hidden state."""
        logits_RV = torch.nn.functional.linear(hidden_RD, self.network.output_weight_VD, self.network.output_bias_V)
        if logits_RV.dtype in (torch.bfloat16, torch.float16):
            logits_RV = logits_RV.float()
        return torch.log_softmax(logits_RV, dim=-1)

    @torch.inference_mode()
    def score_targets(
        self, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
    ) -> Numbers:
        """See `WholeTargets`: one forward pass, then the vocabulary for some of the real places at a time."""
        assert not self.network.training, "a network in training mode drops units at random: call eval() first"
        given = (source_BS, source_lengths_B, target_BT, target_lengths_B)
        source, source_lengths, target, target_lengths = (torch.from_numpy(one).to(self.device) for one in given)
        is_real_BT = torch.arange(target.size(1), device=self.device) < target_lengths[:, None]
        start_B1 = torch.full_like(target_lengths, self.start_id)[:, None]
        input_BT = torch.cat([start_B1, target], 1)[:, :-1]
        hidden_RD = self.network(source, source_lengths, input_BT)[is_real_BT]
        token_R1 = target[is_real_BT][:, None]
        num_rows = max(LOGITS_AT_ONCE // self.vocabulary_size, 1)
        chunks = zip(hidden_RD.split(num_rows), token_R1.split(num_rows), strict=True)
        found_R = torch.cat([self.log_probs(hidden).gather(1, token)[:, 0] for hidden, token in chunks])
        return found_R.new_zeros(target.shape).masked_scatter(is_real_BT, found_R).cpu().numpy()


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
        self.attention_RS = np.mean(attention, axis=0) if complete else None

    @property
    def num_rows(self) -> int:
        return self.members[0].num_rows

    def select(self, rows_R: Integers) -> Self:
        return type(self)([member.select(rows_R) for member in self.members])

    def append(self, other: DecoderState) -> Self:
        assert isinstance(other, EnsembleState)
        return type(self)([mine.append(theirs) for mine, theirs in zip(self.members, other.members, strict=True)])


class EnsembleScorer(TensorScorer):
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
            if device_of(scorer) != device_of(first):
                raise ConfigError(
                    f"model {number} of the ensemble is on {device_of(scorer)}, model 1 on {device_of(first)}"
                )
        self.scorers = tuple(scorers)
        self.vocabulary_size = first.vocabulary_size
        self.start_id = first.start_id
        self.end_id = first.end_id
        self.source_padding_id = first.source_padding_id
        limits = [scorer.max_steps for scorer in scorers if scorer.max_steps is not None]
        self.max_steps = min(limits, default=None)

    @property
    def device(self) -> torch.device:
        """Where the mean is made."""
        return device_of(self.scorers[0])

    @property
    def allows_threads(self) -> bool:
        """See `malmoi.engine.choose.allows_threads`: where all members do."""
        return all(getattr(scorer, "allows_threads", False) for scorer in self.scorers)

    def encode(self, source_BS: Integers, source_lengths_B: Integers) -> EnsembleMemory:
        """See `Scorer`."""
        return EnsembleMemory([scorer.encode(source_BS, source_lengths_B) for scorer in self.scorers])

    def start(self, memory: Memory, keep_attention: bool = False) -> EnsembleState:
        """See `Scorer`."""
        assert isinstance(memory, EnsembleMemory)
        members = zip(self.scorers, memory.members, strict=True)
        return EnsembleState([scorer.start(member, keep_attention) for scorer, member in members])

    def step_tensor(self, token_R: Integers, state: DecoderState) -> tuple[Tensor, EnsembleState]:
        assert isinstance(state, EnsembleState)
        steps = [step_of(scorer, token_R, member) for scorer, member in zip(self.scorers, state.members, strict=True)]
        mean_RV = mean_of_probabilities([log_probs_RV for log_probs_RV, _ in steps])
        return mean_RV, EnsembleState([member for _, member in steps])

    def score_targets(
        self, source_BS: Integers, source_lengths_B: Integers, target_BT: Integers, target_lengths_B: Integers
    ) -> Numbers:
        """See `WholeTargets`; a member that knows steps alone goes step by step."""
        batch = (source_BS, source_lengths_B, target_BT, target_lengths_B)
        found = [torch.from_numpy(target_log_probs(scorer, *batch)) for scorer in self.scorers]
        return mean_of_probabilities(found).numpy()


def device_of(scorer: Scorer) -> torch.device:
    """Where a scorer leaves its log-probabilities; one that knows no tensors leaves them to the processor."""
    return scorer.device if isinstance(scorer, TensorScorer) else torch.device("cpu")


def step_of(scorer: Scorer, token_R: Integers, state: DecoderState) -> tuple[Tensor, DecoderState]:
    """A step of a member, whose log-probabilities stay where they are."""
    if isinstance(scorer, TensorScorer):
        return scorer.step_tensor(token_R, state)
    log_probs_RV, state = scorer.step(token_R, state)
    return torch.from_numpy(log_probs_RV), state


def mean_of_probabilities(log_probs: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of what the members give."""
    mean = log_probs[0]
    for others in log_probs[1:]:
        mean = torch.logaddexp(mean, others)
    return mean - math.log(len(log_probs)) if len(log_probs) > 1 else mean
