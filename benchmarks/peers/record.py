"""From what probes wrote to updates, and from updates to a speed. Standard library only."""

import json
from collections.abc import Sequence
from pathlib import Path

from peers.setting import Setting, Update


def read_record(setting: Setting) -> list[Update]:
    """Updates that all processes of a turn have made so far: tokens are summed, the first process has the clock."""
    ranks = [read_lines(Path(f"{setting.record}.{rank}")) for rank in range(setting.processes)]
    return [
        Update(rows[0][0], sum(row[1] for row in rows), rows[0][2])
        for rows in zip(*ranks, strict=False)  # a process may be an update ahead
    ]


def read_lines(path: Path) -> list[tuple[float, int, float | None]]:
    """Complete lines of one process."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").split("\n")[:-1]
    return [(float(seconds), int(tokens), loss) for seconds, tokens, loss in map(json.loads, lines)]


def tokens_per_second(updates: Sequence[Update], warm_up: int) -> float:
    """Real target tokens per second of the whole updates after the warm-up."""
    assert warm_up > 0 and len(updates) > warm_up
    tokens = sum(update.tokens for update in updates[warm_up:])
    return tokens / (updates[-1].seconds - updates[warm_up - 1].seconds)
