"""Tokenised pairs on disk, mapped into memory.

In: a folder that `prepare.build_store` or `malmoi prepare` made. Out: ids of each pair as NumPy views into the files,
which the operating system loads and drops as it likes; only two arrays of lengths are held in memory.

A folder holds `source.ids` and `target.ids` (unsigned integers of 2 or 4 bytes), `source.offsets` and `target.offsets`
(8 bytes, one more than there are pairs), `lines` (8 bytes: each pair's line in its corpus, from 1) and `manifest.json`
(what it was made from, and size and hash of each file). All integers are little-endian. Each side of a pair ends with
the end symbol.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from malmoi.config.tables import Table
from malmoi.errors import DataError
from malmoi.files import TEMPORARY, former_of, hash_bytes, measure, replace_folder

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
IdType = Literal["<u2", "<u4"]

MANIFEST = "manifest.json"
FILES = ("source.ids", "target.ids", "source.offsets", "target.offsets", "lines")
# Pairs per step where a whole pass over the offsets is needed: keeps temporary arrays small.
PAIRS_AT_ONCE = 1 << 20


class FileRecord(Table):
    """Size in bytes and blake2b hash of one file."""

    size: int
    hash: str


class InputRecord(FileRecord):
    """Also when the file was last changed, in nanoseconds; None where nobody noted."""

    modified_ns: int | None = None


class Manifest(Table):
    """What a store is and what it was made from."""

    format: Literal["malmoi store 1"] = "malmoi store 1"
    key: str
    """Hash of all that decides the content: input files, settings, tokenisers. Equal keys mean equal stores."""
    description: str
    """The corpus in words."""
    inputs: dict[str, InputRecord]
    """The corpus' files by name."""
    tokenizers: str
    """Hash of the tokenisers; ids mean nothing to others."""
    weight: float = 1.0
    num_pairs: int
    source_vocabulary_size: int
    target_vocabulary_size: int
    source_type: IdType
    target_type: IdType
    longest_source: int | None = None
    """Tokens of the longest source, end symbol included; None where nobody noted."""
    longest_target: int | None = None
    files: dict[str, InputRecord]
    cleaning: dict[str, Any]
    """How many pairs were kept and dropped, for which reasons and where (`CleaningReport.to_json`)."""


