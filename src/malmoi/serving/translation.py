"""From texts of a request to sentences for the search, and back to texts.

In: texts and what is wished of their translation. Out: a `Plan` with requests for a ticket; then, from the hypotheses
of the ticket, an `Answer` for each text, in order. Nothing here waits or searches.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Hypothesis, Request
from malmoi.decoding.search import check_request, check_settings, search_config
from malmoi.errors import ConfigError, DataError
from malmoi.serving.aligned import Unit, pairs_of, source_units, target_units
from malmoi.serving.limits import RefusedError, ServingConfig, settle
from malmoi.serving.models import Description, Loaded
from malmoi.serving.segments import Span, join, split, whole
from malmoi.serving.tickets import Group
from malmoi.text.lines import normalize, one_line
from malmoi.translate import Prepared, Translation

SPACES = re.compile(r"[ \t\n\r\f]+")

Done = tuple[Prepared, Translation, tuple[Hypothesis, ...]]
"""A sentence and what became of it."""


@dataclass(frozen=True)
class Wish:
    """What is wished of translations. `prefix` and `constraints` are of texts of one sentence, which is then not cut.

    `at_lines`: line breaks end sentences. `is_whole`: a text is one sentence. `aligns`: words are to be paired.
    """

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = ""
    constraints: tuple[str, ...] = ()
    at_lines: bool = True
    is_whole: bool = False
    aligns: bool = False

    @property
    def is_of_one_sentence(self) -> bool:
        return self.is_whole or bool(self.prefix or self.constraints)


@dataclass(frozen=True)
class Plan:
    """Sentences of all texts; `texts` and `spans` go together, and `prepared` are all spans in a row."""

    texts: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    prepared: tuple[Prepared, ...]
    config: DecodingConfig
    group: Group

    @property
    def requests(self) -> list[Request]:
        return [one.request for one in self.prepared if one.request is not None]


@dataclass(frozen=True)
class Sentence:
    """A sentence of a text: where it stands in it, where its translation stands in the answer, and what it became."""

    span: Span
    start: int
    prepared: Prepared
    translation: Translation
    hypotheses: tuple[Hypothesis, ...]

    @property
    def is_kept(self) -> bool:
        """Whether it is given back as it was."""
        return self.prepared.maybe_known is not None

    def ranked(self, rank: int) -> "Done":
        """Its alternative of a rank from 0, or the best where there is none."""
        others = self.translation.alternatives
        if rank >= len(others):
            return self.prepared, self.translation, self.hypotheses
        # Equal texts that were merged are not told apart any more.
        is_like = len(self.hypotheses) == len(others) + 1
        return self.prepared, others[rank], self.hypotheses[rank + 1 : rank + 2] if is_like else ()


@dataclass(frozen=True)
class Answer:
    """A text and its translation."""

    source: str
    text: str
    sentences: tuple[Sentence, ...]

    @property
    def notes(self) -> list[str]:
        return [note for sentence in self.sentences for note in sentence.translation.notes]

    def variants(self, most: int) -> "list[Answer]":
        """Other answers: the second best of every sentence, then the third best; all with different texts."""
        found: list[Answer] = []
        for rank in range(most):
            other = make_answer(
                self.source,
                [sentence.span for sentence in self.sentences],
                [sentence.ranked(rank) for sentence in self.sentences],
            )
            if other.text not in (self.text, *(one.text for one in found)):
                found.append(other)
        return found


@dataclass(frozen=True)
class Words:
    """Units of a sentence and of its translation, and which belong together."""

    source: tuple[Unit, ...]
    target: tuple[Unit, ...]
    pairs: tuple[tuple[int, int], ...]


def make_plan(
    loaded: Loaded, description: Description, texts: Sequence[str], wish: Wish, limits: ServingConfig
) -> Plan:
    """Cut texts into sentences and these into ids. `RefusedError` for options, prefixes, phrases and sentences that
    cannot be."""
    translator = loaded.translator
    config = settle(translator.decoding, wish.options, limits.batch_tokens)
    if not description.has_attention and (config.coverage_beta or config.replace_unknown):
        raise RefusedError(400, "bad_option", "coverage_beta and replace_unknown need a model with attention")
    spans = tuple(tuple(split_text(text, description.source, wish, limits)) for text in texts)
    sentences = [text[span.start : span.end] for text, found in zip(texts, spans, strict=True) for span in found]
    plain = [one_line(normalize(sentence if wish.at_lines else squeezed(sentence))) for sentence in sentences]
    try:
        translator.resolve(config)
        rows = zip(plain, translator.tokenizers.encode_and_tell(plain), strict=True)
        prepared = tuple(
            kept(translator.prepare(text, ids, left_out, wish.prefix, wish.constraints, number), sentence, number)
            for number, (sentence, (text, (ids, left_out))) in enumerate(zip(sentences, rows, strict=True), start=1)
        )
        check_prepared(prepared, loaded, config)
    except (DataError, ConfigError) as error:
        raise RefusedError(400, "bad_request", str(error)) from error
    keeps_attention = config.replace_unknown or (wish.aligns and description.has_attention)
    group = Group(search_config(config), keeps_attention)
    return Plan(tuple(texts), spans, prepared, config, group)


def split_text(text: str, language: str, wish: Wish, limits: ServingConfig) -> list[Span]:
    """The sentences of one text."""
    if not wish.is_of_one_sentence:
        return split(text, language or "en", limits.sentence_characters, at_lines=wish.at_lines)
    spans = whole(text)
    if spans and spans[0].end - spans[0].start > limits.sentence_characters:
        raise RefusedError(
            400, "sentence_too_long", f"one sentence may have {limits.sentence_characters} characters at most"
        )
    return spans


def squeezed(sentence: str) -> str:
    """A sentence whose white space means no more than a space each, as in HTML."""
    return SPACES.sub(" ", sentence)


def kept(prepared: Prepared, sentence: str, number: int) -> Prepared:
    """A sentence of which training saw no character is given back as it is: an empty answer would look like a fault."""
    known = prepared.maybe_known
    if known is None or known.error is not None:
        return prepared
    note = f"line {number}: no character of this line was seen in training, so it is given back as it is"
    return replace(prepared, maybe_known=replace(known, text=sentence, notes=(note,)))


def check_prepared(prepared: Sequence[Prepared], loaded: Loaded, config: DecodingConfig) -> None:
    """`RefusedError`, `DataError` or `ConfigError` for a sentence that cannot be searched for."""
    scorer, forbidden = loaded.translator.scorer_for(config), loaded.translator.forbidden_ids(config)
    check_settings(config, [one.request for one in prepared if one.request is not None])
    for number, one in enumerate(prepared):
        if one.maybe_known is not None and one.maybe_known.error is not None:
            raise RefusedError(400, "sentence_too_long", one.maybe_known.error)
        if one.request is not None:
            check_request(one.request, number, scorer, config, forbidden)


def finish(
    loaded: Loaded,
    plan: Plan,
    hypotheses: Sequence[Sequence[Hypothesis]],
    check: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Hypotheses, in the order of the plan's requests, as translations of its texts; `check` is called before each
    sentence, and may raise where nobody waits any more."""
    waiting = iter(hypotheses)
    prepared = iter(plan.prepared)
    answers: list[Answer] = []
    for text, spans in zip(plan.texts, plan.spans, strict=True):
        done: list[Done] = []
        for _ in spans:
            check()
            done.append(build(loaded, next(prepared), waiting, plan.config))
        answers.append(make_answer(text, spans, done))
    return answers


