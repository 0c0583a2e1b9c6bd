"""`malmoi evaluate`: how good a model or a file of translations is, and whether one is better than another.

In: a model folder or a text file, and pairs whose targets are right answers. Out: on standard output a table with the
signature of each score, or one JSON object: `report`, and with `--against` also `against` and `comparison`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from malmoi.commands.results import write_json, write_line
from malmoi.commands.translate import decoding_options
from malmoi.config.text import DataSource
from malmoi.config.training import Device, Metric
from malmoi.errors import ConfigError, DataError
from malmoi.evaluation.compare import Comparison, compare_outputs
from malmoi.evaluation.evaluate import (
    Report,
    default_metrics,
    default_symbols,
    evaluate_model,
    evaluate_output,
    text_metrics,
)
from malmoi.evaluation.metrics import MetricOptions, SymbolUnit
from malmoi.evaluation.references import References
from malmoi.text.cmudict import PACKAGE_PREFIX, cmudict_references, parse_package
from malmoi.text.corpus import open_corpus, sources_from_words, whole_pairs
from malmoi.text.lines import read_lines
from malmoi.translate import Translator


@dataclass(frozen=True)
class EvaluateRequest:
    """What the command line asked for."""

    system: str
    words: tuple[str, ...]
    references: tuple[str, ...]
    against: str | None
    metrics: tuple[str, ...]
    tokenize: str
    lowercase: bool
    symbols: str | None
    beam: int | None
    settings: tuple[str, ...]
    device: str
    threads: int
    as_json: bool


@dataclass(frozen=True)
class TestSet:
    """Sources with their right answers."""

    sources: list[str]
    references: References


def run_evaluate(request: EvaluateRequest) -> None:
    """Measure, compare if asked, and print."""
    metrics = check_metrics(request.metrics)
    for system in (request.system, request.against):
        if system is not None and not Path(system).exists():
            raise DataError(f"{system}: no such model folder or file of translations")
    test_set = read_test_set(sources_from_words(request.words, "DATA"), request.references)
    systems = [system for system in (request.system, request.against) if system is not None]
    translators = {
        name: Translator.load(name, device=cast(Device, request.device), threads=request.threads)
        for name in systems
        if Path(name).is_dir()
    }
    options = metric_options(request, translators.get(request.system))
    reports = [measure(name, translators.get(name), test_set, metrics, options, request) for name in systems]
    comparison = None
    if len(reports) == 2:
        names = (request.system, request.against or "")
        wanted = text_metrics(metrics) if metrics else default_metrics(options.symbols)
        comparison = compare_outputs(
            reports[0].outputs, reports[1].outputs, test_set.references, metrics=wanted, options=options, names=names
        )
    show(reports, comparison, as_json=request.as_json)


def check_metrics(names: tuple[str, ...]) -> tuple[Metric, ...]:
    """Names of metrics, all of them known."""
    for name in names:
        if name not in get_args(Metric):
            raise ConfigError(f"--metric {name}: no such metric; there are {', '.join(get_args(Metric))}")
    return cast(tuple[Metric, ...], names)


def metric_options(request: EvaluateRequest, translator: Translator | None) -> MetricOptions:
    """How to measure; a model says by itself what its symbols are, a file of translations cannot."""
    symbols = request.symbols or (default_symbols(translator.tokenizers) if translator else "characters")
    if symbols not in get_args(SymbolUnit):
        raise ConfigError(f"--symbols must be words or characters, not {symbols}")
    return MetricOptions(tokenize=request.tokenize, lowercase=request.lowercase, symbols=cast(SymbolUnit, symbols))


def read_test_set(sources: tuple[DataSource, ...], reference_files: tuple[str, ...] = ()) -> TestSet:
    """All pairs of the corpora; every pronunciation that the dictionary lists counts as right."""
    texts: list[str] = []
    answers: list[tuple[str, ...]] = []
    for source in sources:
        if source.pairs is not None and source.pairs.startswith(PACKAGE_PREFIX):
            rows = cmudict_references(parse_package(source.pairs))
        else:
            rows = [(pair.source, (pair.target,)) for pair in whole_pairs(open_corpus(source))]
        texts += [source for source, _ in rows]
        answers += [right for _, right in rows]
    for name in reference_files:
        more = list(read_lines(name))
        if len(more) != len(answers):
            raise DataError(f"{name} has {len(more)} lines, but DATA has {len(answers)} pairs")
        answers = [(*right, one) for right, one in zip(answers, more, strict=True)]
    if not answers:
        raise DataError("DATA holds no pairs: there is nothing to measure")
    return TestSet(texts, References.from_answers(answers))


def measure(
    name: str,
    translator: Translator | None,
    test_set: TestSet,
    metrics: tuple[Metric, ...],
    options: MetricOptions,
    request: EvaluateRequest,
) -> Report:
    """The report of one model or file."""
    if translator is None:
        return evaluate_output(
            list(read_lines(name)),
            test_set.references,
            metrics=text_metrics(metrics) if metrics else None,
            options=options,
            sources=test_set.sources,
            system=name,
        )
    return evaluate_model(
        translator,
        test_set.sources,
        test_set.references,
        metrics=metrics or ("loss", *default_metrics(options.symbols)),
        options=options,
        decoding=decoding_options(request.settings, request.beam),
        system=name,
    )


def show(reports: list[Report], comparison: Comparison | None, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        found: dict[str, Any] = {"report": reports[0].to_json()}
        if comparison is not None:
            found |= {"against": reports[1].to_json(), "comparison": comparison.to_json()}
        write_json(found)
        return
    for part in (*reports, comparison):
        for line in part.lines() if part is not None else ():
            write_line(line)
