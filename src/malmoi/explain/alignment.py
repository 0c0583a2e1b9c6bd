"""Word alignments: which source word an output word was made from, by the attention that shows it best.

In: a model and a sentence. Out: pairs of word numbers, and the name of the head or mean that they were read from.

The rule needs no alignments made by people. Candidates are each layer's mean over heads, and each head. On the
sentences that are stored with the model (source and its own translation; the text at hand where there are none), an
output word agrees if the source word that a candidate looks at most is the one whose leaving out costs the output word
most. The candidate with the most agreements is taken; of equal ones a mean before a head, a lower layer and head first.

Words are what stands between spaces, `</s>` is none; a text of one word in characters or bytes is cut into these.
Each output word is aligned to the one source word that it looks at most.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malmoi.decoding.interface import Ids
from malmoi.errors import ConfigError
from malmoi.explain.influence import drops
from malmoi.explain.replay import Floats, evaluating, replay
from malmoi.explain.result import Explanation
from malmoi.explain.subject import Subject
from malmoi.explain.words import Side, Span, make_side, merge
from malmoi.text.lines import normalize, one_line
from malmoi.text.tokenizer import Tokenizer

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """An attention that words can be read from: a head of a layer, or the mean of its heads where `head` is None."""

    layer: int
    head: int | None


@dataclass(frozen=True)
class Alignment:
    """Pairs (source word, output word), from 0, by output word, and how their source was chosen."""

    pairs: tuple[tuple[int, int], ...]
    candidate: Candidate
    num_agreements: int
    num_words: int
    num_sentences: int

    def as_text(self) -> str:
        """The format of Pharaoh: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align(subject: Subject, explanation: Explanation) -> Alignment:
    """Align the best output of an explanation; `ConfigError` for a model without attention."""
    best = explanation.outputs[0]
    if not best.attention:
        raise ConfigError("this model has no attention to read an alignment from: plain Seq2Seq never looks back")
    stored = [pair for one in subject.sentences if (pair := subject.maybe_pair(*one)) is not None]
    sentences = stored or [(explanation.source.ids, best.target.ids)]
    agreements: dict[Candidate, int] = {}
    num_words = 0
    with evaluating(subject.network):
        for source_ids, target_ids in sentences:
            counted, here = count_agreements(subject, source_ids, target_ids)
            num_words += here
            for candidate, count in counted.items():
                agreements[candidate] = agreements.get(candidate, 0) + count
    candidate = max(agreements, key=lambda one: agreements[one])
    spans = words_of(explanation.source), words_of(best.target)
    chosen = dict(candidates(best.attention))[candidate]
    numbers = source_numbers(subject.tokenizers.source, explanation, spans[0], subject)
    pairs = tuple((numbers[place], word) for word, place in enumerate(most_looked_at(chosen, *spans)))
    return Alignment(pairs, candidate, agreements[candidate], num_words, len(sentences))


def words_of(side: Side) -> Sequence[Span]:
    """What alignments number."""
    if len(side.text_spans) == 1 and all(len(token) == 1 for token in side.tokens[: side.text_spans[0][1]]):
        return side.units
    return side.text_spans


def candidates(attention: Mapping[str, Floats]) -> Iterator[tuple[Candidate, Floats]]:
    """All that words can be read from, `(T, S)` each: means first, then heads, by layer."""
    layers = [weights for name, weights in attention.items() if name.endswith("cross")]
    for layer, weights in enumerate(layers):
        yield Candidate(layer, None), weights.mean(0)
    for layer, weights in enumerate(layers):
        for head in range(len(weights) if len(weights) > 1 else 0):
            yield Candidate(layer, head), weights[head]


def most_looked_at(weights: Floats, source: Sequence[Span], target: Sequence[Span]) -> list[int]:
    """For each output word the source word with the largest weight."""
    if not source or not target:
        return []
    return merge(weights, target, source).argmax(1).tolist()


def count_agreements(subject: Subject, source_ids: Ids, target_ids: Ids) -> tuple[dict[Candidate, int], int]:
    """For each candidate the number of output words that agree, and how many words there are."""
    source = make_side(subject.tokenizers.source, source_ids)
    target = make_side(subject.tokenizers.target, target_ids)
    spans = words_of(source), words_of(target)
    (replayed,) = replay(subject.network, [source_ids], [target_ids])
    dropped_UT = drops(subject.scorer, source_ids, target_ids, replayed.log_probs, spans[0])
    # Log-probabilities of a word's tokens add up to that of the word.
    needed = [int(dropped_UT[:, first:behind].sum(1).argmax()) for first, behind in spans[1]] if len(spans[0]) else []
    found = {
        candidate: sum(one == other for one, other in zip(most_looked_at(weights, *spans), needed, strict=True))
        for candidate, weights in candidates(replayed.attention)
    }
    return found, len(needed)


def source_numbers(
    tokenizer: Tokenizer, explanation: Explanation, spans: Sequence[Span], subject: Subject
) -> list[int]:
    """The number of each span among the words of the user's text; words that the model never saw are none."""
    if len(spans) != len(explanation.source.text_spans):
        return list(range(len(spans)))
    plain = one_line(normalize(explanation.text))
    is_words = tokenizer.kind == "words"
    words = plain.split() if is_words else [word for word in plain.split(" ") if word]
    unseen = set(subject.tokenizers.left_out([plain])[0])
    kept = [number for number, word in enumerate(words) if (word not in unseen if is_words else set(word) - unseen)]
    assert len(kept) == len(spans), f"{len(spans)} words were read, but {len(kept)} are in the text"
    return kept
