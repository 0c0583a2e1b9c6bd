"""`malmoi prepare`: clean and tokenise data once for many runs.

In: data and settings. Out: a folder that `malmoi train` takes as its data, and its name on standard output. With
`--like` it gets the vocabulary and settings of another store, and both can be the data of one run.
"""

from dataclasses import replace

from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import Material, make_material, open_corpora, open_material, scan_corpora
from malmoi.commands.plan import ORDINARY_FACTS, Given, TrainRequest, continued, plain
from malmoi.commands.results import write_json, write_line
from malmoi.commands.stores import open_prepared
from malmoi.data.prepare import Scan
from malmoi.errors import ConfigError
from malmoi.files import write_atomically
from malmoi.settings import merge, to_toml
from malmoi.text.cleaning import CleaningReport


def run_prepare(request: TrainRequest, given: Given, *, as_json: bool, quiet: bool) -> None:
    """Make the store unless it is there, and say what it holds."""
    folder = claim_folder(request.out)
    with alone_in(folder):
        material = find_or_make(folder, request, given, quiet=quiet)
    train, valid = (sum(store.num_pairs for store in stores) for stores in (material.train, material.valid))
    if as_json:
        sizes = {"source": material.tokenizers.source.size, "target": material.tokenizers.target.size}
        write_json({"store": str(folder.path), "pairs": train, "validation_pairs": valid, "vocabulary": sizes})
    else:
        write_line(f"{folder.path}: {train:,} pairs to train on, {valid:,} for validation")


def find_or_make(folder: RunFolder, request: TrainRequest, given: Given, *, quiet: bool) -> Material:
    """What the folder holds already, if it is complete; else everything from the corpora on."""
    stored = folder.read_config()
    like = None if request.like is None else open_prepared(request.like)
    fixed = [] if like is None else [like.shared]
    config = given.config(ORDINARY_FACTS, *fixed) if stored is None else continued(stored, given, folder.path)
    if not config.data:
        raise ConfigError("there is nothing to prepare: name files with pairs")
    if like is not None and merge(plain(config), like.shared) != plain(config):
        raise ConfigError(f"--like {request.like}: was made with other text or cleaning settings, or another seed")
    maybe_material = open_material(folder, config.data) if stored is not None else None
    if maybe_material is not None:
        return maybe_material
    corpora = open_corpora(config.data, config.valid)
    if like is None:
        found, share = scan_corpora(corpora, config, quiet=quiet)
    else:
        # All is decided, so that the text is read once only; its pairs are counted on the way.
        facts = replace(like.material.facts, num_pairs=0)
        found, share = Scan(facts, [], [], CleaningReport()), 0.0 if corpora.valid else like.material.held_out_share
    config = stored or given.config(found.facts, *fixed)
    write_atomically(folder.config, (to_toml(config) + "\n").encode())
    return make_material(
        folder,
        config,
        corpora,
        found,
        share,
        maybe_tokenizers=None if like is None else like.material.tokenizers,
        workers=request.workers,
        quiet=quiet,
    )
