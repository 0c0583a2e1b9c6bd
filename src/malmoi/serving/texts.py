"""Whole texts of the two foreign interfaces, plain or HTML.

In: texts and options. Out: translated texts with alternatives.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from malmoi.serving.html import Pairing, Range, render
from malmoi.serving.markup import Run, read_parts
from malmoi.serving.models import Loaded, ServedModel
from malmoi.serving.service import Caller, Service
from malmoi.serving.translation import Answer, Wish, same_words, words_of


@dataclass(frozen=True)
class Output:
    """A translated text and others that it could have been."""

    text: str
    alternatives: list[str]


async def translate_texts(
    service: Service,
    caller: Caller,
    model: ServedModel,
    texts: Sequence[str],
    options: Mapping[str, Any],
    *,
    is_html: bool = False,
    num_alternatives: int = 0,
    at_lines: bool = True,
    is_whole: bool = False,
) -> list[Output]:
    """Translations in order."""
    if is_html:
        return await translate_documents(service, caller, model, texts, options, num_alternatives)
    wish = Wish(options=options, at_lines=at_lines, is_whole=is_whole)
    _, answers = await service.translate(caller, model, texts, wish)
    return [Output(answer.text, [one.text for one in answer.variants(num_alternatives)]) for answer in answers]


async def translate_documents(
    service: Service,
    caller: Caller,
    model: ServedModel,
    texts: Sequence[str],
    options: Mapping[str, Any],
    num_alternatives: int,
) -> list[Output]:
    """Translations of HTML: all runs of all texts go through the search together."""
    documents = await service.run(service.threads, caller, lambda: [read_parts(text) for text in texts])
    runs = [part.text for parts in documents for part in parts if isinstance(part, Run)]
    wish = Wish(options=options, at_lines=False, aligns=True)
    loaded, answers = await service.translate(caller, model, runs, wish)
    arguments = (loaded, documents, answers, num_alternatives, caller.leash.check)
    return await service.run(service.finishers, caller, put_together, *arguments)


def put_together(
    loaded: Loaded,
    documents: Sequence[Sequence[str | Run]],
    answers: Sequence[Answer],
    num_alternatives: int,
    check: Callable[[], None] = lambda: None,
) -> list[Output]:
    """Documents from the answers to their runs, which stand in order; `check` is called before each piece of work, and
    may raise where nobody waits any more."""
    waiting = iter(answers)
    outputs: list[Output] = []
    for parts in documents:
        own = [next(waiting) if isinstance(part, Run) else None for part in parts]
        others: list[list[Answer]] = []
        for answer in own:
            check()
            others.append(answer.variants(num_alternatives) if answer is not None else [])
        versions: list[str] = []
        for rank in range(-1, max(map(len, others), default=0)):
            chosen = [
                variants[rank] if 0 <= rank < len(variants) else answer
                for answer, variants in zip(own, others, strict=True)
            ]
            rendered = [
                render(part, answer.text, pairing_of(loaded, answer, check))
                if isinstance(part, Run) and answer
                else str(part)
                for part, answer in zip(parts, chosen, strict=True)
            ]
            versions.append("".join(rendered))
        first, *rest = versions
        outputs.append(Output(first, [one for one in dict.fromkeys(rest) if one != first]))
    return outputs


def pairing_of(loaded: Loaded, answer: Answer, check: Callable[[], None]) -> Pairing:
    """Words of a whole answer."""
    source: list[Range] = []
    target: list[Range] = []
    pairs: list[tuple[int, int]] = []
    sentences: list[tuple[Range, Range]] = []
    for sentence in answer.sentences:
        check()
        is_kept, text = sentence.is_kept, sentence.translation.text
        words = same_words(text) if is_kept else words_of(loaded, answer, sentence)
        first, start = sentence.span.start, sentence.start
        pairs += [(len(source) + one, len(target) + other) for one, other in words.pairs]
        source += [(first + unit.start, first + unit.end) for unit in words.source]
        target += [(start + unit.start, start + unit.end) for unit in words.target]
        sentences.append(((first, sentence.span.end), (start, start + len(text))))
    return Pairing(tuple(source), tuple(target), tuple(pairs), tuple(sentences))
