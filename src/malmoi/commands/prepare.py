"""`malmoi prepare`: clean and tokenise data once for many runs.

In: data and settings. Out: a folder that `malmoi train` takes as its data, and its name on standard output.
"""

from malmoi.commands.folder import RunFolder, alone_in, claim_folder
from malmoi.commands.material import Material, make_material, open_corpora, open_material, scan_corpora
from malmoi.commands.plan import ORDINARY_FACTS, Given, TrainRequest, continued
from malmoi.commands.results import write_json, write_line
from malmoi.errors import ConfigError
from malmoi.files import write_atomically
from malmoi.settings import to_toml


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
    config = given.config(ORDINARY_FACTS) if stored is None else continued(stored, given, folder.path)
    if not config.data:
        raise ConfigError("there is nothing to prepare: name files with pairs")
    maybe_material = open_material(folder, config.data) if stored is not None else None
    if maybe_material is not None:
        return maybe_material
    corpora = open_corpora(config.data, config.valid)
    found, share = scan_corpora(corpora, config, quiet=quiet)
    config = stored or given.config(found.facts)
    write_atomically(folder.config, (to_toml(config) + "\n").encode())
    return make_material(
        folder, config, corpora, found, share, maybe_tokenizers=None, workers=request.workers, quiet=quiet
    )
