"""The demo's page: one HTML file that says what was trained, how well it does and what to try next.

In: plain values. Out: HTML text that loads nothing from anywhere. Whatever came from data is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --ground: #fff; --right: #116329;
  --wrong: #b42318; --code: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #f0f6fc; --soft: #9198a1; --line: #3d444d; --ground: #0d1117;
  --right: #56d364; --wrong: #ff8f86; --code: #151b23; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 760px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } th { color: var(--soft); font-weight: 600; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
.soft { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
pre { background: var(--code); padding: .8rem; overflow-x: auto; border-radius: 6px; }
svg { max-width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class AnsweredWord:
    """A held-out word: what the model says, and all answers that count as right."""

    source: str
    output: str
    references: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return self.output in self.references


@dataclass(frozen=True)
class ScoreRow:
    """One score with the signature that says how it was computed."""

    name: str
    value: str
    signature: str


@dataclass(frozen=True)
class DemoReport:
    """All that the page shows."""

    title: str
    paragraphs: Sequence[str]
    facts: Mapping[str, str]
    curves_svg: str
    """A picture made by `learning_curves`: trusted markup, the only value that is not escaped."""
    rows: Sequence[AnsweredWord]
    scores: Sequence[ScoreRow]
    commands: Sequence[tuple[str, str]]
    """Command and what it is for."""


def demo_page(report: DemoReport) -> str:
    """The whole page as HTML text."""
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in report.paragraphs),
        table(("", ""), [(escape(name), escape(value)) for name, value in report.facts.items()], head=False),
        "<h2>How well it does</h2>",
        table(
            ("score", "value", "signature"),
            [
                (escape(row.name), escape(row.value), f'<span class="soft">{escape(row.signature)}</span>')
                for row in report.scores
            ],
        ),
        "<h2>Test words: none of them was seen in training</h2>",
        table(("word", "the model says", "right answers", ""), [test_cells(row) for row in report.rows]),
        "<h2>How it learned</h2>",
        f'<div class="scroll">{report.curves_svg}</div>',
        "<h2>What to try next</h2>",
        *(f"<p>{escape(purpose)}</p><pre><code>{escape(command)}</code></pre>" for command, purpose in report.commands),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def test_cells(row: AnsweredWord) -> tuple[str, str, str, str]:
    """The cells of one test word; right or wrong is said in words too, not by colour alone."""
    mark = '<span class="right">right</span>' if row.is_right else '<span class="wrong">wrong</span>'
    return escape(row.source), escape(row.output), "<br>".join(escape(text) for text in row.references), mark


def table(names: Sequence[str], rows: Sequence[Sequence[str]], *, head: bool = True) -> str:
    """A table of cells that are HTML already."""
    heading = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>\n" if head else ""
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n{heading}{body}\n</table></div>'
