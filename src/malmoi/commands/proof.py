"""Sentences by which a copy of a model proves itself.

In: a translator and sources. Out: what a card keeps of them; and later, what the same or another machine makes of them,
in words where it differs.

What decides is the log-probability that the model gives to the stored translation: it hangs on every weight and on no
choice of a search. The translation itself must come out again unless the search had two that were all but equal, since
another processor adds in another order and may then prefer the other one.
"""

from collections.abc import Sequence
from typing import Any

from malmoi.card import CardSentence
from malmoi.translate import Translation, Translator

SCORE_TOLERANCE = 1e-3
"""Between machines the sums of a score are made in another order; a wrong weight moves it by far more."""


def write_proof(translator: Translator, sources: Sequence[str]) -> list[dict[str, Any]]:
    """`sentences` of a card: each source with its translation, the score of that, its margin over the best one of
    another text, and the log-probability that forced scoring gives to it."""
    decoding = translator.decoding
    found = translator.translate(sources, options={"n_best": decoding.beam_size if decoding.method == "beam" else 1})
    forced = translator.score([(source, one.text) for source, one in zip(sources, found, strict=True)])
    return [
        CardSentence(
            source=source,
            text=one.text,
            score=one.score,
            margin=maybe_margin(one),
            forced=None if pair.error else pair.log_probability,
        ).model_dump()
        for source, one, pair in zip(sources, found, forced, strict=True)
    ]


def maybe_margin(translation: Translation) -> float | None:
    """How far the score lies above that of the best other text; None where there is no other."""
    others = [one.score for one in translation.alternatives if one.text != translation.text and one.score is not None]
    return translation.score - max(others) if others and translation.score is not None else None


def check_proof(translator: Translator, sentences: Sequence[CardSentence]) -> list[str]:
    """What is not as the card says, a sentence for each fault; cards may lack all but source and text."""
    found = translator.translate([stored.source for stored in sentences])
    forced = translator.score([(stored.source, stored.text) for stored in sentences])
    faults: list[str] = []
    for stored, now, pair in zip(sentences, found, forced, strict=True):
        if stored.forced is not None and not is_near(stored.forced, None if pair.error else pair.log_probability):
            faults.append(
                f"{stored.source!r}: {stored.text!r} should have the log-probability {stored.forced:.6f}, "
                f"but has {pair.log_probability:.6f}"
            )
        elif now.text != stored.text:
            if stored.margin is None or stored.margin > SCORE_TOLERANCE:
                faults.append(f"{stored.source!r} should give {stored.text!r}, but gives {now.text!r}")
        elif stored.score is not None and not is_near(stored.score, now.score):
            faults.append(f"{stored.source!r} should score {stored.score:.6f}, but scores {now.score}")
    return faults


def is_near(stored: float, maybe_now: float | None) -> bool:
    return maybe_now is not None and abs(maybe_now - stored) <= SCORE_TOLERANCE
