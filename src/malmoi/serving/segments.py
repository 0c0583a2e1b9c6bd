"""Sentences of a text, and the text put together again with the white space that it had.

In: a text. Out: spans of its sentences, without the space around them; nothing else of the text is lost, so that
`join` with the sentences themselves gives the text back, to the letter.

Rules: the sentence splitter of the language; a line break ends a sentence unless it is told not to; a sentence longer
than a limit is cut at the last white space before it, or in the middle of a word where there is none.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]

EVERYTHING = re.compile(r"(?s).+")
LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")

LONGEST_PIECE = 10_000
"""Of a text without lines the splitter is given so many characters at a time: quotation marks that nobody closes cost
it their square."""


@dataclass(frozen=True)
class Span:
    """A piece of a text: from its first character to the one behind its last."""

    start: int
    end: int


def split(text: str, language: str, longest: int, *, at_lines: bool = True) -> list[Span]:
    """The sentences of a text in order, each with something in it that is not white space."""
    spans: list[Span] = []
    for line in (LINE if at_lines else EVERYTHING).finditer(text):
        for piece in cut(text, trim(text, *line.span()), LONGEST_PIECE):
            place = piece.start
            for sentence in segment(language, text[piece.start : piece.end]):
                spans += cut(text, trim(text, place, place + len(sentence)), longest)
                place += len(sentence)
            assert place == piece.end, "the splitter lost text"
    return spans


def whole(text: str) -> list[Span]:
    """A text as one sentence."""
    span = trim(text, 0, len(text))
    return [span] if span.start < span.end else []


def trim(text: str, start: int, end: int) -> Span:
    """A span without the white space around it; an empty one where there is nothing else."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return Span(start, end)


def cut(text: str, span: Span, longest: int) -> Iterator[Span]:
    """A span in pieces of at most `longest` characters."""
    start = span.start
    while span.end - start > longest:
        behind = next((place for place in range(start + longest, start, -1) if text[place].isspace()), start + longest)
        piece = trim(text, start, behind)
        if piece.start < piece.end:
            yield piece
        start = behind
    last = trim(text, start, span.end)
    if last.start < last.end:
        yield last


def join(text: str, spans: Sequence[Span], outputs: Sequence[str]) -> tuple[str, list[int]]:
    """A text with its sentences replaced, and where each of them begins. A sentence that has become empty leaves no
    space behind it, so that no line begins with one."""
    parts: list[str] = []
    starts: list[int] = []
    length = place = 0
    is_gone = False
    for span, output in zip(spans, outputs, strict=True):
        space = text[place : span.start]
        if is_gone and parts and space.strip(" ") == "":
            space = ""
        parts += [space, output]
        starts.append(length + len(space))
        length += len(space) + len(output)
        place, is_gone = span.end, not output
    return "".join([*parts, text[place:]]), starts
