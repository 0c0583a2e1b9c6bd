"""The figures of a comparison as JSON and as Markdown. Standard library only.

The share of the ceiling counts 6 operations for each weight and each target token: 2 in the forward pass, 4 in the
backward pass. It is the same for all contestants, whatever they compute beside that.
"""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from peers.setting import DROPOUT, SMOOTHING, Size

TOOLKITS = ("eole", "sockeye", "joeynmt")
LOOPS = ("plain", "huggingface")


@dataclass(frozen=True)
class Trial:
    """A choice that was tried: its speed, or why it did not run."""

    processes: int
    threads: int
    speed: float | None
    reason: str | None


@dataclass(frozen=True)
class Row:
    """A contestant's figures over the rounds."""

    name: str
    label: str
    is_ours: bool
    speeds: list[float]
    """Target tokens per second of each of its turns."""
    peak_megabytes: float
    tokens_per_update: float
    losses: tuple[float, float] | None
    how: str
    trials: list[Trial]
    versions: str
    counted: str
    differs: str

    @property
    def median(self) -> float:
        return statistics.median(self.speeds)


@dataclass(frozen=True)
class Report:
    """All of a comparison."""

    how: dict[str, str]
    size: Size
    corpus: str
    num_parameters: int | None
    ceilings: dict[str, Any]
    rounds: int
    updates: int
    warm_up: int
    rows: list[Row]
    left_out: dict[str, str]

    @property
    def best_ceiling(self) -> float:
        """GFLOP/s of the faster type."""
        return max(self.ceilings["fp32"], self.ceilings["bf16"])

    def share(self, row: Row) -> float | None:
        """Of the ceiling of the faster type; None where malmoi did not take part to say how many weights there are."""
        if self.num_parameters is None:
            return None
        return 6 * self.num_parameters * row.median / (self.best_ceiling * 1e9)

    @property
    def maybe_ours(self) -> Row | None:
        """The faster of malmoi's rows."""
        return max((row for row in self.rows if row.is_ours), key=lambda row: row.median, default=None)

    def best_of(self, names: tuple[str, ...]) -> Row | None:
        """The fastest of some contestants, in whichever precision."""
        rows = [row for row in self.rows if row.name.removesuffix("-bf16") in names]
        return max(rows, key=lambda row: row.median, default=None)

    def summary(self) -> list[str]:
        """malmoi against the best of each kind."""
        ours = self.maybe_ours
        lines: list[str] = []
        for what, names in (("Eole, Sockeye and JoeyNMT", TOOLKITS), ("plain loop and Hugging Face", LOOPS)):
            best = self.best_of(names)
            if ours is not None and best is not None:
                lines.append(f"{ours.label} against the best of {what} ({best.label}): {ratio(ours, best):.2f} times")
        leanest = min((row for row in self.rows if not row.is_ours), key=lambda row: row.peak_megabytes, default=None)
        for row in self.rows:
            if row.is_ours and leanest is not None:
                share = row.peak_megabytes / leanest.peak_megabytes
                lines.append(f"memory of {row.label} against the leanest peer ({leanest.label}): {share:.2f} times")
        return lines

    def as_json(self) -> dict[str, Any]:
        rows = [asdict(row) | {"median": row.median, "share_of_ceiling": self.share(row)} for row in self.rows]
        return asdict(self) | {"rows": rows, "summary": self.summary()}


def ratio(ours: Row, other: Row) -> float:
    """Median of the ratios round by round, which a machine whose speed drifts disturbs less than that of medians."""
    return statistics.median(mine / theirs for mine, theirs in zip(ours.speeds, other.speeds, strict=False))


def as_markdown(report: Report) -> str:
    """The tables."""
    size, ceilings = report.size, report.ceilings
    shape = f"{size.layers}+{size.layers} layers, width {size.width}, {size.heads} heads, feed-forward {size.hidden}"
    if size.is_rnn:
        shape = f"Seq2Seq with additive attention, GRU, {size.layers}+{size.layers} layers, {size.width}/{size.hidden}"
    weights = f"{report.num_parameters:,} weights" if report.num_parameters is not None else "weights not counted"
    small = "" if ceilings["bf16_is_useful"] else f" (at {ceilings['bf16_side']}, hopeless here)"
    lines = [
        f"# Training speed: {shape}",
        "",
        "Made by `benchmarks/train.py`, which says how. Real target tokens per second of wall time.",
        "",
        *(f"* {name}: {text}" for name, text in report.how.items()),
        f"* data: {report.corpus}",
        f"* model: {weights}, dropout {DROPOUT}, label smoothing {SMOOTHING}, Adam",
        f"* {report.rounds} rounds of {report.updates} updates each after {report.warm_up} that are cut off",
        f"* product of two 2048 x 2048 matrices, {ceilings['threads']} threads ({ceilings['kernels']}): fp32 "
        f"{ceilings['fp32']:.0f} GFLOP/s, bf16 {ceilings['bf16']:.1f} GFLOP/s{small}",
        f"* share of the ceiling: 6 x weights x target tokens per second / {report.best_ceiling:.0f} GFLOP/s",
        "",
        "| contestant | median | lowest | highest | malmoi is … times as fast | share of the ceiling "
        "| highest memory, MB | target tokens per update | loss, first to last |",
        "|---|---|---|---|---|---|---|---|---|",
        *(table_row(report, row) for row in report.rows),
        "",
        *(f"* {line}" for line in report.summary()),
    ]
    if report.left_out:
        lines += ["", "Not measured:", "", *(f"* {label}: {reason}" for label, reason in report.left_out.items())]
    lines += [
        "",
        "| contestant | version | measured with (processes x threads) | tried for a few updates "
        "| tokens are counted as | differs |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for row in report.rows:
        cells = [row.label, row.versions, row.how, tried(row), row.counted, row.differs]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_row(report: Report, row: Row) -> str:
    """Figures of a contestant."""
    ours, share = report.maybe_ours, report.share(row)
    cells = [
        row.label,
        f"{row.median:,.0f}",
        f"{min(row.speeds):,.0f}",
        f"{max(row.speeds):,.0f}",
        f"{ratio(ours, row):.2f}" if ours is not None and not row.is_ours else "",
        f"{share:.1%}" if share is not None else "",
        f"{row.peak_megabytes:,.0f}",
        f"{row.tokens_per_update:,.0f}",
        f"{row.losses[0]:.2f} to {row.losses[1]:.2f}" if row.losses else "",
    ]
    return f"| {' | '.join(cells)} |"


def tried(row: Row) -> str:
    """The choices of processes and threads."""
    return "; ".join(
        f"{trial.processes} x {trial.threads}: " + (f"{trial.speed:,.0f}" if trial.speed is not None else "did not run")
        for trial in row.trials
    )
