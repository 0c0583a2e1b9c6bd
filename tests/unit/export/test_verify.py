"""The proof bites: whatever a copy does otherwise is found and told, and what cannot be told apart is let pass."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from malmoi.config.model import TransformerConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Ids
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import CheckpointError
from malmoi.export.verify import (
    TOLERANCE,
    Bound,
    Sentence,
    greedy,
    made_up_sentences,
    measure,
    prove,
    prove_text,
    without_end,
)
from malmoi.models.build import build_model
from malmoi.text.ids import END_ID
from malmoi.text.tokenizer import Tokenizers, train_tokenizers

NUM_IDS = 12
FORBIDDEN = (0,)
BOUND = Bound(equal_share=0.9, mean_difference=0.1)


def build_scorer(seed: int = 1) -> ModelScorer:
    config = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8, tying="none")
    network = build_model(config, NUM_IDS, NUM_IDS, seed)
    with torch.no_grad():
        # Outputs of start values are all alike.
        network.output_weight_VD.mul_(3.0)
    return ModelScorer(network.eval())


class Twin:
    """A copy that asks the model itself, and then changes its answers."""

    def __init__(
        self,
        scorer: ModelScorer,
        tokenizers: Tokenizers | None = None,
        change_scores: Callable[[list[tuple[float, ...]]], None] = lambda scores: None,
        change_outputs: Callable[[list[Ids]], None] = lambda outputs: None,
    ) -> None:
        self.scorer = scorer
        self.tokenizers = tokenizers
        self.change_scores, self.change_outputs = change_scores, change_outputs

    def score(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[tuple[float, ...]]:
        scores = [one.log_probs for one in force(self.scorer, sources, targets)]
        self.change_scores(scores)
        return scores

    def search(self, sources: Sequence[Ids], most: int) -> list[Ids]:
        sentences = [Sentence("", source, ()) for source in sources]
        outputs = [without_end(output) for output in greedy(self.scorer, sentences, FORBIDDEN)]
        self.change_outputs(outputs)
        return outputs

    def encode(self, text: str) -> Ids:
        assert self.tokenizers is not None
        return tuple(self.tokenizers.encode_source(text))

    def decode(self, ids: Ids) -> str:
        assert self.tokenizers is not None
        return self.tokenizers.target.decode(ids)


SENTENCES = made_up_sentences(NUM_IDS, NUM_IDS, longest=12)


def test_the_model_itself_is_a_true_copy() -> None:
    scorer = build_scorer()
    proof = prove(scorer, Twin(scorer), SENTENCES, FORBIDDEN, str)
    assert proof.num_sentences == len(SENTENCES)
    assert proof.num_tokens == sum(len(one.target) for one in SENTENCES)
    assert proof.largest_difference < 1e-6
    assert (proof.num_equal_outputs, proof.num_ties) == (len(SENTENCES) - 1, 0)


@pytest.mark.parametrize("amount", [2 * TOLERANCE, -2 * TOLERANCE, float("nan"), float("-inf")])
def test_one_score_that_differs_is_found(amount: float) -> None:
    def change(scores: list[tuple[float, ...]]) -> None:
        scores[0] = (*scores[0][:2], scores[0][2] + amount, *scores[0][3:])

    scorer = build_scorer()
    with pytest.raises(CheckpointError, match=r"the made-up sentence 1 .* token 3 of its target .* in the copy"):
        prove(scorer, Twin(scorer, change_scores=change), SENTENCES, FORBIDDEN, str)


def test_a_score_within_the_tolerance_passes() -> None:
    def change(scores: list[tuple[float, ...]]) -> None:
        scores[4] = (scores[4][0] + 0.5 * TOLERANCE, *scores[4][1:])

    scorer = build_scorer()
    proof = prove(scorer, Twin(scorer, change_scores=change), SENTENCES, FORBIDDEN, str)
    assert proof.largest_difference == pytest.approx(0.5 * TOLERANCE, rel=0.05)


def test_a_missing_token_is_found() -> None:
    def change(scores: list[tuple[float, ...]]) -> None:
        scores[4] = scores[4][:-1]

    scorer = build_scorer()
    with pytest.raises(CheckpointError, match="the copy scores"):
        prove(scorer, Twin(scorer, change_scores=change), SENTENCES, FORBIDDEN, str)


@pytest.mark.parametrize("broken", ["another token", "one token less", "one token more"])
def test_another_output_is_found(broken: str) -> None:
    def change(outputs: list[Ids]) -> None:
        first = next(number for number, output in enumerate(outputs) if len(output) > 1)
        output = outputs[first]
        last = 2 if output[-1] != 2 else 3
        outputs[first] = {
            "another token": (*output[:-1], last),
            "one token less": output[:-1],
            "one token more": (*output[:5], 2 if output[5:6] != (2,) else 3),
        }[broken]

    scorer = build_scorer()
    with pytest.raises(CheckpointError, match=r"token \d+ of the greedy output is .* in the copy"):
        prove(scorer, Twin(scorer, change_outputs=change), SENTENCES, FORBIDDEN, str)


def test_a_tie_may_go_either_way() -> None:
    """Two ids with the same output weights are equally likely, and the first of them is taken."""
    scorer = build_scorer()
    with torch.no_grad():
        weight_VD = scorer.network.output_weight_VD
        weight_VD[3] = weight_VD[2] = 3.0 * weight_VD.abs().max() * torch.sign(weight_VD[2])

    def change(outputs: list[Ids]) -> None:
        number = next(number for number, output in enumerate(outputs) if {2, 3} & set(output))
        place = next(place for place, token in enumerate(outputs[number]) if token in (2, 3))
        outputs[number] = (*outputs[number][:place], 5 - outputs[number][place])

    proof = prove(scorer, Twin(scorer, change_outputs=change), SENTENCES, FORBIDDEN, str)
    assert proof.num_ties == 1


def test_sentences_reach_from_nothing_to_the_longest_and_hold_every_id() -> None:
    sentences = made_up_sentences(30, 40, longest=24)
    assert {len(one.source) for one in sentences} >= {1, 2, 3, 24}
    assert {len(one.target) for one in sentences} >= {1, 2, 3, 24}
    assert {index for one in sentences for index in one.source} == set(range(30))
    assert {index for one in sentences for index in one.target} == set(range(40))
    assert all(one.source[-1] == one.target[-1] == END_ID for one in sentences)
    assert not any(END_ID in (*one.source[:-1], *one.target[:-1]) for one in sentences)


@pytest.mark.parametrize("longest", [1, 2, 3, 9])
def test_no_sentence_is_longer_than_asked_for(longest: int) -> None:
    sentences = made_up_sentences(30, 40, longest)
    assert max(max(len(one.source), len(one.target)) for one in sentences) == longest


def test_tokenisers_that_differ_are_found() -> None:
    lines = ["one two three", "two four"]
    mine = train_tokenizers(TextConfig(tokenizer="words"), lines, lines, seed=1)
    other = train_tokenizers(TextConfig(tokenizer="words"), lines, ["four five"], seed=1)
    scorer = build_scorer()
    prove_text(mine, Twin(scorer, mine), lines, [(2, 3, END_ID)])
    with pytest.raises(CheckpointError, match="the source 'one two three' has the ids"):
        prove_text(mine, Twin(scorer, other), lines, [])
    with pytest.raises(CheckpointError, match="the output with the ids"):
        prove_text(mine, Twin(scorer, replace(other, source=mine.source)), lines, [(2, 3, END_ID)])


def test_fewer_bits_are_measured_and_held_to_a_bound() -> None:
    scorer = build_scorer()
    sources = [one.source for one in SENTENCES]

    def shift(scores: list[tuple[float, ...]]) -> None:
        scores[:] = [tuple(value - 0.05 for value in row) for row in scores]

    def spoil(scores: list[tuple[float, ...]]) -> None:
        scores[:] = [tuple(value + 0.2 for value in row) for row in scores]

    quality = measure(scorer, Twin(scorer, change_scores=shift), sources, FORBIDDEN, BOUND)
    assert quality.equal_share == 1.0
    assert quality.mean_difference == pytest.approx(0.05, rel=1e-3)
    assert quality.num_sentences == len(SENTENCES) - 1
    with pytest.raises(CheckpointError, match=r"moves by 0\.2000 on average"):
        measure(scorer, Twin(scorer, change_scores=spoil), sources, FORBIDDEN, BOUND)
