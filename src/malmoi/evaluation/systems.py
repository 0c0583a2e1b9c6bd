"""Several systems, each trained once or with several seeds, measured on the same segments.

In: outputs of each system, the same sources and right answers for all. Out: `Quality`: scores with their spread over
seeds, each system against each other (paired bootstrap), scores by length of the source, and segments to look at.

Counts of the seeds of a system are added up segment by segment: differences, intervals and lengths are those of all its
outputs taken together, and a bootstrap sample draws a segment with the outputs of all seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from malmoi.errors import DataError
from malmoi.evaluation.compare import NUM_SAMPLES, SEED, Difference, compare_measurements, interval, score_sample
from malmoi.evaluation.evaluate import Bucket, score_buckets
from malmoi.evaluation.metrics import Measurement, MetricOptions, TextMetric, measure_all
from malmoi.evaluation.references import References

SIGNIFICANCE = 0.05
"""Shared out among all pairs of systems (Bonferroni), so that with more systems luck is not found more often."""

Outputs: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""By the name of the system: the texts of each seed, all in the order of the sources."""


@dataclass(frozen=True)
class SystemScore:
    """One metric of one system: a value for each seed, their mean and standard deviation (None for a single seed).

    `interval` holds 95 % of the bootstrap samples of all its outputs together.
    """

    metric: TextMetric
    label: str
    signature: str
    higher_is_better: bool
    values: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: tuple[float, float]


@dataclass(frozen=True)
class Pairing:
    """One system against another by one metric; `is_clear`: luck is an unlikely reason, all pairs considered."""

    system: str
    baseline: str
    is_clear: bool
    difference: Difference


@dataclass(frozen=True)
class LengthScore:
    """Scores of the segments of one length by the name of the system, with 95 % intervals."""

    label: str
    num_segments: int
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Lengths:
    """Quality by length of the source, in `unit`, by one metric."""

    metric: TextMetric
    label: str
    higher_is_better: bool
    unit: str
    rows: tuple[LengthScore, ...]


@dataclass(frozen=True)
class Chosen:
    """A segment to look at, by its number from 1; `scores` of the outputs of the first seeds, `spread` between them."""

    number: int
    scores: Mapping[str, float]
    spread: float


@dataclass(frozen=True)
class Quality:
    """All that was measured. `evenly` are segments at equal distances, `apart` those where the systems differ most."""

    num_segments: int
    num_samples: int
    scores: Mapping[str, tuple[SystemScore, ...]]
    pairings: tuple[Pairing, ...]
    lengths: Lengths
    segment_label: str
    """The metric of `Chosen.scores`."""
    evenly: tuple[Chosen, ...]
    apart: tuple[Chosen, ...]


def compare_systems(
    outputs: Outputs,
    sources: Sequence[str],
    references: References,
    *,
    metrics: Sequence[TextMetric],
    options: MetricOptions | None = None,
    num_examples: int = 6,
    num_samples: int | None = None,
) -> Quality:
    """Measure and compare; the first of `metrics` is the one for lengths.

    `num_samples` bootstrap samples are drawn; left out, as many as can show a difference between so many systems.
    Raises `DataError` where a system has not one output per source.
    """
    options = options or MetricOptions()
    num_samples = samples_for(len(outputs)) if num_samples is None else num_samples
    if len(sources) != len(references):
        raise DataError(f"there are {len(sources)} sources but {len(references)} right answers")
    measured = {
        name: [measure_all(metrics, texts, references, options) for texts in seeds] for name, seeds in outputs.items()
    }
    together = {name: [pooled(seeds) for seeds in zip(*all_seeds, strict=True)] for name, all_seeds in measured.items()}
    scores = {
        name: tuple(
            score_of(one, [seed[place] for seed in measured[name]], num_samples) for place, one in enumerate(row)
        )
        for name, row in together.items()
    }
    segment_metric: TextMetric = "ser" if options.symbols == "words" else "chrf"
    by_segment = {
        name: segment_scores(seeds[0], segment_metric, references, options) for name, seeds in outputs.items()
    }
    return Quality(
        num_segments=len(sources),
        num_samples=num_samples,
        scores=scores,
        pairings=pair_up(together, num_samples),
        lengths=score_lengths({name: row[0] for name, row in together.items()}, sources, num_samples),
        segment_label=measure_all([segment_metric], [""], References((("",),)), options)[0].label,
        evenly=choose_evenly(by_segment, len(sources), num_examples),
        apart=choose_apart(by_segment, sources, num_examples),
    )