@dataclass(frozen=True, eq=False)
class Store:
    """Tokenised pairs of one corpus; indices run from 0 to num_pairs - 1 in the corpus' order."""

    folder: Path
    manifest: Manifest
    weight: float
    """How often each pair is seen in an epoch, on average."""
    source_ids: IntArray
    target_ids: IntArray
    source_offsets: npt.NDArray[np.int64]
    target_offsets: npt.NDArray[np.int64]
    line_numbers: npt.NDArray[np.int64]
    times: dict[str, int]
    """When each file was last changed, in nanoseconds, as of the last look at it."""

    @classmethod
    def open(cls, folder: Path, *, weight: float | None = None, verify: bool = True) -> Self:
        """Map a store; `DataError` with the folder's name if it is none, or damaged.

        A file whose size and time are as they were when it was written is not read. `verify` reads any other once to
        compare its hash (about a second per gigabyte). `weight` replaces the one that the store was made with.
        """
        manifest = read_manifest(folder)
        store = cls(
            folder=folder,
            manifest=manifest,
            weight=manifest.weight if weight is None else weight,
            times={name: check_file(folder, name, manifest, verify) for name in FILES},
            source_ids=map_array(folder / "source.ids", manifest.source_type),
            target_ids=map_array(folder / "target.ids", manifest.target_type),
            source_offsets=map_array(folder / "source.offsets", "<i8"),
            target_offsets=map_array(folder / "target.offsets", "<i8"),
            line_numbers=map_array(folder / "lines", "<i8"),
        )
        for offsets, ids in ((store.source_offsets, store.source_ids), (store.target_offsets, store.target_ids)):
            if len(offsets) != manifest.num_pairs + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
                raise DataError(f"{folder}: the store is damaged (its offsets do not fit its ids); delete it")
        if len(store.line_numbers) != manifest.num_pairs:
            raise DataError(f"{folder}: the store is damaged ({len(store.line_numbers)} line numbers); delete it")
        return store

    @property
    def num_pairs(self) -> int:
        return self.manifest.num_pairs

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Its files by name."""
        return {name: self.folder / name for name in FILES}

    def check(self) -> None:
        """`DataError` with its name where a file is gone, or holds something else than it did when it was opened."""
        for name, path in self.paths.items():
            try:
                status, time = path.stat(), self.times[name]
                is_same = (status.st_size, status.st_mtime_ns) == (self.manifest.files[name].size, time)
            except FileNotFoundError:
                is_same = False
            if not is_same:
                self.times[name] = check_file(self.folder, name, self.manifest, verify=True)

    @cached_property
    def longest_source(self) -> int:
        """Tokens of the longest source, end symbol included; 0 without pairs."""
        noted = self.manifest.longest_source
        return int(self.source_lengths.max(initial=0)) if noted is None else noted

    @cached_property
    def longest_target(self) -> int:
        """Tokens of the longest target, end symbol included; 0 without pairs."""
        noted = self.manifest.longest_target
        return int(self.target_lengths.max(initial=0)) if noted is None else noted

    def count_longer(self, limit: int) -> int:
        """Pairs with a side of more tokens than `limit`."""
        if max(self.longest_source, self.longest_target) <= limit:
            return 0
        found = 0
        for first in range(0, self.num_pairs, PAIRS_AT_ONCE):
            some = slice(first, first + PAIRS_AT_ONCE + 1)
            sides = (np.diff(self.source_offsets[some]), np.diff(self.target_offsets[some]))
            found += int(np.count_nonzero(np.maximum(*sides) > limit))
        return found

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each source, end symbol included."""
        return lengths_of(self.source_offsets)

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each target, end symbol included."""
        return lengths_of(self.target_offsets)

    def source(self, index: int) -> IntArray:
        """Ids of one source, end symbol included."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> IntArray:
        """Ids of one target, end symbol included."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]

    def line(self, index: int) -> int:
        """The pair's line in its corpus, from 1."""
        return int(self.line_numbers[index])


def lengths_of(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Differences of neighbouring offsets, in pieces: no 8-byte copy of the whole."""
    lengths = np.empty(len(offsets) - 1, dtype=np.int32)
    for first in range(0, len(lengths), PAIRS_AT_ONCE):
        last = min(first + PAIRS_AT_ONCE, len(lengths))
        lengths[first:last] = np.diff(offsets[first : last + 1])
    return lengths


def map_array(path: Path, kind: str) -> npt.NDArray[Any]:
    """A file's integers as a read-only view; an empty file cannot be mapped and is an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store, or a `DataError` that names the folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such store")
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder}: not a store of malmoi (it has no {MANIFEST})") from None
    except ValidationError as error:
        raise DataError(f"{folder / MANIFEST}: not a manifest of a store that this version can read: {error}") from None


def check_file(folder: Path, name: str, manifest: Manifest, verify: bool) -> int:
    """Compare one file with what the manifest says about it; returns when it was last changed, in nanoseconds."""
    path = folder / name
    record = manifest.files.get(name)
    if record is None or not path.is_file():
        raise DataError(f"{folder}: the store is damaged ({name} is missing); delete it and prepare the data again")
    status = path.stat()
    size, time = status.st_size, status.st_mtime_ns
    if size != record.size:
        raise DataError(
            f"{path}: the store is damaged ({size} bytes where {record.size} were written); "
            "delete the store and prepare the data again"
        )
    if verify and time != record.modified_ns and measure(path)[1] != record.hash:
        raise DataError(f"{path}: the store is damaged (its content changed); delete it and prepare the data again")
    return time


def hash_json(value: Mapping[str, Any]) -> str:
    """blake2b of a value in JSON's spelling with sorted keys."""
    return hash_bytes(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())


