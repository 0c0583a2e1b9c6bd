"""The bodies and answers of our own interface, as its document shows them, and how answers are made.

In: answers of the service. Out: plain values. Places count UTF-16 code units, as JavaScript does; scores are natural
log-probabilities, finite always.
"""

import math
from typing import Any

from pydantic import BaseModel, Field

from malmoi.serving.aligned import Unit
from malmoi.serving.limits import finite
from malmoi.serving.models import Loaded
from malmoi.serving.translation import Answer, Sentence, words_of

MOST_NAME = 100


class TranslateBody(BaseModel):
    """`POST /api/translate`, `POST /api/stream`"""

    model: str = Field(max_length=MOST_NAME)
    text: str
    n_best: int = 1
    prefix: str = ""
    constraints: list[str] = []
    options: dict[str, Any] = {}
    details: bool = False

    @property
    def given(self) -> list[str]:
        """All of it that the model is given."""
        return [self.text, self.prefix, *self.constraints]


class NextBody(BaseModel):
    """`POST /api/next`"""

    model: str = Field(max_length=MOST_NAME)
    text: str
    prefix: str = ""
    count: int = 5

    @property
    def given(self) -> list[str]:
        """All of it that the model is given."""
        return [self.text, self.prefix]


class ExplainBody(BaseModel):
    """`POST /api/explain`"""

    model: str = Field(max_length=MOST_NAME)
    text: str
    language: str = "en"


class FaultDetail(BaseModel):
    code: str
    message: str


class Fault(BaseModel):
    error: FaultDetail


class Alternative(BaseModel):
    text: str
    score: float | None


class Place(BaseModel):
    text: str
    start: int
    end: int


class Word(Place):
    log_prob: float
    probability: float


class Token(BaseModel):
    text: str
    log_prob: float


class SentenceTable(BaseModel):
    """A sentence; the last four only with `details`."""

    source: str
    source_start: int
    target: str
    target_start: int
    score: float | None
    finished: bool
    alternatives: list[Alternative]
    notes: list[str]
    words: list[Word] | None = None
    tokens: list[Token] | None = None
    source_words: list[Place] | None = None
    alignment: list[tuple[int, int]] | None = None


class Translated(BaseModel):
    text: str
    sentences: list[SentenceTable]
    notes: list[str]


class NextWord(BaseModel):
    text: str
    probability: float
    prefix: str


class NextWords(BaseModel):
    words: list[NextWord]


class Offsets:
    """Places of a text in UTF-16 code units."""

    def __init__(self, text: str) -> None:
        self.places: list[int] | None = None
        if text and max(text) > "\uffff":
            self.places = [0]
            for character in text:
                self.places.append(self.places[-1] + (2 if character > "\uffff" else 1))

    def __call__(self, place: int) -> int:
        return place if self.places is None else self.places[place]


def answer_table(loaded: Loaded, answer: Answer, *, details: bool) -> dict[str, Any]:
    """A whole answer."""
    source, target = Offsets(answer.source), Offsets(answer.text)
    sentences = [
        sentence_table(loaded, answer, sentence, source, target, details=details) for sentence in answer.sentences
    ]
    return {"text": answer.text, "sentences": sentences, "notes": answer.notes}


def sentence_table(
    loaded: Loaded, answer: Answer, sentence: Sentence, source: Offsets, target: Offsets, *, details: bool
) -> dict[str, Any]:
    """One sentence of an answer."""
    translation, span = sentence.translation, sentence.span
    table: dict[str, Any] = {
        "source": answer.source[span.start : span.end],
        "source_start": source(span.start),
        "target": translation.text,
        "target_start": target(sentence.start),
        "score": score_of(translation.score),
        "finished": translation.finished,
        "alternatives": [{"text": one.text, "score": score_of(one.score)} for one in translation.alternatives],
        "notes": list(translation.notes),
    }
    if details:
        words = words_of(loaded, answer, sentence)
        log_probs = translation.token_scores
        table["words"] = [
            word_table(unit, translation.text, sentence.start, target, log_probs) for unit in words.target
        ]
        table["tokens"] = [
            {"text": token, "log_prob": finite(value)}
            for token, value in zip(translation.tokens, log_probs, strict=True)
        ]
        table["source_words"] = [place_table(unit, table["source"], span.start, source) for unit in words.source]
        table["alignment"] = [list(pair) for pair in words.pairs]
    return table


def place_table(unit: Unit, text: str, start: int, offsets: Offsets) -> dict[str, Any]:
    return {
        "text": text[unit.start : unit.end],
        "start": offsets(start + unit.start),
        "end": offsets(start + unit.end),
    }


def word_table(unit: Unit, text: str, start: int, offsets: Offsets, log_probs: tuple[float, ...]) -> dict[str, Any]:
    """A translated word: its tokens' log-probabilities add up."""
    log_prob = finite(sum(log_probs[unit.first : unit.behind]))
    return {
        **place_table(unit, text, start, offsets),
        "log_prob": log_prob,
        "probability": min(1.0, math.exp(log_prob)),
    }


def score_of(score: float | None) -> float | None:
    """None where the model was not asked."""
    return None if score is None else finite(score)
