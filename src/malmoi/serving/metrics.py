"""What a service counts, as Prometheus reads it.

In: counts and measured seconds, from any thread. Out: text in Prometheus' exposition format, version 0.0.4. No value
and no label holds text of a user; routes are names of ours.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator

COUNTERS = {
    "requests": "Answered requests by route and HTTP status.",
    "characters": "Characters of accepted texts.",
    "sentences": "Sentences that were translated.",
    "left_sentences": "Sentences that nobody waited for any more.",
    "tokens": "Tokens of translations.",
    "steps": "Steps of batches.",
    "loads": "Models that were loaded.",
}
GAUGES = {
    "waiting_tokens": "Source tokens that wait for their turn.",
    "waiting_sentences": "Sentences that wait for their turn.",
    "live_sentences": "Sentences in a batch.",
    "active_requests": "Requests that are being answered.",
}
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Numbers by name and labels."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[tuple[str, Labels], float] = {}
        self.seconds: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Count."""
        assert name in COUNTERS, name
        key = (name, tuple(sorted(labels.items())))
        with self.lock:
            self.values[key] = self.values.get(key, 0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        """What is so just now."""
        assert name in GAUGES, name
        with self.lock:
            self.values[name, tuple(sorted(labels.items()))] = value

    def observe(self, seconds: float, **labels: str) -> None:
        """How long a request took."""
        key = tuple(sorted(labels.items()))
        with self.lock:
            counts = self.seconds.setdefault(key, [0] * (len(BUCKETS) + 1))
            counts[bisect_left(BUCKETS, seconds)] += 1
            self.sums[key] = self.sums.get(key, 0.0) + seconds

    def as_text(self) -> str:
        """All of it."""
        with self.lock:
            return "\n".join([*self.plain_lines(), *self.histogram_lines(), ""])

    def plain_lines(self) -> Iterator[str]:
        kinds = [(COUNTERS, "counter", "_total"), (GAUGES, "gauge", "")]
        for names, kind, suffix in kinds:
            for name, text in names.items():
                yield f"# HELP malmoi_{name}{suffix} {text}"
                yield f"# TYPE malmoi_{name}{suffix} {kind}"
                found = sorted((labels, value) for (one, labels), value in self.values.items() if one == name)
                for labels, value in found:
                    yield f"malmoi_{name}{suffix}{spell(labels)} {value:.15g}"

    def histogram_lines(self) -> Iterator[str]:
        name = "malmoi_request_seconds"
        yield f"# HELP {name} Time from the head of a request to the end of its answer."
        yield f"# TYPE {name} histogram"
        for labels, counts in sorted(self.seconds.items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f"{name}_bucket{spell((*labels, ('le', bound)))} {total}"
            yield f"{name}_sum{spell(labels)} {self.sums[labels]:.6f}"
            yield f"{name}_count{spell(labels)} {total}"


def spell(labels: Labels) -> str:
    """Labels in braces, with what would end them escaped."""
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
