"""The verbs of the command line: every file is a verb, and what all of them share is the same everywhere."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

from malmoi.commands import verbs
from malmoi.commands.main import VERBS, app
from malmoi.config.training import Metric

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def options_of(name: str) -> dict[str, Any]:
    """Options and arguments of a verb by their first spelling."""
    return {parameter.opts[0]: parameter for parameter in COMMANDS[name].params}


def test_every_file_is_a_verb_in_the_order_of_help() -> None:
    files = {path.stem for path in Path(verbs.__path__[0]).glob("*.py")} - {"__init__"}
    assert list(COMMANDS) == [verb.__name__ for verb in VERBS]
    assert set(COMMANDS) == files
    assert all(command.get_short_help_str() for command in COMMANDS.values())


@pytest.mark.parametrize("name", [verb.__name__ for verb in VERBS])
def test_every_verb_can_print_json_and_keep_quiet(name: str) -> None:
    assert {"--json", "--quiet", "--verbose"} <= set(options_of(name))


def test_an_option_means_the_same_wherever_it_stands() -> None:
    """Except `--out`, which is what each verb writes, `--against`, what it compares: a model, or a sentence, and
    `--set`, whose settings are those of decoding or of a service."""
    meanings: dict[str, set[tuple[object, ...]]] = {}
    for name in COMMANDS:
        for option, one in options_of(name).items():
            if option.startswith("--") and option not in ("--out", "--against", "--set"):
                meanings.setdefault(option, set()).add((one.help, one.metavar, str(one.default), one.multiple))
    assert {option: found for option, found in meanings.items() if len(found) > 1} == {}
    assert len(meanings) > 20


def test_help_of_evaluate_names_every_metric() -> None:
    help_text = options_of("evaluate")["--metric"].help
    assert set(get_args(Metric)) <= set(re.findall(r"\w+", help_text))
