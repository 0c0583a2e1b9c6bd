"""The proof that an exported copy is the model: both are asked the same, and must answer the same.

In: the model as a `Scorer`, the copy, sentences. Out: what was found, as numbers; `CheckpointError` with the sentence
and the numbers where a copy is not true.

Forced scores must agree token by token, greedy outputs token by token unless the two tokens are as good as equal. A
copy in fewer bits is another function: it is measured on greedy outputs of the model, and held to a bound.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Ids, Request, Scorer
from malmoi.decoding.search import search
from malmoi.errors import CheckpointError
from malmoi.text.ids import END_ID
from malmoi.text.tokenizer import Tokenizers

TOLERANCE = 1e-4
"""Most by which the natural log-probability of a token may differ."""
MOST_OUTPUT = 128
"""Greedy outputs are compared up to so many tokens."""
LENGTHS = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34)
"""Tokens of the made-up sentences, beside the longest."""
HARD_TEXTS = (
    "",
    "  two  spaces ",
    "\u2581 is not a space, nor is \u2585",
    "\x1a0 \x1a1 \x1a",
    "e\u0301 \u1112\u1161\u11ab \ud55c",
    "<unk> </s> <s> <0x0A>",
    "tab\there, no\u00a0break, \u3000",
    "line\nbreak\r\0",
    "\U0001f600 \ud800",
)
"""Sources on which tokenisers are wont to differ."""


class Bound(NamedTuple):
    """What a copy in fewer bits must keep: the share of greedy outputs, and log-probabilities within a mean."""

    equal_share: float
    mean_difference: float


# What was measured stands in docs/export.md. Made-up sentences are nothing that a model was trained for: on them it is
# unsure, and small changes move much.
SIXTEEN_BITS, EIGHT_BITS = Bound(0.6, 0.02), Bound(0.2, 0.2)
SIXTEEN_BITS_MADE_UP, EIGHT_BITS_MADE_UP = Bound(0.3, 0.1), Bound(0.0, 1.0)


class Copy(Protocol):
    """What an exported folder must be able to do, in its own library."""

    def score(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[tuple[float, ...]]:
        """Natural log-probabilities of the tokens of each target; sources and targets end with `</s>`."""
        ...

    def search(self, sources: Sequence[Ids], most: int) -> list[Ids]:
        """Greedy outputs of at most `most` tokens, without `</s>`, forbidden ids left out."""
        ...

    def encode(self, text: str) -> Ids:
        """The ids of a source, by the tokeniser that lies in the folder, without `</s>`."""
        ...

    def decode(self, ids: Ids) -> str:
        """The text of an output, by the tokeniser that lies in the folder."""
        ...


Show = Callable[[int], str]
"""How messages call an id of the target."""


@dataclass(frozen=True)
class Sentence:
    """A source to translate and a target to score, both with `</s>`; `name` is how messages call it."""

    name: str
    source: Ids
    target: Ids
    text: str | None = None
    """What the source was spelt from, if it was."""


@dataclass(frozen=True)
class Proof:
    """How closely a copy in float32 agrees."""

    num_sentences: int
    num_tokens: int
    largest_difference: float
    tolerance: float
    num_equal_outputs: int
    num_ties: int
    """Outputs that part where two tokens are within the tolerance of each other."""


@dataclass(frozen=True)
class Quality:
    """How far a copy in fewer bits is from the model, on the model's own greedy outputs."""

    num_sentences: int
    equal_share: float
    """Of sentences whose greedy outputs are the same."""
    mean_difference: float
    """Mean of the absolute differences of the tokens' log-probabilities."""
    smallest_equal_share: float
    largest_mean_difference: float


def as_json(result: Proof | Quality) -> dict[str, Any]:
    return asdict(result)


def made_up_sentences(source_size: int, target_size: int, longest: int, seed: int = 1) -> list[Sentence]:
    """Sentences of ids drawn by chance, from none to `longest` tokens on either side, `</s>` included.

    All ids come before one comes again, so that few sentences see as much of a vocabulary as they can.
    """
    generator = np.random.default_rng(seed)
    source_ids, target_ids = draw_ids(source_size, generator), draw_ids(target_size, generator)
    lengths = [length for length in LENGTHS if length < longest]
    most = longest - 1
    pairs = [*zip(lengths, lengths[::-1], strict=True), (most, min(3, most)), (min(2, most), most), (most, most)]
    return [
        Sentence(
            f"the made-up sentence {number} ({one} source and {other} target tokens)",
            (*(next(source_ids) for _ in range(one)), END_ID),
            (*(next(target_ids) for _ in range(other)), END_ID),
        )
        for number, (one, other) in enumerate(pairs, start=1)
    ]


def draw_ids(size: int, generator: np.random.Generator) -> Iterator[int]:
    """Ids without `</s>`, each once in each round."""
    while True:
        yield from (index for index in generator.permutation(size).tolist() if index != END_ID)