def samples_for(num_systems: int) -> int:
    """Bootstrap samples enough for the least p-value, 1 / (samples + 1), to be clear by half among so many pairs."""
    num_pairs = num_systems * (num_systems - 1) // 2
    return max(NUM_SAMPLES, round(2 * num_pairs / SIGNIFICANCE))


def pooled(seeds: Sequence[Measurement]) -> Measurement:
    """One measurement of all seeds: counts of a segment are those of all its outputs."""
    return replace(seeds[0], counts=np.sum([one.counts for one in seeds], axis=0))


def score_of(together: Measurement, seeds: Sequence[Measurement], num_samples: int) -> SystemScore:
    """The scores of the seeds and what can be said of them."""
    values = tuple(one.score().value for one in seeds)
    return SystemScore(
        together.metric,
        together.label,
        together.signature,
        together.higher_is_better,
        values,
        fmean(values),
        stdev(values) if len(values) > 1 else None,
        score_interval(together, num_samples),
    )


def score_interval(measurement: Measurement, num_samples: int) -> tuple[float, float]:
    """The middle 95 % of scores of samples drawn with replacement."""
    num_segments = len(measurement.counts)
    generator = np.random.default_rng(SEED)
    samples = (generator.choice(num_segments, size=num_segments, replace=True) for _ in range(num_samples))
    drawn = (np.bincount(sample, minlength=num_segments).astype(np.float64) for sample in samples)
    return interval(np.array([score_sample(measurement, times) for times in drawn]))


def pair_up(together: Mapping[str, Sequence[Measurement]], num_samples: int) -> tuple[Pairing, ...]:
    """Each system against each one before it, metric by metric."""
    pairs = [(later, earlier) for earlier, later in combinations(together, 2)]
    found: list[Pairing] = []
    for system, baseline in pairs:
        for ours, theirs in zip(together[system], together[baseline], strict=True):
            difference = compare_measurements(ours, theirs, num_samples, SEED)
            found.append(Pairing(system, baseline, difference.p_value * len(pairs) < SIGNIFICANCE, difference))
    return tuple(found)


def score_lengths(together: Mapping[str, Measurement], sources: Sequence[str], num_samples: int) -> Lengths:
    """The scores of each system by length of the source."""
    first = next(iter(together.values()))
    buckets = score_buckets(list(together.values()), sources)
    rows = [
        LengthScore(
            bucket.label,
            bucket.num_segments,
            {name: score.value for name, score in zip(together, bucket.scores, strict=True)},
            {name: score_interval(part_of(one, bucket, sources), num_samples) for name, one in together.items()},
        )
        for bucket in buckets
    ]
    return Lengths(first.metric, first.label, first.higher_is_better, buckets[0].unit, tuple(rows))


def part_of(measurement: Measurement, bucket: Bucket, sources: Sequence[str]) -> Measurement:
    """The measurement of the segments of a bucket alone."""
    lengths = np.array([len(source.split()) if bucket.unit == "words" else len(source) for source in sources])
    rows: NDArray[np.bool_] = (lengths >= bucket.shortest) & (lengths <= (bucket.longest or lengths.max()))
    return replace(measurement, counts=measurement.counts[rows])


def segment_scores(
    outputs: Sequence[str], metric: TextMetric, references: References, options: MetricOptions
) -> list[float]:
    """The score of each segment alone."""
    (measurement,) = measure_all([metric], outputs, references, options)
    return [measurement.value_of(counts) for counts in measurement.counts]


def choose_evenly(by_segment: Mapping[str, Sequence[float]], num_segments: int, count: int) -> tuple[Chosen, ...]:
    """Segments at equal distances from the first to the last, whatever came out."""
    stride = max(1, num_segments // count)
    return tuple(make_chosen(by_segment, place) for place in range(stride // 2, num_segments, stride)[:count])


def choose_apart(by_segment: Mapping[str, Sequence[float]], sources: Sequence[str], count: int) -> tuple[Chosen, ...]:
    """The segments whose best and worst output lie furthest apart, each source once; of equal ones the first."""
    chosen = [make_chosen(by_segment, place) for place in range(len(sources))]
    found: dict[str, Chosen] = {}
    for one in sorted(chosen, key=lambda one: -one.spread):
        found.setdefault(sources[one.number - 1], one)
    return tuple(one for one in list(found.values())[:count] if one.spread > 0)


def make_chosen(by_segment: Mapping[str, Sequence[float]], place: int) -> Chosen:
    scores = {name: values[place] for name, values in by_segment.items()}
    return Chosen(place + 1, scores, max(scores.values()) - min(scores.values()))