def id_type(vocabulary_size: int) -> IdType:
    """The smallest integer type that holds every id of a vocabulary."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


class HashedFile:
    """A file that is written once, with size and hash counted on the way."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("wb")
        self.size = 0
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, array: IntArray) -> None:
        data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
        self.file.write(data)
        self.digest.update(data)
        self.size += len(data)

    def close(self) -> InputRecord:
        self.file.flush()
        os.fsync(self.file.fileno())
        time = os.fstat(self.file.fileno()).st_mtime_ns
        self.file.close()
        return InputRecord(size=self.size, hash=self.digest.hexdigest(), modified_ns=time)


class StoreWriter:
    """Writes a store under a temporary name beside its folder; `finish` puts it in place.

    As a context manager it removes what it wrote if anything went wrong, so that a folder is whole or not there.
    """

    def __init__(self, folder: Path, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        self.folder = folder
        self.partial = folder.with_name(f"{TEMPORARY}{folder.name}")
        self.sizes = (source_vocabulary_size, target_vocabulary_size)
        self.types = (id_type(source_vocabulary_size), id_type(target_vocabulary_size))
        self.num_pairs = 0
        self.ends = [0, 0]
        self.longest = [0, 0]
        self.files: dict[str, HashedFile] = {}

    def __enter__(self) -> Self:
        with told_as_data_error(self.folder):
            # What an earlier, killed process left under these names is of no use to anybody.
            shutil.rmtree(self.partial, ignore_errors=True)
            shutil.rmtree(former_of(self.folder), ignore_errors=True)
            self.partial.mkdir(parents=True)
            self.files = {name: HashedFile(self.partial / name) for name in FILES}
            for name in ("source.offsets", "target.offsets"):
                self.files[name].write(np.zeros(1, dtype="<i8"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self.files.values():
            # After a full disk the rest cannot be flushed either; the first error is the one to tell.
            with contextlib.suppress(OSError):
                file.file.close()
        shutil.rmtree(self.partial, ignore_errors=True)

    def add(
        self,
        source_ids: IntArray,
        source_lengths: IntArray,
        target_ids: IntArray,
        target_lengths: IntArray,
        lines: IntArray,
    ) -> None:
        """Append pairs: ids of all of them in a row, and how many belong to each, end symbols included."""
        assert len(source_lengths) == len(target_lengths) == len(lines)
        with told_as_data_error(self.folder):
            sides = (("source", source_ids, source_lengths), ("target", target_ids, target_lengths))
            for number, (side, ids, lengths) in enumerate(sides):
                assert int(lengths.sum()) == len(ids)
                self.files[f"{side}.ids"].write(ids.astype(self.types[number], copy=False))
                offsets = self.ends[number] + np.cumsum(lengths, dtype="<i8")
                self.files[f"{side}.offsets"].write(offsets)
                self.ends[number] += len(ids)
                self.longest[number] = max(self.longest[number], int(lengths.max(initial=0)))
            self.files["lines"].write(lines.astype("<i8", copy=False))
        self.num_pairs += len(lines)

    def finish(
        self,
        *,
        key: str,
        description: str,
        inputs: dict[str, InputRecord],
        tokenizers: str = "",
        weight: float,
        cleaning: dict[str, Any],
    ) -> Manifest:
        """Flush everything to disk, write the manifest and rename the whole into place."""
        with told_as_data_error(self.folder):
            manifest = Manifest(
                key=key,
                description=description,
                inputs=inputs,
                tokenizers=tokenizers,
                weight=weight,
                num_pairs=self.num_pairs,
                source_vocabulary_size=self.sizes[0],
                target_vocabulary_size=self.sizes[1],
                source_type=self.types[0],
                target_type=self.types[1],
                longest_source=self.longest[0],
                longest_target=self.longest[1],
                files={name: file.close() for name, file in self.files.items()},
                cleaning=cleaning,
            )
            with (self.partial / MANIFEST).open("wb") as file:
                file.write(manifest.model_dump_json(indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            replace_folder(self.partial, self.folder)
        return manifest


@contextlib.contextmanager
def told_as_data_error(folder: Path) -> Generator[None, None, None]:
    """What the file system refuses (a full disk, no permission) becomes a `DataError` that names the store."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{folder}: the store cannot be written ({error.strerror or error})") from error
