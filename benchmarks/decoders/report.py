"""The figures of a comparison as JSON and as Markdown. Standard library only."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from decoders.task import percentile, ratio


@dataclass
class Row:
    """A system with one beam, over the rounds."""

    name: str
    label: str
    beam: int
    how: str = ""
    how_single: str = ""
    tokens_per_second: list[float] = field(default_factory=list)
    sentences_per_second: list[float] = field(default_factory=list)
    single: list[list[float]] = field(default_factory=list)
    """Seconds of each single sentence, round by round."""
    loading: list[float] = field(default_factory=list)
    """Seconds from the start of a turn's imports to a model that is ready, once a round."""
    peak_bytes: int = 0
    mean_tokens: float = 0.0
    """Of an output, while sizes of batches were tried."""
    num_wrong: int = 0
    """Outputs that do not have the fixed length."""
    bleu: float | None = None
    versions: str = ""
    trials: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(self.tokens_per_second)

    @property
    def medians(self) -> list[float]:
        """Median seconds of a single sentence, round by round."""
        return [statistics.median(one) for one in self.single]


@dataclass
class Start:
    """From the start of a process to the end of ten short sentences, once a round."""

    label: str
    seconds: list[float]


@dataclass
class Report:
    """All of a comparison."""

    how: dict[str, str]
    title: str
    facts: list[str]
    rows: list[Row]
    starts: list[Start]
    left_out: dict[str, str]

    def best_peer(self, beam: int) -> Row | None:
        """The fastest of CTranslate2's rows."""
        rows = [row for row in self.rows if row.beam == beam and row.name.startswith("ctranslate2")]
        return max(rows, key=lambda row: row.speed, default=None)

    def quickest_peer(self, beam: int) -> Row | None:
        """Of CTranslate2's rows that with the least time for a single sentence."""
        rows = [row for row in self.rows if row.beam == beam and row.name.startswith("ctranslate2")]
        return min(rows, key=lambda row: statistics.median(row.medians), default=None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def as_markdown(report: Report) -> str:
    """The tables."""
    lines = [
        f"# Decoding speed: {report.title}",
        "",
        "Made by `benchmarks/decode.py`, which says how.",
        "",
        *(f"* {name}: {text}" for name, text in report.how.items()),
        *(f"* {fact}" for fact in report.facts),
    ]
    for beam in sorted({row.beam for row in report.rows}, reverse=True):
        lines += ["", f"## {'Greedy' if beam == 1 else f'Beam {beam}'}", "", *HEADER]
        lines += [table_row(report, row) for row in report.rows if row.beam == beam]
    if report.starts:
        lines += ["", "## From the shell, ten short sentences", "", "| command | median, s | lowest | highest |"]
        lines += ["|---|---|---|---|"]
        for start in report.starts:
            figures = (statistics.median(start.seconds), min(start.seconds), max(start.seconds))
            lines.append(f"| {start.label} | {' | '.join(f'{one:.2f}' for one in figures)} |")
    if report.left_out:
        lines += ["", "Not measured:", "", *(f"* {label}: {reason}" for label, reason in report.left_out.items())]
    lines += ["", "## Chosen and tried", "", "| system | beam | measured with | single sentences with | tried |"]
    lines += ["|---|---|---|---|---|"]
    lines += [
        f"| {row.label} | {row.beam} | {row.how} | {row.how_single} | {'; '.join(row.trials)} |" for row in report.rows
    ]
    versions = sorted({row.versions for row in report.rows})
    lines += ["", f"Versions: {'; '.join(versions)}."]
    return "\n".join(lines) + "\n"


HEADER = (
    "| system | tokens/s, median | lowest | highest | times CTranslate2's best | sentences/s "
    "| one sentence, ms, median | 95th percentile | times CTranslate2's quickest | loading, s, median "
    "| highest memory, MB | BLEU |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def table_row(report: Report, row: Row) -> str:
    """Figures of one system."""
    best, quickest = report.best_peer(row.beam), report.quickest_peer(row.beam)
    every = [one for seconds in row.single for one in seconds]
    cells = [
        row.label + (f" ({row.num_wrong} outputs of another length)" if row.num_wrong else ""),
        f"{row.speed:,.0f}",
        f"{min(row.tokens_per_second):,.0f}",
        f"{max(row.tokens_per_second):,.0f}",
        f"{ratio(row.tokens_per_second, best.tokens_per_second):.2f}" if best else "",
        f"{statistics.median(row.sentences_per_second):,.1f}",
        f"{1000 * statistics.median(row.medians):.1f}",
        f"{1000 * percentile(every, 0.95):.1f}",
        f"{ratio(row.medians, quickest.medians):.2f}" if quickest else "",
        f"{statistics.median(row.loading):.2f}",
        f"{row.peak_bytes / 2**20:,.0f}",
        "" if row.bleu is None else f"{row.bleu:.2f}",
    ]
    return f"| {' | '.join(cells)} |"
