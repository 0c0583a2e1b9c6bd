"""The doorway between text and ids: one protocol, five kinds, and the two tokenisers of a model.

In: text, or a folder where a model's tokenisers are stored. Out: ids (0 unknown, 1 end; the start symbol of targets
lies behind the last id and is not the tokeniser's), or text.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, Self, assert_never, cast, get_args

from malmoi.config.text import TextConfig, TokenizerKind
from malmoi.errors import CheckpointError
from malmoi.text.lines import normalize, one_line
from malmoi.text.subwords import load_subwords, train_subwords
from malmoi.text.symbols import ByteTokenizer, load_symbols, train_symbols

MANIFEST_FILE = "tokenizer.json"
FORMAT = 1


class Tokenizer(Protocol):
    """Text to ids and back; ids run from 0 to `size` - 1."""

    @property
    def kind(self) -> TokenizerKind: ...
    @property
    def size(self) -> int: ...
    @property
    def unknown_id(self) -> int: ...
    @property
    def end_id(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids of one text, normalised first; no control id but unknown, no end symbol."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts; the fast way."""
        ...

    def encode_sampled(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Ids of many texts cut by chance (`bpe`, `unigram`), a function of the arguments alone."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any ids, on one line; control ids give nothing, broken byte runs one U+FFFD."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One visible name for each id."""
        ...

    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no output may hold: unknown, and bytes that would break the line."""
        ...

    def fallback_ids(self) -> tuple[int, ...]:
        """Ids that stand for what the vocabulary does not list: unknown and bytes."""
        ...

    def to_files(self) -> dict[str, bytes]:
        """What must be stored: file name to content."""
        ...


def train_tokenizer(
    kind: TokenizerKind, texts: Iterable[str], *, vocabulary_size: int, minimum_count: int = 1, seed: int = 1
) -> Tokenizer:
    """A tokeniser learned from texts, which are read once; `DataError` where there is nothing to learn from."""
    match kind:
        case "bpe" | "unigram":
            return train_subwords(kind, texts, vocabulary_size=vocabulary_size, seed=seed)
        case "characters" | "words":
            return train_symbols(kind, texts, vocabulary_size=vocabulary_size, minimum_count=minimum_count)
        case "bytes":
            return ByteTokenizer()
        case _:
            assert_never(kind)


def tokenizer_from_files(kind: TokenizerKind, files: Mapping[str, bytes], where: str) -> Tokenizer:
    """The tokeniser that `to_files` gave; a fault is a `CheckpointError` that names file and line.

    `where` is what stands before the file's own name in its path, as `Tokenizers.save` wrote it: folder and side.
    """
    match kind:
        case "bpe" | "unigram":
            return load_subwords(kind, files, where)
        case "characters" | "words":
            return load_symbols(kind, files, where)
        case "bytes":
            return ByteTokenizer()
        case _:
            assert_never(kind)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenisers of a model; with a shared vocabulary both are one.

    A source character that training never saw would reach the model as ids whose embeddings were never learned, so
    it is left out: such ids are listed in `unseen_source_ids`. Nothing is left out as long as nobody has said what
    training saw (`trained_on`).
    """

    source: Tokenizer
    target: Tokenizer
    shared: bool
    unseen_source_ids: tuple[int, ...] = ()

    @cached_property
    def _unseen(self) -> frozenset[int]:
        return frozenset(self.unseen_source_ids)

    def trained_on(self, source_ids: Collection[int]) -> Self:
        """The same for a model that saw these ids, and no others, in its sources."""
        return replace(
            self, unseen_source_ids=tuple(index for index in self.source.fallback_ids() if index not in source_ids)
        )

    def after(self, earlier: "Tokenizers") -> Self:
        """The same for a model that goes on from one trained with `earlier`: what either has seen is not left out."""
        unseen = set(earlier.unseen_source_ids)
        return replace(self, unseen_source_ids=tuple(index for index in self.unseen_source_ids if index in unseen))

    def maybe_different(self, other: "Tokenizers") -> Literal["source", "target"] | None:
        """The first side on which ids mean other text than those of `other`; None where both sides mean the same."""
        if (self.source.kind, self.source.to_files()) != (other.source.kind, other.source.to_files()):
            return "source"
        if (self.target.kind, self.target.to_files()) != (other.target.kind, other.target.to_files()):
            return "target"
        return None

    def encode_source(self, text: str) -> list[int]:
        """Ids of a source, without an end symbol and without characters that training never saw."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_source` for many texts at once."""
        rows = self.source.encode_batch(texts)
        return [
            row if self._unseen.isdisjoint(row) else self._drop_unseen(text)
            for text, row in zip(texts, rows, strict=True)
        ]

    def encode_target(self, text: str) -> list[int]:
        """Ids of a target, without an end symbol."""
        return self.target.encode(text)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_target` for many texts at once."""
        return self.target.encode_batch(texts)

    def encode_and_tell(self, texts: Sequence[str]) -> list[tuple[list[int], tuple[str, ...]]]:
        """As `encode_sources`, and for each source what `left_out` says of it; cut into ids once."""
        return [
            (row, ())
            if self._unseen.isdisjoint(row)
            else (self._drop_unseen(text), tuple(dict.fromkeys(self._parts(text)[1])))
            for text, row in zip(texts, self.source.encode_batch(texts), strict=True)
        ]

    def left_out(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """For each source the symbols (characters, or words of a `words` tokeniser) that are left out, each once."""
        return [left_out for _, left_out in self.encode_and_tell(texts)] if self._unseen else [()] * len(texts)

    def _drop_unseen(self, text: str) -> list[int]:
        """Ids of a source from which whole symbols are taken out, so that no character is left in halves."""
        kept = (" " if self.source.kind == "words" else "").join(self._parts(text)[0])
        # White space alone would be read as a sentence all the same, and any sentence could come of it.
        return [index for index in self.source.encode(kept) if index not in self._unseen] if kept.strip() else []

    def _parts(self, text: str) -> tuple[list[str], list[str]]:
        """The symbols of a source that are kept and those that are left out, in order."""
        text = one_line(normalize(text))
        symbols = text.split() if self.source.kind == "words" else list(text)
        different = list(dict.fromkeys(symbols))
        unseen = {
            symbol
            for symbol, row in zip(different, self.source.encode_batch(different), strict=True)
            if not self._unseen.isdisjoint(row)
        }
        kept = [symbol for symbol in symbols if symbol not in unseen]
        return kept, [symbol for symbol in symbols if symbol in unseen]

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and the tokenisers' own files into a folder, which is made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        sides = {"shared": self.source} if self.shared else {"source": self.source, "target": self.target}
        manifest = {
            "format": FORMAT,
            "normalization": "nfc",
            "sides": {
                side: {"kind": tokenizer.kind, "size": tokenizer.size, "files": sorted(tokenizer.to_files())}
                for side, tokenizer in sides.items()
            },
            "unseen_source_ids": list(self.unseen_source_ids),
        }
        (folder / MANIFEST_FILE).write_bytes((json.dumps(manifest, indent=2) + "\n").encode("ascii"))
        for side, tokenizer in sides.items():
            for name, content in tokenizer.to_files().items():
                (folder / f"{side}-{name}").write_bytes(content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The tokenisers that `save` wrote; a fault is a `CheckpointError` that names the file."""
        place = folder / MANIFEST_FILE
        manifest = read_manifest(place)
        sides: Mapping[str, Any] = manifest["sides"]
        tokenizers = {side: load_side(folder, side, sides[side]) for side in sides}
        source = tokenizers.get("shared") or tokenizers["source"]
        target = tokenizers.get("shared") or tokenizers["target"]
        unseen = cast(list[int], manifest["unseen_source_ids"])
        if not set(unseen) <= set(source.fallback_ids()):
            raise CheckpointError(f"{place}: unseen_source_ids must be fallback ids of the source tokeniser")
        return cls(source, target, "shared" in tokenizers, tuple(unseen))


def read_manifest(place: Path) -> Mapping[str, Any]:
    """`tokenizer.json` with its shape checked."""
    try:
        manifest: Any = json.loads(place.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place}: not valid JSON ({error})") from None
    if not isinstance(manifest, dict) or cast(dict[str, Any], manifest).get("format") != FORMAT:
        raise CheckpointError(f"{place}: not a tokeniser of this version (format {FORMAT})")
    table = cast(dict[str, Any], manifest)
    if table.get("normalization") != "nfc":
        raise CheckpointError(f"{place}: unknown normalization {table.get('normalization')!r}; known: nfc")
    sides: Any = table.get("sides")
    if not isinstance(sides, dict) or set(cast(dict[str, Any], sides)) not in ({"shared"}, {"source", "target"}):
        raise CheckpointError(f"{place}: sides must be `shared` alone, or `source` and `target`")
    unseen: Any = table.get("unseen_source_ids")
    if not isinstance(unseen, list) or not all(isinstance(index, int) for index in cast(list[Any], unseen)):
        raise CheckpointError(f"{place}: unseen_source_ids must be a list of ids")
    return table


def load_side(folder: Path, side: str, entry: Any) -> Tokenizer:
    """One tokeniser of a folder, checked against its size in the manifest."""
    place = folder / MANIFEST_FILE
    table = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    kind, names = table.get("kind"), table.get("files")
    if kind not in get_args(TokenizerKind) or not isinstance(names, list):
        raise CheckpointError(
            f"{place}: {side}: kind must be one of {', '.join(get_args(TokenizerKind))}, files a list"
        )
    files: dict[str, bytes] = {}
    for name in cast(list[Any], names):
        path = folder / f"{side}-{Path(str(name)).name}"
        try:
            files[str(name)] = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    tokenizer = tokenizer_from_files(cast(TokenizerKind, kind), files, f"{folder}/{side}")
    if tokenizer.size != table.get("size"):
        raise CheckpointError(f"{place}: {side} has {tokenizer.size} ids, but the size is given as {table.get('size')}")
    return tokenizer


def train_tokenizers(config: TextConfig, sources: Iterable[str], targets: Iterable[str], seed: int) -> Tokenizers:
    """The tokenisers of a model, learned from samples of both sides."""
    options: dict[str, Any] = {
        "vocabulary_size": config.vocabulary_size,
        "minimum_count": config.minimum_count,
        "seed": seed,
    }
    if config.shared_vocabulary:
        source = target = train_tokenizer(config.source_kind, chain(sources, targets), **options)
    else:
        source = train_tokenizer(config.source_kind, sources, **options)
        target = train_tokenizer(config.target_kind, targets, **options)
    return Tokenizers(source, target, config.shared_vocabulary)
