"""HTML as pieces that are the text again when they are put in a row, and as runs of text with the marks inside of it.

In: HTML as people write it, whole or broken. Out: pieces whose `raw` parts together are the input, to the letter; then
parts of the document in order: what stays as it is, and `Run`s to translate.

A run is what stands between two tags of blocks (or line breaks), as one text with its character references read, and
the inline tags at their places in it. What is left alone, with all that it holds: comments, `script`, `style` and other
elements whose content is no prose, code, and what says `translate="no"` (or the class `notranslate`) until something in
it says `translate="yes"`; between words such a piece is a mark of the run. Tags of a run whose other half is not in it
end the run, so that their order never changes. A tag that never ends is text, as in `a <b and c`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Literal

Kind = Literal["text", "open", "close", "void", "opaque"]

TAG = re.compile(
    r"<(/?)([A-Za-z][^\s/>]*+)"
    r"(?:[\s/]++|(?:=[^\s/>=]*+|[^\s/>=]++)(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>\"'][^\s>]*+)?+)?+)*+>"
)
ATTRIBUTE = re.compile(r"([^\s/>=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>\"'][^\s>]*)?)?")
COMMENT_END = re.compile("--!?>")


def names(text: str) -> frozenset[str]:
    """Words as a set."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
RAW = names("script style xmp iframe noembed noframes textarea")
"""Elements whose content has no tags and is left alone."""
ALONE = names("code kbd samp var svg math template object audio video canvas select")
"""Elements that are left alone unless they say otherwise."""
INLINE = names(
    "a abbr acronym b bdi bdo big button cite code data del dfn em embed font i img input ins kbd label mark math "
    "meter output picture progress q ruby rb rp rt s samp script small source span strike strong style sub sup svg "
    "template textarea time tt u var wbr select audio video canvas object map area"
)
CLOSES = names("p li dt dd tr td th option")
"""Elements that another one of their kind ends."""
DEEPEST = 100
"""Inline elements inside of each other."""


@dataclass(frozen=True)
class Piece:
    """A part of the document."""

    kind: Kind
    raw: str
    name: str = ""

    @property
    def is_inline(self) -> bool:
        return self.name in INLINE or not self.name


@dataclass
class Node:
    """A mark of a run: an element from place `start` to `end` of its text, or a single piece where `close` is empty
    and both places are one."""

    start: int
    end: int
    open: str
    close: str
    children: "list[Node]"

    @property
    def is_single(self) -> bool:
        return not self.close


@dataclass(frozen=True)
class Run:
    """A text to translate, and the marks in it."""

    text: str
    nodes: tuple[Node, ...]


def read_markup(text: str) -> Iterator[Piece]:
    """Pieces in order."""
    place = begin = 0
    while (start := text.find("<", place)) >= 0:
        piece = read_tag(text, start)
        place = start + len(piece.raw)
        if piece.kind == "text":
            continue
        if start > begin:
            yield Piece("text", text[begin:start])
        yield piece
        begin = place
        if piece.kind == "open" and (piece.name in RAW or piece.name == "title"):
            place = end_of_raw(text, place, piece.name)
            if place > begin:
                yield Piece("text" if piece.name == "title" else "opaque", text[begin:place])
            begin = place
    if begin < len(text):
        yield Piece("text", text[begin:])


def read_tag(text: str, start: int) -> Piece:
    """The piece that begins with the `<` at a place."""
    found = TAG.match(text, start)
    if found is not None:
        name = found[2].lower()
        kind: Kind = "close" if found[1] else "void" if name in VOID else "open"
        return Piece(kind, found[0], name)
    if text.startswith("<!--", start):
        comment = COMMENT_END.search(text, start + 2)
        return Piece("opaque", text[start : comment.end() if comment else len(text)])
    is_word = text[start + 1 : start + 3].removeprefix("/")[:1].isalpha()
    if text.startswith(("<!", "<?", "</"), start) and not is_word:
        end = text.find(">", start)
        return Piece("opaque", text[start : end + 1 if end >= 0 else len(text)])
    # A tag that never ends: all that follows is text, and no further tag is looked for in vain.
    return Piece("text", text[start:] if is_word else text[start])


def end_of_raw(text: str, place: int, name: str) -> int:
    """Where the content of an element without tags ends."""
    found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, place)
    return found.start() if found else len(text)


def left_alone(raw: str, name: str) -> bool | None:
    """Whether the content of an element is left alone; None where its tag does not say."""
    attributes: dict[str, str] = {}
    if len(raw) == len(name) + 2:
        return True if name in ALONE else None
    for found in ATTRIBUTE.finditer(raw[len(name) + 1 : -1]):
        attributes.setdefault(found[1].lower(), unescape((found[2] or "").strip("\"'")))
    said = attributes.get("translate", "").strip().lower()
    if said in ("yes", "") and "translate" in attributes:
        return False
    if said == "no" or "notranslate" in attributes.get("class", "").lower().split():
        return True
    return True if name in ALONE else None


