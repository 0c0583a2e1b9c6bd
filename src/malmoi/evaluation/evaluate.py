"""How good is a model, or an output?

In: a `Translator` and sources, or outputs that someone has made, with right answers. Out: a `Report`: scores with their
signatures, the same by length of the source, the likelihood of the right answers, and warnings. Training measures with
the same functions (`make_validation`), so that its scores are those that translating and evaluating give later.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from malmoi.config.decoding import DecodingConfig
from malmoi.config.training import Metric
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import DataError
from malmoi.evaluation.metrics import (
    Measurement,
    MetricOptions,
    Score,
    SymbolUnit,
    TextMetric,
    measure_all,
    perplexity,
)
from malmoi.evaluation.references import References, plain_text_warnings
from malmoi.models.interface import Seq2Seq
from malmoi.text.tokenizer import Tokenizers
from malmoi.translate import Translator

WORD_EDGES = (5, 10, 15, 20, 30, 40, 60)
CHARACTER_EDGES = (4, 6, 8, 10, 12, 16, 24)
FEWEST_DIFFERENT = 30
"""Different answers that must be asked for before the variety of outputs says something."""


@dataclass(frozen=True)
class Bucket:
    """Scores of the segments whose sources have `shortest` to `longest` words or characters; None is without end."""

    unit: Literal["words", "characters"]
    shortest: int
    longest: int | None
    num_segments: int
    scores: tuple[Score, ...]

    @property
    def label(self) -> str:
        return f"{self.shortest}-{self.longest}" if self.longest is not None else f"{self.shortest}+"


@dataclass(frozen=True)
class Likelihood:
    """What the model gives the first right answers, without smoothing; end symbols count as tokens and characters."""

    negative_log_likelihood: float
    num_tokens: int
    num_characters: int
    perplexity_per_token: float
    perplexity_per_character: float


@dataclass(frozen=True)
class Report:
    """All that was measured on one output. `outputs` are the texts themselves, which the JSON leaves out.

    `distinct_outputs` is 0 where all outputs are the same, 1 where they are as varied as the right answers, None where
    these are too few or too alike to tell.
    """

    system: str
    num_segments: int
    scores: tuple[Score, ...]
    buckets: tuple[Bucket, ...] = ()
    likelihood: Likelihood | None = None
    distinct_outputs: float | None = None
    decoding: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    outputs: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Keys: system, num_segments, scores, buckets, likelihood, distinct_outputs, decoding, warnings."""
        fields = asdict(self)
        del fields["outputs"]
        return fields

    def lines(self) -> list[str]:
        """A table for people."""
        rows = [f"{self.system}: {self.num_segments} segments"]
        rows += [f"  {score.label:18} {score.value:7.2f}  {score.signature}" for score in self.scores]
        if self.likelihood is not None:
            rows.append(
                f"  perplexity {self.likelihood.perplexity_per_token:.3f} per token, "
                f"{self.likelihood.perplexity_per_character:.3f} per character"
            )
        if self.distinct_outputs is not None:
            rows.append(f"  outputs are {100 * self.distinct_outputs:.1f} % as varied as the right answers")
        if self.buckets:
            names = "".join(f"{score.label:>19}" for score in self.scores)
            rows.append(f"  {'source ' + self.buckets[0].unit:>17} {'segments':>9}{names}")
        for bucket in self.buckets:
            values = "".join(f"{score.value:19.2f}" for score in bucket.scores)
            rows.append(f"  {bucket.label:>17} {bucket.num_segments:9d}{values}")
        return rows + [f"  warning: {warning}" for warning in self.warnings]


def evaluate_output(
    outputs: Sequence[str],
    references: References,
    *,
    metrics: Sequence[TextMetric] | None = None,
    options: MetricOptions | None = None,
    sources: Sequence[str] | None = None,
    system: str = "output",
) -> Report:
    """Score texts against right answers; with `sources`, also by length and how varied outputs are.

    `metrics` left out: segment and symbol error where words are the symbols, else BLEU, chrF and TER.
    Raises `DataError`, with both counts, where the numbers of outputs, sources and right answers differ.
    """
    options = options or MetricOptions()
    references.check(len(outputs))
    if sources is not None and len(sources) != len(outputs):
        raise DataError(f"there are {len(sources)} sources but {len(outputs)} outputs: one line is needed for each")
    measurements = measure_all(metrics or default_metrics(options.symbols), outputs, references, options)
    return Report(
        system=system,
        num_segments=len(outputs),
        scores=tuple(one.score() for one in measurements),
        buckets=score_buckets(measurements, sources) if sources is not None else (),
        distinct_outputs=distinct_outputs(sources, references, outputs) if sources is not None else None,
        warnings=tuple(plain_text_warnings(outputs, references, options.lowercase)),
        outputs=tuple(outputs),
    )


def default_metrics(symbols: SymbolUnit) -> tuple[TextMetric, ...]:
    """What is asked of pronunciations and the like, and what of sentences."""
    return ("segment_error", "ser") if symbols == "words" else ("bleu", "chrf", "ter")


def default_symbols(tokenizers: Tokenizers) -> SymbolUnit:
    """What error rates count for a model: the words of a `words` target, otherwise characters."""
    return "words" if tokenizers.target.kind == "words" else "characters"


