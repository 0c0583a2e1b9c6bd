"""The data of a comparison, prepared once: a store for all systems, and pairs that none of them sees.

In: a plan and a folder. Out: the folder `store/`, as `malmoi prepare` makes one, and `test.jsonl`. Test pairs are those
of `--test`; left out, pairs are held out of DATA first of all, before validation is. Both are chosen by a hash of the
source, so that no source stands on two sides.
"""

from dataclasses import dataclass, replace

from malmoi.commands.evaluate import read_test_set
from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import (
    READY,
    Corpora,
    Material,
    Validation,
    clean_rows,
    cleaning_for_validation,
    make_material,
    open_corpora,
    open_material,
    read_validation,
    scan_corpora,
    share_to_hold_out,
    write_validation,
)
from malmoi.commands.plan import ORDINARY_FACTS, Given, plain
from malmoi.commands.systems import Plan, run_config, run_settings, sources_of
from malmoi.config.run import RunConfig
from malmoi.data.prepare import Scan
from malmoi.errors import CheckpointError, DataError
from malmoi.files import write_atomically
from malmoi.settings import build_config, merge, to_toml
from malmoi.text.split import Split, held_out, source_key

STORE, TEST = "store", "test.jsonl"
TEST_SEED = 1_000_003
"""Added to the seed: test pairs are drawn apart from those of validation."""


@dataclass(frozen=True)
class SharedData:
    """What all systems of a comparison are given."""

    store: RunFolder
    config: RunConfig
    material: Material
    test: Validation


@dataclass(frozen=True)
class Sources:
    """Open corpora, and the test pairs where they were given."""

    corpora: Corpora
    maybe_test: Validation | None


def open_sources(folder: RunFolder, plan: Plan) -> Sources | None:
    """Everything that the plan names, opened before anything is made; None where the data is ready already."""
    if is_ready(folder):
        return None
    corpora = open_corpora(sources_of(plan.data), sources_of(plan.valid))
    return Sources(corpora, read_test(plan) if plan.test else None)


def read_test(plan: Plan) -> Validation:
    """The pairs of `--test`, each with all its right answers."""
    test = read_test_set(sources_of(plan.test))
    return Validation(test.sources, test.references)


def write_test(folder: RunFolder, test: Validation) -> None:
    """Keep the pairs with the comparison, whatever becomes of the files that they came from."""
    write_validation(folder.path / TEST, zip(test.sources, test.references.answers, strict=True))


def is_ready(folder: RunFolder) -> bool:
    """Whether an earlier start has prepared all data."""
    return (folder.path / STORE / "data" / READY).exists()


def share_data(
    folder: RunFolder, plan: Plan, maybe_sources: Sources | None, *, workers: int, quiet: bool
) -> SharedData:
    """Open what an earlier start left complete, or make it from the sources."""
    store = claim_folder(folder.path / STORE)
    with alone_in(store):
        stored = store.read_config()
        if maybe_sources is not None:
            stored, material = make_store(folder, store, plan, maybe_sources, workers=workers, quiet=quiet)
        else:
            material = open_material(store, stored.data) if stored is not None else None
    if stored is None or material is None:
        raise CheckpointError(f"{store.path}: damaged; remove it, and the data is prepared again")
    return SharedData(store, stored, material, read_validation(folder.path / TEST))


def make_store(
    folder: RunFolder, store: RunFolder, plan: Plan, sources: Sources, *, workers: int, quiet: bool
) -> tuple[RunConfig, Material]:
    """Read, hold out, tokenise."""
    corpora = sources.corpora
    data = {"data": list(plan.data), "valid": list(plan.valid)}
    seed = plan.seeds[0]
    early = build_config(merge(plain(run_config(plan, plan.leader, ORDINARY_FACTS, seed)), data))
    found, share = scan_corpora(corpora, early, quiet=quiet)
    given = Given(merge(run_settings(plan, plan.leader, found.facts, seed), data), "the settings of all systems")
    config = given.config(found.facts)
    if sources.maybe_test is not None:
        write_test(folder, sources.maybe_test)
    else:
        corpora, found = hold_out_test(folder, config, corpora, found)
        share = 0.0 if corpora.valid else share_to_hold_out(found, config)
    write_atomically(store.config, (to_toml(config) + "\n").encode())
    return config, make_material(
        store, config, corpora, found, share, maybe_tokenizers=None, workers=workers, quiet=quiet
    )


def hold_out_test(folder: RunFolder, config: RunConfig, corpora: Corpora, found: Scan) -> tuple[Corpora, Scan]:
    """Take test pairs out of all corpora of training; the sample for the tokenisers does not hold them either."""
    seed = config.training.seed + TEST_SEED
    training = config.training.model_copy(update={"seed": seed})
    share = share_to_hold_out(found, config.model_copy(update={"training": training}))
    splits = [Split(corpus, seed, share) for corpus in corpora.train]
    gentle = cleaning_for_validation(config)
    # A source by which checkpoints are chosen is none to test with.
    known = {source_key(pair.source) for corpus in corpora.valid for pair in corpus.pairs()}
    held = (row for split in splits for row in clean_rows(split.held(), gentle))
    rows = [row for row in held if source_key(row[0]) not in known]
    if not rows:
        raise DataError("no pair could be held out to test with: give --test")
    write_validation(folder.path / TEST, iter(rows))
    kept = [not held_out(source, seed, share) for source in found.sources]
    sources = [source for source, keep in zip(found.sources, kept, strict=True) if keep]
    targets = [target for target, keep in zip(found.targets, kept, strict=True) if keep]
    if not sources:
        raise DataError("there are too few different sources to hold some out to test with: give --test")
    rest = tuple(split.rest() for split in splits)
    return replace(corpora, train=rest), found._replace(sources=sources, targets=targets)
