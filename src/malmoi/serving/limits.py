"""What a service lets in: its settings, and how it says no.

In: `key=value` words of the operator. Out: a `ServingConfig`. Everything that a request may ask for has a bound here; a
request beyond it ends in a `RefusedError`, which each interface puts in its own words.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from malmoi.config.decoding import DecodingConfig
from malmoi.config.tables import Count, Table
from malmoi.errors import ConfigError
from malmoi.settings import validate

Seconds = Annotated[float, Field(gt=0.0, le=86_400.0)]

LEAST_LOG_PROBABILITY = -1e4
"""What stands for the logarithm of 0, so that every score is a number that JSON has."""


class ServingConfig(Table):
    """Settings of a service; `malmoi serve --set KEY=VALUE`."""

    characters: Count = 100_000
    """Most characters of all texts of one request."""
    texts: Count = 256
    """Most texts of one request."""
    sentence_characters: Count = 1_000
    """A sentence without an end is cut at the last space before so many."""
    body_bytes: Count = 2**20
    """A longer body is refused while it comes in."""
    body_seconds: Seconds = 20.0
    """A body must be there after so long."""
    deadline: Seconds = 120.0
    """An answer that is not there after so long is given up."""
    drain_seconds: Seconds = 60.0
    """After a signal to stop, what was accepted has so long to be answered."""
    queue_tokens: Count = 100_000
    """While so many source tokens wait for a model, further requests are refused (429)."""
    batch_tokens: Annotated[int, Field(ge=0)] = 0
    """Live tokens of one batch; 0 takes the model's own."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Most of a batch that one request may fill, so that there is room for the next one at any time."""
    groups: Annotated[int, Field(ge=1, le=64)] = 4
    """So many different settings are searched with at once; others wait for their turn."""
    beam_size: Annotated[int, Field(ge=1, le=100)] = 10
    """Widest beam that a request may ask for."""
    alternatives: Annotated[int, Field(ge=0, le=99)] = 9
    """Most other translations that a request may ask for."""
    max_length: Count = 1_000
    """Longest output that a request may ask for, in tokens."""
    constraints: Annotated[int, Field(ge=0)] = 16
    """Most phrases that an output must hold."""
    explain_characters: Count = 1_000
    """Longest sentence that is explained."""
    idle_seconds: Seconds = 15.0
    """A connection without a request is closed after so long."""
    connections: Count = 2_048
    """Most connections at once; further ones are answered with 503."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may ask, as `https://example.org`; `*` is all."""
    hosts: tuple[str, ...] = ()
    """Names by which the service is asked, as `translate.example.org`, besides this machine's own; `*` is all. Without
    any that is all too, but this machine's own alone where neither keys nor `--open` say who may ask."""
    log_text: bool = False
    """Whether the log may hold texts of users; for finding faults."""


class RefusedError(Exception):
    """A request that is not served, with its HTTP status, a word for programs and a sentence for people; `retry_after`
    are seconds after which it may be."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after


RANGES: Mapping[str, tuple[float, float]] = {
    "length_alpha": (0.0, 10.0),
    "coverage_beta": (0.0, 10.0),
    "diversity": (0.0, 100.0),
    "diverse_groups": (1, 100),
    "min_length": (0, 1_000),
    "no_repeat_ngram": (0, 100),
}
"""Numbers that a request may set, with their ends; those that the operator bounds stand in `ServingConfig`."""

FLAGS = ("merge_equal_texts", "replace_unknown")


def bounded_options(given: Mapping[str, Any], limits: ServingConfig, *, n_best: int = 1) -> dict[str, Any]:
    """The decoding options of a request, each within its range; `RefusedError` names what is not."""
    ranges = {**RANGES, "beam_size": (1, limits.beam_size), "max_length": (1, limits.max_length)}
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in FLAGS:
            if not isinstance(value, bool):
                raise RefusedError(400, "bad_option", f"options.{name} must be true or false")
        elif name == "length_penalty":
            if value not in ("wu", "divide", "none"):
                raise RefusedError(400, "bad_option", "options.length_penalty must be wu, divide or none")
        elif name in ranges:
            check_number(f"options.{name}", value, *ranges[name], whole=isinstance(ranges[name][1], int))
        else:
            known = ", ".join(sorted([*ranges, *FLAGS, "length_penalty"]))
            raise RefusedError(400, "bad_option", f"options.{shown(name)}: no such option; known: {known}")
        options[name] = value
    check_number("n_best", n_best, 1, limits.alternatives + 1, whole=True)
    if n_best > 1:
        options["n_best"] = n_best
    return options


def check_number(name: str, value: Any, least: float, most: float, *, whole: bool) -> None:
    """`RefusedError`, naming the range, unless a value is a number within it."""
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise RefusedError(400, "bad_option", f"{name} must be {kind} from {least:g} to {most:g}")


def settle(stored: DecodingConfig, options: Mapping[str, Any], batch_tokens: int) -> DecodingConfig:
    """The settings of a search: the model's own with checked options above them. A beam is made wide enough for the
    outputs that are wanted. `RefusedError` for options that do not go together."""
    settings = {**stored.model_dump(), **options}
    wanted = int(settings["n_best"])
    if settings["method"] == "beam" and "beam_size" not in options and wanted > int(settings["beam_size"]):
        groups = int(settings["diverse_groups"])
        settings["beam_size"] = -(-wanted // groups) * groups
    if batch_tokens:
        settings["batch_tokens"] = batch_tokens
    try:
        return validate(DecodingConfig, settings, "the options")
    except ConfigError as error:
        raise RefusedError(400, "bad_option", str(error)) from error


def shown(text: str, most: int = 40) -> str:
    """A user's word inside of a message: short, and on one line."""
    plain = "".join(character if character.isprintable() else "?" for character in text[:most])
    return plain + ("…" if len(text) > most else "")


def finite(value: float) -> float:
    """A log-probability as JSON can have it."""
    return max(float(value), LEAST_LOG_PROBABILITY) if math.isfinite(value) else LEAST_LOG_PROBABILITY