def distinct_outputs(sources: Sequence[str], references: References, outputs: Sequence[str]) -> float | None:
    """0 where all outputs are the same, 1 where they are as varied as sources and right answers ask for.

    None where that is too little to tell: fewer than `FEWEST_DIFFERENT` different ones, or one right answer to most
    segments, which a model that has learned little gives to all of them and is mostly right.
    """
    answers = Counter(references.answers)
    num_wanted = min(len(set(sources)), len(answers))
    if num_wanted < FEWEST_DIFFERENT or 2 * max(answers.values()) > len(references):
        return None
    return min(1.0, (len(set(outputs)) - 1) / (num_wanted - 1))


def score_buckets(measurements: Sequence[Measurement], sources: Sequence[str]) -> tuple[Bucket, ...]:
    """Scores by length of the source, in characters where most sources are single words; without empty buckets."""
    words = [len(source.split()) for source in sources]
    unit: Literal["words", "characters"] = "words" if sum(words) >= 2 * len(words) else "characters"
    lengths = np.array(words if unit == "words" else [len(source) for source in sources])
    edges = WORD_EDGES if unit == "words" else CHARACTER_EDGES
    buckets: list[Bucket] = []
    for above, longest in zip((-1, *edges), (*edges, None), strict=True):
        rows: NDArray[np.bool_] = (lengths > above) & (lengths <= (longest if longest is not None else lengths.max()))
        if rows.any():
            scores = tuple(one.score(rows) for one in measurements)
            buckets.append(Bucket(unit, above + 1, longest, int(rows.sum()), scores))
    return tuple(buckets)


def evaluate_model(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    *,
    metrics: Sequence[Metric] | None = None,
    options: MetricOptions | None = None,
    decoding: Mapping[str, Any] | DecodingConfig | None = None,
    system: str = "model",
) -> Report:
    """Translate the sources and score what comes out; `loss` among the metrics adds the likelihood of the answers.

    `decoding` overrides the model's own settings; what was used stands in the report. `options` left out: the model's
    tokeniser decides what symbols are. Errors as for `evaluate_output` and `Translator.translate`.
    """
    options = options or MetricOptions(symbols=default_symbols(translator.tokenizers))
    references.check(len(sources))
    used = translator.resolve(decoding)
    translations = translator.translate(sources, options=used)
    wanted = text_metrics(metrics) if metrics is not None else default_metrics(options.symbols)
    outputs = [translation.text for translation in translations]
    report = evaluate_output(outputs, references, metrics=wanted, options=options, sources=sources, system=system)
    failed = [number for number, one in enumerate(translations, start=1) if one.error is not None]
    warnings = list(report.warnings)
    if failed:
        warnings.append(f"{len(failed)} segments could not be translated and count as empty, the first is {failed[0]}")
    likelihood = None
    if metrics is not None and "loss" in metrics:
        likelihood = measure_likelihood(translator, sources, [right[0] for right in references.answers])
    return Report(
        system=report.system,
        num_segments=report.num_segments,
        scores=report.scores,
        buckets=report.buckets,
        likelihood=likelihood,
        distinct_outputs=report.distinct_outputs,
        decoding=used.model_dump(mode="json"),
        warnings=tuple(warnings),
        outputs=report.outputs,
    )


def text_metrics(metrics: Sequence[Metric]) -> tuple[TextMetric, ...]:
    """Those metrics that need decoded text: all but `loss`."""
    return tuple(metric for metric in metrics if metric != "loss")


def measure_likelihood(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Likelihood:
    """Force the model through the targets; raises `DataError` for a pair that it cannot take."""
    scored = translator.score(list(zip(sources, targets, strict=True)))
    for number, one in enumerate(scored, start=1):
        if one.error is not None:
            raise DataError(f"segment {number} has no likelihood: {one.error}")
    total = -sum(one.log_probability for one in scored)
    num_tokens = sum(len(one.tokens) for one in scored)
    num_characters = sum(len(target) + 1 for target in targets)
    return Likelihood(
        total, num_tokens, num_characters, perplexity(total, num_tokens), perplexity(total, num_characters)
    )


Work: TypeAlias = Callable[[Sequence[str]], list[str]]
Divide: TypeAlias = Callable[[Sequence[str], Work], list[str]]
"""(texts, work) -> what the work makes of all texts, in their order."""


def undivided(texts: Sequence[str], work: Work) -> list[str]:
    """All the work is done here."""
    return work(texts)


def make_validation(
    tokenizers: Tokenizers,
    sources: Sequence[str],
    references: References,
    *,
    metrics: Sequence[Metric],
    decoding: DecodingConfig,
    options: MetricOptions | None = None,
) -> Callable[..., dict[str, float]]:
    """What training calls to measure decoded text: a function from a network to scores by name of the metric.

    `distinct_outputs` stands among them where it can be told. The road is that of `evaluate_model`, with the network on
    its own device and in evaluation mode (the mode that it was in is put back), so that translating and evaluating
    later with the same weights and settings gives the same scores. Without a metric that needs text, nothing is decoded
    and nothing told. A second argument may divide the translating among several processes.
    """
    wanted = text_metrics(metrics)
    options = options or MetricOptions(symbols=default_symbols(tokenizers))
    references.check(len(sources))

    def validate(network: Seq2Seq, divide: Divide = undivided) -> dict[str, float]:
        if not wanted:
            return {}
        was_training = network.training
        network.eval()
        try:
            translator = Translator(ModelScorer(network), tokenizers, decoding, tell=False)
            outputs = divide(sources, lambda some: [one.text for one in translator.translate(some)])
            report = evaluate_output(outputs, references, metrics=wanted, options=options, sources=sources)
        finally:
            network.train(was_training)
        scores: dict[str, float] = {score.metric: score.value for score in report.scores}
        return scores if report.distinct_outputs is None else {**scores, "distinct_outputs": report.distinct_outputs}

    return validate
