"""What every setting means, as a TOML file in which all of them are commented out.

In: the tables of settings, whose fields carry a sentence each. Out: text. A setting without a sentence is a
`ValueError`, so that none can be added in silence.
"""

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.config.tables import Table
from malmoi.config.text import CleaningConfig, DataSource, Stage, TextConfig
from malmoi.config.training import TrainingConfig

WIDTH = 100
"""Columns of a line."""
HEAD = (
    "All settings with their defaults. Each may stand in a TOML file for `malmoi train --config`, or behind the data "
    "as a word: training.seed=2. What `malmoi train` chooses for your data wins over a default, --preset over that, "
    "--config over both, a word over all."
)
TABLES: tuple[tuple[str, type[Table]], ...] = (
    ("", RunConfig),
    ("text", TextConfig),
    ("cleaning", CleaningConfig),
    ("model", TransformerConfig),
    ("model", RnnConfig),
    ("training", TrainingConfig),
    ("decoding", DecodingConfig),
    ("[data]", DataSource),
    ("[stages]", Stage),
)


def settings_as_toml() -> str:
    """Every table with every setting: its meaning, what it may be, its default."""
    lines = [*comment(HEAD)]
    for name, table in TABLES:
        meaning = " ".join((inspect.getdoc(table) or "").split())
        lines += ["", *comment(meaning), *([f"#[{name}]"] if name else [])]
        for key, field in table.model_fields.items():
            if not is_table(field):
                lines += setting(key, field, notes_of(table))
    return "\n".join(lines) + "\n"


def is_table(field: FieldInfo) -> bool:
    """Whether a field holds tables, which are told of by themselves."""
    return any(isinstance(part, type) and issubclass(part, Table) for part in parts_of(field.annotation))


def parts_of(kind: Any) -> Iterator[Any]:
    """A type and all types inside it."""
    yield kind
    for part in get_args(kind):
        yield from parts_of(part)


def setting(key: str, field: FieldInfo, notes: dict[str, str]) -> list[str]:
    """The lines of one setting."""
    if key not in notes:
        raise ValueError(f"the setting {key} has no sentence that says what it means")
    kind = kind_of(field.annotation, field.metadata)
    if field.is_required():
        return [*comment(f"{notes[key]} ({kind}; must be given)"), f"#{key} ="]
    default = field.get_default()
    if default is None:
        return [*comment(f"{notes[key]} ({kind}; left out)"), f"#{key} ="]
    return [*comment(f"{notes[key]} ({kind})"), f"#{key} = {json.dumps(default)}"]


def notes_of(table: type[Table]) -> dict[str, str]:
    """The sentence behind each field of a table, read off its source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(body, ast.ClassDef)
    notes: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            notes[field.target.id] = " ".join(str(after.value.value).split())
    return notes


def kind_of(kind: Any, bounds: Iterable[Any] = ()) -> str:
    """What a value may be, in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        extra = [one for note in inside[1:] for one in (note.metadata if isinstance(note, FieldInfo) else [note])]
        return kind_of(inside[0], extra)
    if origin is Literal:
        *most, last = (json.dumps(word) for word in inside)
        return f"{', '.join(most)} or {last}" if most else last
    if origin in (Union, types.UnionType):
        (only,) = [one for one in inside if one is not types.NoneType]
        return kind_of(only)
    if origin is tuple:
        return f"a list; each {kind_of(inside[0])}"
    word = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    return " ".join([word, *(f"{text}" for text in map(bound_of, bounds) if text)])


def bound_of(bound: Any) -> str:
    """A limit of a number in words."""
    match bound:
        case Ge(ge=value):
            return f"from {value}"
        case Gt(gt=value):
            return f"above {value}"
        case Le(le=value):
            return f"up to {value:,}"
        case Lt(lt=value):
            return f"below {value}" if value < 2**63 else ""
        case _:
            return ""


def comment(text: str) -> list[str]:
    """A text as lines of a comment."""
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