def prove(scorer: Scorer, copy: Copy, sentences: Sequence[Sentence], forbidden_ids: Sequence[int], show: Show) -> Proof:
    """Hold a copy in float32 against the model; `CheckpointError` at the first difference."""
    sources, targets = [one.source for one in sentences], [one.target for one in sentences]
    ours = [one.log_probs for one in force(scorer, sources, targets)]
    theirs = copy.score(sources, targets)
    largest = 0.0
    for sentence, mine, other in zip(sentences, ours, theirs, strict=True):
        if len(mine) != len(other):
            raise CheckpointError(f"{sentence.name}: the copy scores {len(other)} tokens instead of {len(mine)}")
        for place, (log_prob, copied) in enumerate(zip(mine, other, strict=True)):
            # Asked this way, so that a NaN is a difference.
            if not abs(log_prob - copied) <= TOLERANCE:
                raise CheckpointError(
                    f"{sentence.name}: token {place + 1} of its target ({show(sentence.target[place])}) has the "
                    f"log-probability {log_prob:.6f}, but {copied:.6f} in the copy"
                )
            largest = max(largest, abs(log_prob - copied))
    num_equal, num_ties = compare_outputs(scorer, copy, sentences, forbidden_ids, show)
    return Proof(len(sentences), sum(map(len, ours)), largest, TOLERANCE, num_equal, num_ties)


def compare_outputs(
    scorer: Scorer, copy: Copy, sentences: Sequence[Sentence], forbidden_ids: Sequence[int], show: Show
) -> tuple[int, int]:
    """How many greedy outputs are equal, and how many part at a tie; `CheckpointError` for any other."""
    # Nothing but an end symbol is no source that anybody translates.
    asked = [one for one in sentences if one.source != (END_ID,)]
    ours, theirs = greedy(scorer, asked, forbidden_ids), copy.search([one.source for one in asked], most_output(scorer))
    num_ties = 0
    for sentence, output, copied in zip(asked, ours, theirs, strict=True):
        mine, other = (*without_end(output), END_ID), (*copied, END_ID)
        if mine == other:
            continue
        place = next(place for place, tokens in enumerate(zip(mine, other, strict=False)) if tokens[0] != tokens[1])
        forced = force(scorer, [sentence.source] * 2, [mine[: place + 1], other[: place + 1]])
        best, worse = (one.log_probs[-1] for one in forced)
        if not best - worse <= TOLERANCE:
            raise CheckpointError(
                f"{sentence.name}: token {place + 1} of the greedy output is {show(mine[place])} "
                f"(log-probability {best:.6f}), but {show(other[place])} ({worse:.6f}) in the copy"
            )
        num_ties += 1
    return len(asked) - num_ties, num_ties


def prove_text(tokenizers: Tokenizers, copy: Copy, texts: Sequence[str], outputs: Sequence[Ids]) -> None:
    """Hold the tokenisers of the copy against the model's; `CheckpointError` at a difference."""
    for text in (*texts, *HARD_TEXTS):
        mine, other = tuple(tokenizers.encode_source(text)), copy.encode(text)
        if mine != other:
            raise CheckpointError(f"the source {text!r} has the ids {mine}, but {other} in the copy")
    for ids in outputs:
        text, copied = tokenizers.target.decode(ids), copy.decode(without_end(ids))
        if text != copied:
            raise CheckpointError(f"the output with the ids {ids} reads {text!r}, but {copied!r} in the copy")


def measure(scorer: Scorer, copy: Copy, sources: Sequence[Ids], forbidden_ids: Sequence[int], bound: Bound) -> Quality:
    """How far a copy in fewer bits is from the model; `CheckpointError` where that is too far."""
    sentences = [Sentence("", source, ()) for source in sources if source != (END_ID,)]
    sources = [one.source for one in sentences]
    outputs = greedy(scorer, sentences, forbidden_ids)
    theirs = copy.search(sources, most_output(scorer))
    num_equal = sum(without_end(mine) == other for mine, other in zip(outputs, theirs, strict=True))
    # A library that is asked for scores puts `</s>` behind every target; for it too there must be a position.
    targets = [(*without_end(output)[: most_output(scorer) - 1], END_ID) for output in outputs]
    scored = [one.log_probs for one in force(scorer, sources, targets)]
    differences = [
        abs(mine - other)
        for one, two in zip(scored, copy.score(sources, targets), strict=True)
        for mine, other in zip(one, two, strict=True)
    ]
    quality = Quality(len(sources), num_equal / len(sources), float(np.mean(differences)), *bound)
    is_close = quality.equal_share >= bound.equal_share and quality.mean_difference <= bound.mean_difference
    if not is_close:
        raise CheckpointError(
            f"in fewer bits {quality.equal_share:.0%} of {quality.num_sentences} greedy outputs stay the same (at "
            f"least {bound.equal_share:.0%} must) and the log-probability of a token moves by "
            f"{quality.mean_difference:.4f} on average (at most {bound.mean_difference:g} may)"
        )
    return quality


def greedy(scorer: Scorer, sentences: Sequence[Sentence], forbidden_ids: Sequence[int]) -> list[Ids]:
    """The model's greedy outputs, with `</s>` where they end with it."""
    most = most_output(scorer)
    config = DecodingConfig(beam_size=1, max_length=most, max_length_extra=most, length_penalty="none")
    answers = search(scorer, [Request(one.source) for one in sentences], config, forbidden_ids)
    return [best.ids for best, *_ in answers]


def most_output(scorer: Scorer) -> int:
    return MOST_OUTPUT if scorer.max_steps is None else min(MOST_OUTPUT, scorer.max_steps)


def without_end(ids: Ids) -> Ids:
    return ids[:-1] if ids[-1:] == (END_ID,) else ids
