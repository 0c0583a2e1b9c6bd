"""Texts to numbers: each score with its signature and its number of segments.

In: outputs and `References`. Out: a `Measurement`, a table of counts with one row per segment. The sum of any set of
rows gives the score of those segments, so that a corpus, a bucket of lengths and a bootstrap sample are scored alike.
BLEU, chrF and TER are sacrebleu's, counts and signatures included; error rates are ours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Literal, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from malmoi.config.run import WORD_ERROR_OF_SYMBOLS
from malmoi.config.training import higher_is_better
from malmoi.errors import ConfigError
from malmoi.evaluation.distance import edit_distance
from malmoi.evaluation.references import References
from malmoi.text.lines import normalize

SymbolMetric = Literal["exact", "segment_error", "wer", "ser"]
TextMetric = Literal["bleu", "chrf", "ter"] | SymbolMetric
SymbolUnit = Literal["words", "characters"]
Counts: TypeAlias = NDArray[np.float64]

LABELS: dict[TextMetric, str] = {
    "bleu": "BLEU",
    "chrf": "chrF2++",
    "ter": "TER",
    "exact": "exact match",
    "segment_error": "segment error rate",
    "wer": "word error rate",
    "ser": "symbol error rate",
}

# Those of sacrebleu that need no download.
TOKENIZERS = ("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab")


@dataclass(frozen=True)
class MetricOptions:
    """What changes a score, and therefore stands in its signature.

    `tokenize` is sacrebleu's for BLEU alone. `symbols` says what exact match and error rates compare: the parts between
    white space, or single characters.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    symbols: SymbolUnit = "characters"

    def __post_init__(self) -> None:
        if self.tokenize not in TOKENIZERS:
            raise ConfigError(f"tokenize must be one of {', '.join(TOKENIZERS)}, not {self.tokenize!r}")


@dataclass(frozen=True)
class Score:
    """One number, in percent, with what is needed to say it in public."""

    metric: TextMetric
    label: str
    value: float
    signature: str
    num_segments: int
    higher_is_better: bool

    def to_json(self) -> dict[str, Any]:
        """Keys: metric, label, value, signature, num_segments, higher_is_better."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.label} {self.value:.2f}  {self.signature}  {self.num_segments} segments"


@dataclass(frozen=True)
class Measurement:
    """One metric on one output: `counts` has a row per segment, `value_of` turns a sum of rows into a score."""

    metric: TextMetric
    signature: str
    counts: Counts
    value_of: Callable[[Counts], float]

    @property
    def label(self) -> str:
        """What people call the metric."""
        return LABELS[self.metric]

    @property
    def higher_is_better(self) -> bool:
        """The direction of the metric."""
        return higher_is_better(self.metric)

    def score(self, rows: NDArray[np.bool_] | None = None) -> Score:
        """The score of all segments, or of those that `rows` marks."""
        counts = self.counts if rows is None else self.counts[rows]
        value = self.value_of(counts.sum(axis=0))
        return Score(self.metric, self.label, value, self.signature, len(counts), self.higher_is_better)


def measure_all(
    metrics: Sequence[TextMetric], outputs: Sequence[str], references: References, options: MetricOptions | None = None
) -> list[Measurement]:
    """Each metric on texts brought to the form in which models write (NFC).

    Where that changed a text, the signature says `norm:nfc`; elsewhere scores are those of sacrebleu on the files.
    """
    plain_outputs = [normalize(output) for output in outputs]
    plain_answers = tuple(tuple(normalize(answer) for answer in right) for right in references.answers)
    changed = plain_outputs != list(outputs) or plain_answers != references.answers
    measurements = [measure(metric, plain_outputs, References(plain_answers), options) for metric in metrics]
    if not changed:
        return measurements
    return [replace(one, signature=f"norm:nfc|{one.signature}") for one in measurements]


def measure(
    metric: TextMetric, outputs: Sequence[str], references: References, options: MetricOptions | None = None
) -> Measurement:
    """Count what `metric` needs, segment by segment.

    Raises `DataError` unless there is one output per segment, `ConfigError` for a tokeniser that is not installed.
    """
    options = options or MetricOptions()
    references.check(len(outputs))
    match metric:
        case "bleu":
            return measure_by_sacrebleu(metric, bleu(options), outputs, references)
        case "chrf":
            return measure_by_sacrebleu(metric, CHRF(word_order=2, lowercase=options.lowercase), outputs, references)
        case "ter":
            return measure_by_sacrebleu(metric, TER(), outputs, references)
        case "exact" | "segment_error" | "wer" | "ser":
            return measure_symbols(metric, outputs, references, options)
        case _:
            assert_never(metric)


def bleu(options: MetricOptions) -> BLEU:
    """sacrebleu's BLEU; `force` silences its own warning about tokenised text, of which ours knows more."""
    try:
        return BLEU(tokenize=options.tokenize, lowercase=options.lowercase, force=True)
    except (RuntimeError, ImportError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"tokenize = {options.tokenize} cannot be used here: {message}") from error


