"""From words to settings: TOML files, `key=value` overrides, layers, and errors that tell every fault.

In: TOML text and `key=value` words. Out: a `RunConfig`, or a `ConfigError` that lists all faults at once.
What a run really used is written back as TOML (`to_toml`), so that a run folder says what it was.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError

from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.config.run import RunConfig
from malmoi.config.tables import Table
from malmoi.errors import ConfigError

Settings = dict[str, Any]
T = TypeVar("T", bound=Table)


def read_toml(path: Path) -> Settings:
    """A TOML file as nested dictionaries; a fault is a `ConfigError` with file and line."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: not settings: brackets are nested too deep") from None


def parse_overrides(words: Iterable[str]) -> Settings:
    """`model.width=128` words as nested dictionaries; a value is TOML where it parses as TOML, else text."""
    settings: Settings = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"{word!r} is not a setting: write key=value, as in model.width=128")
        try:
            value: Any = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        table = settings
        *parents, leaf = key.split(".")
        for parent in parents:
            below = table.setdefault(parent, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{word!r}: {parent} was given a value before, so it cannot hold {leaf}")
            table = cast(Settings, below)
        table[leaf] = value
    return settings


def merge(*layers: Mapping[str, Any]) -> Settings:
    """Later layers win, table by table; lists are replaced whole.

    A table whose `architecture` changes starts anew: the keys of another architecture would not fit.
    """
    result: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            if isinstance(value, Mapping) and isinstance(old, dict):
                above = cast(Mapping[str, Any], value)
                below = cast(Settings, old)
                changed = above.get("architecture", below.get("architecture")) != below.get("architecture")
                result[key] = merge(above) if changed else merge(below, above)
            else:
                result[key] = merge(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else value
    return result


def build_config(settings: Mapping[str, Any], origin: str = "the settings") -> RunConfig:
    """Check settings as a whole; a `ConfigError` lists every fault with its place and the nearest right name."""
    return validate(RunConfig, settings, origin)


def validate(kind: type[T], settings: Mapping[str, Any], origin: str) -> T:
    """Settings as a table of the given kind, or a `ConfigError` that lists all faults."""
    completed = dict(settings)
    if "model" in kind.model_fields:
        model = completed.get("model", {})
        if isinstance(model, Mapping):
            completed["model"] = {"architecture": "transformer", **cast(Mapping[str, Any], model)}
    try:
        return kind.model_validate(completed)
    except ValidationError as error:
        lines = [describe_fault(kind, fault) for fault in error.errors()]
        raise ConfigError(f"{len(lines)} fault(s) in {origin}:\n" + "\n".join("  " + line for line in lines)) from None


def describe_fault(kind: type[Table], fault: Mapping[str, Any]) -> str:
    """One fault in words: place, what is wrong, and the nearest right name where a name is unknown."""
    location = [part for part in cast(tuple[Any, ...], fault["loc"]) if part not in ("transformer", "rnn")]
    place = ".".join(str(part) for part in location) or "as a whole"
    if fault["type"] == "extra_forbidden":
        names = known_names(kind, cast(tuple[Any, ...], fault["loc"])[:-1])
        near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
        return f"{place}: no such setting" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}")
    if fault["type"] == "union_tag_invalid":
        return f"{place}.architecture: must be transformer or rnn, not {fault['input'].get('architecture')!r}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if place.endswith("precision") and fault["input"] in ("fp16", "float16", "half"):
        message = "fp16 is not offered, since it overflows where bf16 does not; use bf16 or fp32"
    given = "" if isinstance(fault["input"], Mapping | BaseModel) else f" (given: {fault['input']!r})"
    return f"{place}: {message}{given}"


def known_names(kind: type[Table], location: tuple[Any, ...]) -> list[str]:
    """Names of the settings of the table at a place that pydantic reported."""
    architectures: dict[str, type[Table]] = {"transformer": TransformerConfig, "rnn": RnnConfig}
    table: type[Table] = kind
    for part in location:
        if part in architectures:
            table = architectures[part]
        elif isinstance(part, str) and part in table.model_fields:
            annotation: Any = table.model_fields[part].annotation
            inner = [annotation, *get_args(annotation)]
            tables = [option for option in inner if isinstance(option, type) and issubclass(option, Table)]
            table = tables[0] if tables else table
    return sorted(table.model_fields)


def to_toml(table: Table) -> str:
    """A table as TOML text that reads back equal; settings without a value are left out."""
    return "\n".join(toml_lines(table.model_dump(mode="json", exclude_none=True), ""))


def toml_lines(settings: Mapping[str, Any], prefix: str) -> list[str]:
    """Plain values first, then tables, then arrays of tables, as TOML wants them."""
    plain: list[str] = []
    tables: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            tables += [f"\n[{prefix}{key}]", *toml_lines(cast(Mapping[str, Any], value), f"{prefix}{key}.")]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for row in cast(list[Mapping[str, Any]], value):
                tables += [f"\n[[{prefix}{key}]]", *toml_lines(row, f"{prefix}{key}.")]
        else:
            # JSON's spelling of text, numbers, true, false and lists of them is TOML's too,
            # but for the characters below U+0020 that JSON escapes in the same way and U+007F.
            plain.append(f"{key} = {json.dumps(value, ensure_ascii=False).replace(chr(127), chr(92) + 'u007F')}")
    return plain + tables
