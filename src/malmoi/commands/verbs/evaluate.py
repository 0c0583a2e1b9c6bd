"""`malmoi evaluate`, its options."""

from typing import Annotated

import typer

from malmoi.commands.options import Beam, DataArgument, DecodingSettings, Device, Json, Quiet, Threads, Verbose
from malmoi.log import configure_logging


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
        typer.Option(
            metavar="NAME", help="loss, bleu, chrf, ter, exact, segment_error, wer or ser; may be given again."
        ),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Do not mind upper and lower case.")] = False,
    symbols: Annotated[
        str | None, typer.Option(metavar="NAME", help="What error rates count: words or characters.")
    ] = None,
    beam: Beam = None,
    settings: DecodingSettings = None,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure translations: BLEU, chrF2++, TER, error rates.

    Every score of sacreBLEU comes with its signature.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from malmoi.commands.evaluate import EvaluateRequest, run_evaluate

    request = EvaluateRequest(
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
    run_evaluate(request)
