"""The command line: all verbs under one name.

In: words. Out: calls into `verbs/`, whose functions import what does the work only when they are called: help must
answer at once, and none of it needs torch. A new verb is a file in `verbs/` and its name in `VERBS`.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from malmoi.commands.verbs.average import average
from malmoi.commands.verbs.compare import compare
from malmoi.commands.verbs.demo import demo
from malmoi.commands.verbs.doctor import doctor
from malmoi.commands.verbs.evaluate import evaluate
from malmoi.commands.verbs.explain import explain
from malmoi.commands.verbs.export import export
from malmoi.commands.verbs.info import info
from malmoi.commands.verbs.keys import keys
from malmoi.commands.verbs.prepare import prepare
from malmoi.commands.verbs.score import score
from malmoi.commands.verbs.serve import serve
from malmoi.commands.verbs.train import train
from malmoi.commands.verbs.translate import translate

VERBS = (
    demo,
    train,
    prepare,
    translate,
    score,
    evaluate,
    explain,
    compare,
    average,
    export,
    serve,
    keys,
    info,
    doctor,
)
"""In the order in which help lists them."""


class Verbs(TyperGroup):
    """A stop by the user or by the next program is no fault."""

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
for verb in VERBS:
    app.command()(verb)


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"malmoi {version_of('malmoi')}")
        raise typer.Exit
