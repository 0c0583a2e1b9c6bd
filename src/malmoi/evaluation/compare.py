"""Is one system better than another, or was it luck? Paired bootstrap resampling (Koehn, 2004).

In: two outputs for the same segments and their right answers. Out: for each metric both scores, the difference with its
95 % interval, a p-value and how often the system won, with the number of samples and the seed in the signature.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malmoi.errors import ConfigError
from malmoi.evaluation.metrics import Counts, Measurement, MetricOptions, TextMetric, measure_all
from malmoi.evaluation.references import References

NUM_SAMPLES = 1000
# sacrebleu's own, so that both draw the same samples.
SEED = 12345
# Numbers of drawn segments held in memory at once.
SAMPLES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Difference:
    """One metric: `difference` is system minus baseline, its interval holds 95 % of the samples.

    `p_value` is two-sided: how often samples, moved so that their mean difference is 0, differ by as much as the two
    outputs do. `wins` is the share of samples in which the system is the better one.
    """

    metric: TextMetric
    label: str
    system: float
    baseline: float
    difference: float
    interval: tuple[float, float]
    system_interval: tuple[float, float]
    baseline_interval: tuple[float, float]
    p_value: float
    wins: float
    num_segments: int
    signature: str
    higher_is_better: bool


@dataclass(frozen=True)
class Comparison:
    """All metrics of one system against one baseline."""

    system: str
    baseline: str
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Keys: system, baseline, differences (a list of objects with the fields of `Difference`)."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A table for people."""
        rows = [f"{self.system} against {self.baseline}"]
        for one in self.differences:
            rows.append(
                f"  {one.label}: {one.system:.2f} against {one.baseline:.2f}, difference {one.difference:+.2f} "
                f"[{one.interval[0]:+.2f}, {one.interval[1]:+.2f}], p = {one.p_value:.4f}, "
                f"better in {100 * one.wins:.1f} % of the samples"
            )
            rows.append(f"    {one.signature}  {one.num_segments} segments")
        return rows


def compare_outputs(
    outputs: Sequence[str],
    baseline_outputs: Sequence[str],
    references: References,
    *,
    metrics: Sequence[TextMetric] = ("bleu", "chrf", "ter"),
    options: MetricOptions | None = None,
    names: tuple[str, str] = ("system", "baseline"),
    num_samples: int = NUM_SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compare two outputs; `names` are those of the system and the baseline.

    Raises `DataError` where an output has not one line per segment, `ConfigError` for fewer than 100 samples.
    """
    if num_samples < 100:
        raise ConfigError(f"a bootstrap needs at least 100 samples, not {num_samples}")
    ours = measure_all(metrics, outputs, references, options)
    theirs = measure_all(metrics, baseline_outputs, references, options)
    pairs = zip(ours, theirs, strict=True)
    return Comparison(*names, tuple(compare_measurements(one, other, num_samples, seed) for one, other in pairs))


def compare_measurements(system: Measurement, baseline: Measurement, num_samples: int, seed: int) -> Difference:
    """Draw segments with replacement, the same ones for both systems, and score each sample."""
    system_scores, baseline_scores = resample(system, baseline, num_samples, seed)
    differences = system_scores - baseline_scores
    real = system.score()
    real_baseline = baseline.score()
    difference = real.value - real_baseline.value
    # "At least as far": the same system twice must give 1, and a hair of rounding must not count as a difference.
    as_far = np.abs(differences - differences.mean()) >= abs(difference) - 1e-9
    better = differences > 0 if system.higher_is_better else differences < 0
    return Difference(
        metric=system.metric,
        label=system.label,
        system=real.value,
        baseline=real_baseline.value,
        difference=difference,
        interval=interval(differences),
        system_interval=interval(system_scores),
        baseline_interval=interval(baseline_scores),
        p_value=(int(as_far.sum()) + 1) / (num_samples + 1),
        wins=float(better.mean()),
        num_segments=real.num_segments,
        signature=f"{max(system.signature, baseline.signature, key=len)}|bs:{num_samples}|seed:{seed}",
        higher_is_better=system.higher_is_better,
    )


def resample(
    system: Measurement, baseline: Measurement, num_samples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of both systems on each sample; memory does not grow with the number of samples."""
    num_segments = len(system.counts)
    generator = np.random.default_rng(seed)
    at_once = max(1, SAMPLES_AT_ONCE // num_segments)
    system_scores: list[float] = []
    baseline_scores: list[float] = []
    for first in range(0, num_samples, at_once):
        drawn = generator.choice(num_segments, size=(min(at_once, num_samples - first), num_segments), replace=True)
        for sample in drawn:
            times = np.bincount(sample, minlength=num_segments).astype(np.float64)
            system_scores.append(score_sample(system, times))
            baseline_scores.append(score_sample(baseline, times))
    return np.array(system_scores), np.array(baseline_scores)


def score_sample(measurement: Measurement, times: Counts) -> float:
    """The score of a sample in which segment i stands `times[i]` times."""
    return measurement.value_of(times @ measurement.counts)


def interval(scores: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 %: a fortieth of the samples lies outside at each end."""
    ordered = np.sort(scores)
    outside = len(ordered) // 40
    return float(ordered[outside]), float(ordered[len(ordered) - outside - 1])
