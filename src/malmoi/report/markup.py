"""Pieces of a page: tables, and outputs with their differences marked.

In: texts, and cells that are markup already. Out: markup.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are markup already; the first cell of a row is its heading."""
    heading = (
        "<thead><tr>" + "".join(f'<th scope="col">{one}</th>' for one in head) + "</tr></thead>" if any(head) else ""
    )
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="scroll" tabindex="0"><table>{heading}<tbody>{body}</tbody></table></div>'


def mark(output: str, references: Sequence[str]) -> str:
    """An output as markup: what does not stand at its place in the nearest right answer is marked, and so is where
    something is missing. Words are compared; characters where a text is a single word."""
    parts = (
        output.split() if len(output.split()) > 1 or any(len(one.split()) > 1 for one in references) else list(output)
    )
    space = "" if parts and len(output.split()) == 1 and all(len(part) == 1 for part in parts) else " "
    matchers = [SequenceMatcher(None, one.split() if space else list(one), parts, autojunk=False) for one in references]
    nearest = max(matchers, key=lambda one: one.ratio())
    marked: list[str] = []
    for kind, _, _, first, behind in nearest.get_opcodes():
        words = escape(space.join(parts[first:behind]))
        if kind == "delete":
            marked.append('<mark class="gap"></mark>')
        elif words:
            marked.append(words if kind == "equal" else f"<mark>{words}</mark>")
    return space.join(marked) if parts else ""
