"""Tags and texts of HTML, read by the standard library's parser, and whether elements are closed in order.

Slow and obvious, and nothing of malmoi's own: what a translated document is checked with.
"""

from collections.abc import Sequence
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}

Attributes = tuple[tuple[str, str | None], ...]
Tag = tuple[str, str, Attributes]


class Reader(HTMLParser):
    """What a document holds, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(("open", tag, tuple(attrs)))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(("open", tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("close", tag, ()))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def is_well_formed(tags: Sequence[Tag]) -> bool:
    """Whether every element is closed once, inside of the one that it was opened in."""
    stack: list[str] = []
    for kind, name, _ in tags:
        if kind == "open" and name not in VOID:
            stack.append(name)
        elif kind == "close" and (not stack or stack.pop() != name):
            return False
    return not stack


def paths(tags: Sequence[Tag]) -> list[tuple[Tag, tuple[str, ...]]]:
    """Each opened element with the names of those that it stands in, sorted."""
    stack: list[str] = []
    found: list[tuple[Tag, tuple[str, ...]]] = []
    for tag in tags:
        kind, name, _ = tag
        if kind == "close":
            stack.pop()
            continue
        found.append((tag, tuple(stack)))
        if name not in VOID:
            stack.append(name)
    return sorted(found, key=repr)
