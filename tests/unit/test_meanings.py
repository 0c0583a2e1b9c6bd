"""What every setting means: none is left out, and the text is a config file that says the defaults."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from typer.testing import CliRunner

from malmoi.commands.main import app
from malmoi.config.meanings import TABLES, kind_of, notes_of, setting, settings_as_toml
from malmoi.config.model import RnnConfig, TransformerConfig, Tying
from malmoi.config.run import RunConfig
from malmoi.config.tables import Count, Probability, Table

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def uncommented(text: str) -> dict[str, Any]:
    """The tables of the text, with what has no default left out; later ones of the same name do not count."""
    lines = [line[1:] for line in text.splitlines() if re.match(r"#[\[a-z]", line) and not line.endswith("=")]
    parts = re.split(r"\n(?=\[)", "\n".join(lines))
    seen: dict[str, str] = {}
    for part in parts:
        head = part.split("\n")[0] if part.startswith("[") else ""
        seen.setdefault(head, part)
    return tomllib.loads("\n".join(part for head, part in seen.items() if not head.startswith("[[")))


def test_uncommented_it_is_a_config_of_the_defaults() -> None:
    told = uncommented(settings_as_toml())
    assert RunConfig.model_validate(told) == RunConfig()
    assert len(told["training"]) > 25 and len(told["decoding"]) > 20


def test_every_setting_of_every_table_has_a_sentence() -> None:
    text = settings_as_toml()
    for name, table in TABLES:
        notes = notes_of(table)
        for key in table.model_fields:
            if name or key in ("valid_share", "valid_pairs"):
                assert len(notes[key]) > 8, f"{name}.{key}"
                assert f"\n#{key} =" in text
    assert {TransformerConfig, RnnConfig} <= {table for _, table in TABLES}


def test_a_setting_without_a_sentence_is_refused() -> None:
    class Silent(Table):
        """Says nothing of its field."""

        width: int = 3

    with pytest.raises(ValueError, match="width has no sentence"):
        setting("width", Silent.model_fields["width"], {})


def test_limits_are_told_in_words() -> None:
    class Limits(Table):
        """Numbers of all kinds."""

        share: Probability = 0.5
        rate: Annotated[float, Field(gt=0.0)] | None = None
        count: Count = 1
        names: tuple[Tying, ...] = ()

    told = {key: kind_of(field.annotation, field.metadata) for key, field in Limits.model_fields.items()}
    assert told == {
        "share": "a number from 0.0 below 1.0",
        "rate": "a number above 0.0",
        "count": "a whole number from 1",
        "names": 'a list; each "all", "target" or "none"',
    }


def test_the_command_prints_it_without_data_or_torch() -> None:
    result = CliRunner().invoke(app, ["train", "--settings"])
    assert result.exit_code == 0
    assert result.stdout == settings_as_toml()


def test_the_page_says_the_same() -> None:
    assert f"```toml\n{settings_as_toml()}```\n" in PAGE.read_text(encoding="utf-8"), (
        "docs/settings.md is of another day: put the output of `malmoi train --settings` between its fences"
    )