def measure_by_sacrebleu(
    metric: TextMetric, scorer: SacrebleuMetric, outputs: Sequence[str], references: References
) -> Measurement:
    """sacrebleu's counts per segment, the ones that its own significance tests add up."""
    # sacrebleu has no public name for counts per segment; a test holds the sums against its public corpus_score.
    counts = np.array(
        scorer._extract_corpus_statistics(list(outputs), references.as_sets()),  # pyright: ignore[reportPrivateUsage, reportArgumentType]
        dtype=np.float64,
    )

    def value_of(total: Counts) -> float:
        return float(scorer._compute_score_from_stats(total.tolist()).score)  # pyright: ignore[reportPrivateUsage]

    return Measurement(metric, str(scorer.get_signature()), counts, value_of)


def measure_symbols(
    metric: SymbolMetric, outputs: Sequence[str], references: References, options: MetricOptions
) -> Measurement:
    """Shares of right and of wrong segments, edits per word and per symbol, from distances to the nearest right answer.

    `wer` counts words whatever the symbols are; where they are words, `ser` is the same number, and people who measure
    pronunciations mean `segment_error` by it: hence a `ConfigError`.
    """
    if metric == "wer":
        if options.symbols == "words":
            raise ConfigError(WORD_ERROR_OF_SYMBOLS)
        options = replace(options, symbols="words")
    pairs = [
        nearest_distance(output, right, options) for output, right in zip(outputs, references.answers, strict=True)
    ]
    distances = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    signature = symbol_signature(references, options)
    if metric in ("wer", "ser"):
        return Measurement(metric, signature, distances, percentage)
    counted_ones = (distances[:, 0] == 0) == (metric == "exact")
    counts = np.stack([counted_ones, np.ones(len(counted_ones))], axis=1).astype(np.float64)
    return Measurement(metric, signature, counts, percentage)


def symbol_signature(references: References, options: MetricOptions) -> str:
    """Like sacrebleu's: what was compared, and by which version."""
    counts = {len(right) for right in references.answers}
    num_references = str(counts.pop()) if len(counts) == 1 else "var"
    case = "lc" if options.lowercase else "mixed"
    return f"nrefs:{num_references}|case:{case}|symbols:{options.symbols}|version:malmoi-{version('malmoi')}"


def percentage(total: Counts) -> float:
    """First sum over second, in percent; with nothing to divide by, 0 without and 100 with an error (as TER has it)."""
    if total[1] > 0:
        return float(100.0 * total[0] / total[1])
    return 100.0 if total[0] > 0 else 0.0


def to_symbols(text: str, options: MetricOptions) -> Sequence[str]:
    """What error rates compare: the parts between white space, or the characters without white space at the ends."""
    text = text.lower() if options.lowercase else text
    return text.split() if options.symbols == "words" else text.strip()


def nearest_distance(output: str, right: Sequence[str], options: MetricOptions) -> tuple[int, int]:
    """Edit distance to the nearest right answer, and that answer's length; of equally near ones the longest counts."""
    symbols = to_symbols(output, options)
    candidates = [to_symbols(answer, options) for answer in right]
    distance, negative_length = min((edit_distance(answer, symbols), -len(answer)) for answer in candidates)
    return distance, -negative_length


def perplexity(negative_log_likelihood: float, count: int) -> float:
    """exp(sum of -log p / count): per token with tokens as `count` (end symbols included), per character with those.

    Raises `ValueError` for a count below 1; beyond the largest number it is infinite.
    """
    if count < 1:
        raise ValueError(f"perplexity needs a count of at least 1, not {count}")
    mean = negative_log_likelihood / count
    return math.exp(mean) if mean < 700.0 else math.inf
