"""What benchmarks that go through the command line share."""

import subprocess
import sys


def malmoi(*words: str) -> str:
    """Standard output of a command; its messages are let through."""
    return subprocess.run(
        [sys.executable, "-m", "malmoi", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def table(rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table, the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
