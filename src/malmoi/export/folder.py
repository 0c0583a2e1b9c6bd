"""An exported folder: written aside, proved, and only then put under its name.

In: a model, the name of a folder that is not there yet. Out: the folder with `verification.json`, or an error and no
trace.
"""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from malmoi.card import Card
from malmoi.checkpoint import Model
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import CheckpointError, ConfigError
from malmoi.export.beside import write_beside
from malmoi.export.ctranslate2 import Ct2Copy, NumberType, max_positions, require_library, write_copy
from malmoi.export.names import Names
from malmoi.export.verify import (
    EIGHT_BITS,
    EIGHT_BITS_MADE_UP,
    SIXTEEN_BITS,
    SIXTEEN_BITS_MADE_UP,
    Bound,
    Proof,
    Quality,
    Sentence,
    as_json,
    greedy,
    made_up_sentences,
    measure,
    prove,
    prove_text,
)
from malmoi.files import TEMPORARY, flush
from malmoi.models.transformer import Transformer
from malmoi.text.ids import END_ID

VERIFICATION_FILE = "verification.json"
USUAL_LENGTH, MOST_LENGTH = 256, 1024
"""Tokens of the longest made-up sentence: the first where the model does not say how long its sentences are, the second
at most."""


@dataclass(frozen=True)
class Verification:
    """What was compared before a copy was left: in float32, and in fewer bits where that was asked for."""

    number_type: NumberType
    proof: Proof
    maybe_quality: Quality | None

    def to_json(self) -> dict[str, Any]:
        return {
            "number_type": self.number_type,
            "float32": as_json(self.proof),
            "quality": None if self.maybe_quality is None else as_json(self.maybe_quality),
        }


def check_free(out: Path) -> None:
    """`ConfigError` where there is something under that name already."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out {out}: is there already; choose another name or remove it")


def export_ctranslate2(model: Model, out: Path, kind: NumberType) -> Verification:
    """Write a proved copy of a Transformer in float32, whose numbers are stored as `kind`.

    `CheckpointError` where the copy does not say what the model says, or cannot be written; nothing is left then.
    """
    assert isinstance(model.network, Transformer), "settings were checked before"
    check_free(out)
    names = Names.of(model.tokenizers)
    scorer, forbidden = ModelScorer(model.network), model.tokenizers.target.forbidden_ids()
    sentences = [*card_sentences(model), *all_made_up(model)]
    with written_aside(out) as folder:
        write_beside(model, names, max_positions(model.network), folder)
        write_copy(model.network, names, "float32", folder)
        copy, maybe_quality = Ct2Copy(folder, names, "float32"), None
        try:
            proof = prove(scorer, copy, sentences, forbidden, lambda index: repr(names.target[index]))
            outputs = [*(one.target for one in sentences), *greedy(scorer, sentences[:1], forbidden)]
            prove_text(model.tokenizers, copy, [one.text for one in sentences if one.text is not None], outputs)
            if kind != "float32":
                write_copy(model.network, names, kind, folder)
                real = [one for one in sentences if one.text is not None]
                sources, bound = [one.source for one in real or sentences], bound_of(kind, is_made_up=not real)
                maybe_quality = measure(scorer, Ct2Copy(folder, names, kind), sources, forbidden, bound)
        except CheckpointError as error:
            raise CheckpointError(f"{out}: not written, since the copy is not the model: {error}") from None
        verification = Verification(kind, proof, maybe_quality)
        facts = {"malmoi": version("malmoi"), "ctranslate2": require_library().__version__, **verification.to_json()}
        text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
        (folder / VERIFICATION_FILE).write_text(text, encoding="utf-8", newline="\n")
    return verification


def bound_of(kind: NumberType, *, is_made_up: bool) -> Bound:
    """What a copy in fewer bits must keep."""
    if kind.startswith("int8"):
        return EIGHT_BITS_MADE_UP if is_made_up else EIGHT_BITS
    return SIXTEEN_BITS_MADE_UP if is_made_up else SIXTEEN_BITS


@contextmanager
def written_aside(out: Path) -> Generator[Path]:
    """A folder under a temporary name beside `out`: put under its name when the block ends well, else removed."""
    temporary = out.with_name(f"{TEMPORARY}{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        for path in [*sorted(temporary.rglob("*")), temporary]:
            flush(path)
        # Asked once more: whoever took the name meanwhile keeps it.
        check_free(out)
        temporary.rename(out)
        flush(out.parent)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def card_sentences(model: Model) -> list[Sentence]:
    """The sentences by which the model proves itself, as far as it has positions for them."""
    most = model.network.max_positions
    sentences = [
        Sentence(
            repr(one.source),
            (*model.tokenizers.encode_source(one.source), END_ID),
            (*model.tokenizers.encode_target(one.text), END_ID),
            one.source,
        )
        for one in Card.model_validate(model.card).sentences
    ]
    return [one for one in sentences if most is None or max(len(one.source), len(one.target)) <= most]


def all_made_up(model: Model) -> list[Sentence]:
    """Made-up sentences up to the length that the model knows."""
    maybe_seen = Card.model_validate(model.card).max_source_tokens
    longest = model.network.max_positions or max(maybe_seen or 0, USUAL_LENGTH)
    sizes = model.tokenizers.source.size, model.tokenizers.target.size
    return made_up_sentences(*sizes, longest=min(longest, MOST_LENGTH))
