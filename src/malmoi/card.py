"""`card.json` of a model folder: what malmoi reads of what a run left there.

In: JSON. Out: tables whose types are right. A file of another version may hold more, or less.
"""

from pydantic import BaseModel, ConfigDict


class CardTable(BaseModel):
    """A part of `card.json` that malmoi reads: types must be right; whatever else stands there is left alone."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class CardSentence(CardTable):
    """A sentence by which a copy of a model proves itself."""

    source: str
    text: str
    score: float | None = None
    margin: float | None = None
    """Between the score and that of the best output with another text."""
    forced: float | None = None
    """The log-probability of `text`, given the source."""


class CardScore(CardTable):
    """A score on validation text."""

    label: str
    value: float
    signature: str
    num_segments: int


class CardData(CardTable):
    """A corpus of training."""

    description: str
    pairs: int


class Card(CardTable):
    """`card.json` of a model folder."""

    num_parameters: int = 0
    steps: int = 0
    max_source_tokens: int | None = None
    sentences: list[CardSentence] = []
    scores: list[CardScore] = []
    data: list[CardData] = []