class Openness:
    """Which elements are open, and whether what they hold is left alone."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, bool]] = []
        self.counts: dict[str, int] = {}

    @property
    def is_alone(self) -> bool:
        return bool(self.stack) and self.stack[-1][1]

    def open(self, piece: Piece) -> None:
        if piece.name in CLOSES and self.stack and self.stack[-1][0] == piece.name:
            self.pop()
        said = left_alone(piece.raw, piece.name)
        self.stack.append((piece.name, self.is_alone if said is None else said))
        self.counts[piece.name] = self.counts.get(piece.name, 0) + 1

    def close(self, name: str) -> None:
        """End an element and what is still open in it; nothing happens where it is not open."""
        if self.counts.get(name):
            while self.pop() != name:
                pass

    def pop(self) -> str:
        name, _ = self.stack.pop()
        self.counts[name] -= 1
        return name


def read_parts(text: str) -> list[str | Run]:
    """A document as what stays and what is translated, in order."""
    parts: list[str | Run] = []
    waiting: list[Piece] = []
    for piece in with_opaque(read_markup(text)):
        if piece.kind == "text" or (piece.is_inline and piece.name != "br"):
            waiting.append(piece)
        else:
            parts += runs_of(waiting)
            waiting = []
            parts.append(piece.raw)
    return [*parts, *runs_of(waiting)]


def with_opaque(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces, those that are left alone in one: inline where all of its tags are."""
    state = Openness()
    held: list[Piece] = []
    for piece in pieces:
        was_alone = state.is_alone
        if piece.kind == "open":
            state.open(piece)
        elif piece.kind == "close":
            state.close(piece.name)
        if was_alone or state.is_alone or piece.kind == "opaque":
            held.append(piece)
            continue
        if held:
            yield glued(held)
            held = []
        yield piece
    if held:
        yield glued(held)


def glued(pieces: Sequence[Piece]) -> Piece:
    """Pieces that are left alone, as one."""
    block = next((piece.name for piece in pieces if not piece.is_inline), "")
    return Piece("opaque", "".join(piece.raw for piece in pieces), block)


def runs_of(pieces: Sequence[Piece]) -> Iterator[str | Run]:
    """What stands between two blocks: runs, and the tags whose other half is elsewhere."""
    partners = pair(pieces)
    start = 0
    for place, piece in enumerate(pieces):
        if piece.kind in ("open", "close") and place not in partners:
            yield from run_of(pieces[start:place])
            yield piece.raw
            start = place + 1
    yield from run_of(pieces[start:])


def pair(pieces: Sequence[Piece]) -> dict[int, int]:
    """Places of opening and closing tags that belong together, both ways; those that cross others are none."""
    partners: dict[int, int] = {}
    stack: list[int] = []
    for place, piece in enumerate(pieces):
        if piece.kind == "open" and len(stack) < DEEPEST:
            stack.append(place)
        elif piece.kind == "close":
            found = next((one for one in reversed(stack) if pieces[one].name == piece.name), None)
            if found is not None:
                del stack[stack.index(found) :]
                partners[found], partners[place] = place, found
    lonely = [0]
    for place, piece in enumerate(pieces):
        lonely.append(lonely[-1] + (piece.kind in ("open", "close") and place not in partners))
    return {one: other for one, other in partners.items() if lonely[max(one, other)] == lonely[min(one, other)]}


def run_of(pieces: Sequence[Piece]) -> Iterator[str | Run]:
    """Pieces whose tags are all paired as a run, or as they are where there is nothing to translate."""
    if not any(piece.kind == "text" and unescape(piece.raw).strip() for piece in pieces):
        yield from (piece.raw for piece in pieces)
        return
    texts: list[str] = []
    length = 0
    top: list[Node] = []
    open_nodes: list[Node] = []
    for piece in pieces:
        siblings = open_nodes[-1].children if open_nodes else top
        if piece.kind == "text":
            texts.append(unescape(piece.raw))
            length += len(texts[-1])
        elif piece.kind == "open":
            node = Node(length, length, piece.raw, "", [])
            siblings.append(node)
            open_nodes.append(node)
        elif piece.kind == "close":
            node = open_nodes.pop()
            node.end, node.close = length, piece.raw
        else:
            siblings.append(Node(length, length, piece.raw, "", []))
    yield Run("".join(texts), tuple(top))
