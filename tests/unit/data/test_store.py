"""Stores: what is written comes back, and what is not whole is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from malmoi.data.store import FILES, MANIFEST, Store, StoreWriter, id_type
from malmoi.errors import DataError


def write_store(folder: Path, sources: list[list[int]], targets: list[list[int]], size: int = 100) -> Store:
    with StoreWriter(folder, size, size) as writer:
        for source, target, line in zip(sources, targets, range(1, len(sources) + 1), strict=True):
            writer.add(
                np.array(source), np.array([len(source)]), np.array(target), np.array([len(target)]), np.array([line])
            )
        writer.finish(key="key", description="test", inputs={}, tokenizers="", weight=1.0, cleaning={})
    return Store.open(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", [[5, 6, 1], [7, 1]], [[8, 1], [9, 10, 11, 1]])
    return tmp_path / "store"


def test_pairs_come_back(folder: Path) -> None:
    store = Store.open(folder)
    assert store.num_pairs == 2
    assert store.source(0).tolist() == [5, 6, 1]
    assert store.source(1).tolist() == [7, 1]
    assert store.target(1).tolist() == [9, 10, 11, 1]
    assert [store.line(0), store.line(1)] == [1, 2]
    assert store.source_lengths.tolist() == [3, 2]
    assert store.source_lengths.dtype == store.target_lengths.dtype == np.int32
    assert store.target_lengths.tolist() == [2, 4]
    assert store.weight == 1.0
    assert Store.open(folder, weight=2.5).weight == 2.5


def test_ids_take_two_bytes_where_they_fit(tmp_path: Path) -> None:
    assert (id_type(65536), id_type(65537)) == ("<u2", "<u4")
    small = write_store(tmp_path / "small", [[65535]], [[1]], 65536)
    large = write_store(tmp_path / "large", [[65536]], [[1]], 65537)
    assert small.source(0).tolist() == [65535]
    assert large.source(0).tolist() == [65536]


def test_an_empty_store_can_be_opened(tmp_path: Path) -> None:
    assert write_store(tmp_path / "store", [], []).num_pairs == 0


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_refused_by_name(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=name):
        Store.open(folder, verify=False)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_refused_by_name(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[0] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(DataError, match=name):
        Store.open(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        Store.open(folder)


def test_foreign_folders_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(DataError, match=r"foreign.*manifest\.json"):
        Store.open(tmp_path / "foreign")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for wrong in ({**manifest, "format": "malmoi store 2"}, {**manifest, "num_pairs": "many"}, ["list"]):
        (folder / MANIFEST).write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(DataError, match=r"manifest\.json"):
            Store.open(folder)
    (folder / MANIFEST).write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataError, match=r"manifest\.json"):
        Store.open(folder)


def test_offsets_that_do_not_fit_are_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps({**manifest, "num_pairs": 3}), encoding="utf-8")
    with pytest.raises(DataError, match="store is damaged"):
        Store.open(folder)


def test_nothing_half_made_stays(folder: Path) -> None:
    """A failure while writing leaves the old store as it was."""
    before = (folder / MANIFEST).read_bytes()
    with pytest.raises(RuntimeError, match="stop"), StoreWriter(folder, 10, 10):
        raise RuntimeError("stop")
    assert (folder / MANIFEST).read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_new_store_takes_the_place_of_the_old_one(folder: Path) -> None:
    (folder.parent / f".tmp-{folder.name}").mkdir()
    write_store(folder, [[3, 1]], [[4, 1]])
    assert Store.open(folder).source(0).tolist() == [3, 1]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_the_file_system_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="store cannot be written"), StoreWriter(tmp_path / "file" / "store", 10, 10):
        pass