def make_answer(text: str, spans: Sequence[Span], done: Sequence[Done]) -> Answer:
    """A text from its translated sentences."""
    output, starts = join(text, spans, [translation.text for _, translation, _ in done])
    sentences = tuple(Sentence(span, start, *one) for span, start, one in zip(spans, starts, done, strict=True))
    return Answer(text, output, sentences)


def build(loaded: Loaded, prepared: Prepared, waiting: Any, config: DecodingConfig) -> Done:
    """One sentence: what the search found, or what was known without it."""
    if prepared.maybe_known is not None:
        return prepared, prepared.maybe_known, ()
    found: tuple[Hypothesis, ...] = tuple(next(waiting))
    if not found:
        return prepared, Translation("", finished=False, notes=("nothing was found",)), ()
    translation = loaded.translator.build(found, prepared, config)
    # What surrounds a sentence is the text's own.
    return prepared, replace(translation, text=translation.text.strip()), found


def same_words(text: str) -> Words:
    """Units of a sentence that was kept: its characters, each with itself."""
    units = tuple(Unit(place, place + 1, 0, 0) for place in range(len(text)))
    return Words(units, units, tuple((number, number) for number in range(len(units))))


def words_of(loaded: Loaded, answer: Answer, sentence: Sentence) -> Words:
    """Units of one sentence; places are characters of the sentence and of its translation."""
    if not sentence.hypotheses or sentence.prepared.request is None:
        return Words((), (), ())
    tokenizers, best = loaded.translator.tokenizers, sentence.hypotheses[0]
    text = answer.source[sentence.span.start : sentence.span.end]
    source = source_units(tokenizers, text, sentence.prepared.request.source)
    target = target_units(tokenizers.target, sentence.translation.text, best.ids)
    return Words(tuple(source), tuple(target), tuple(pairs_of(best.attention, source, target)))
