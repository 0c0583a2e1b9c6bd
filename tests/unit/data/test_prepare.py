"""From files to stores: the same store however many workers, and nothing lost, doubled or left running."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from malmoi.config.text import CleaningConfig, DataSource
from malmoi.data import encoding
from malmoi.data.batching import BatchPlan
from malmoi.data.encoding import Workers, encode_in_order
from malmoi.data.prepare import build_store, cut_chunks, source_ids_in
from malmoi.data.store import FILES, Store
from malmoi.errors import DataError
from malmoi.text.corpus import Corpus, Pair, open_corpus
from malmoi.text.tokenizer import Tokenizers, train_tokenizer

CLEANING = CleaningConfig()
WORDS = ("the", "a", "little", "big", "cat", "dog", "bird", "sleeps", "barks", "sings", "at", "on", "near", "house")


def make_lines(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 8))) for _ in range(count)]


def write_corpus(folder: Path, sources: list[str], targets: list[str], weight: float = 1.0) -> Corpus:
    for name, lines in (("train.src", sources), ("train.tgt", targets)):
        (folder / name).write_bytes("".join(line + "\n" for line in lines).encode())
    return open_corpus(DataSource(source=str(folder / "train.src"), target=str(folder / "train.tgt"), weight=weight))


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    tokenizer = train_tokenizer("bpe", make_lines(200, 0), vocabulary_size=310)
    return Tokenizers(tokenizer, tokenizer, shared=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path, make_lines(600, 1), make_lines(600, 2))


def text_of(store: Store, tokenizers: Tokenizers) -> list[tuple[str, str, int]]:
    return [
        (
            tokenizers.source.decode(store.source(index).tolist()),
            tokenizers.target.decode(store.target(index).tolist()),
            store.line(index),
        )
        for index in range(store.num_pairs)
    ]


def test_text_comes_back_and_ends(tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers) -> None:
    store = build_store(corpus, tokenizers, CLEANING, tmp_path / "store")
    assert text_of(store, tokenizers) == [(pair.source, pair.target, pair.line) for pair in corpus.pairs()]
    for index in (0, 599):
        assert store.source(index).tolist() == [*tokenizers.encode_source(list(corpus.pairs())[index].source), 1]
        assert store.target(index)[-1] == 1


def timeless(store: Store) -> dict[str, Any]:
    """A manifest but for when its files were written."""
    return store.manifest.model_dump(exclude={"files": {name: {"modified_ns"} for name in FILES}})


@pytest.mark.parametrize("workers", [1, 3])
def test_each_line_once_whatever_the_number_of_workers(
    tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers, workers: int
) -> None:
    """The very same bytes as without workers, and each pair once in an epoch.

    pytorch/pytorch#30599, espnet/espnet#2081, huggingface/datasets#3423.
    """
    alone = build_store(corpus, tokenizers, CLEANING, tmp_path / "alone", workers=0)
    store = build_store(corpus, tokenizers, CLEANING, tmp_path / "store", workers=workers, chunk_pairs=70)
    for name in FILES:
        assert (tmp_path / "store" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    assert timeless(store) == timeless(alone)
    epoch = BatchPlan([store], 100, seed=1).epoch(0)
    lines = Counter(store.line(index) for batch in epoch for index in batch.tolist())
    assert lines == Counter(range(1, 601))


def test_fewer_lines_than_workers(tmp_path: Path, tokenizers: Tokenizers) -> None:
    """No worker waits for a line that does not come.

    pytorch/pytorch#30599, espnet/espnet#2081, huggingface/datasets#3423.
    """
    corpus = write_corpus(tmp_path, ["the cat", "a dog"], ["the dog", "a cat"])
    for chunk_pairs in (1, 100):
        folder = tmp_path / f"store{chunk_pairs}"
        store = build_store(corpus, tokenizers, CLEANING, folder, workers=4, chunk_pairs=chunk_pairs)
        assert [row[0] for row in text_of(store, tokenizers)] == ["the cat", "a dog"]


def test_only_whole_pairs_are_dropped_and_counted(tmp_path: Path, tokenizers: Tokenizers) -> None:
    """Blank lines on one side take the other side along; later pairs stay together.

    stefan-it/nmt-en-vi#6, sillsdev/silnlp#137, facebookresearch/fairseq#4146.
    """
    corpus = write_corpus(tmp_path, ["the cat", "", "a dog", " ", "bird"], ["cat the", "x", "dog a", "y", "\u00a0"])
    store = build_store(corpus, tokenizers, CLEANING, tmp_path / "store")
    assert text_of(store, tokenizers) == [("the cat", "cat the", 1), ("a dog", "dog a", 3)]
    assert store.manifest.cleaning["kept"] == 2
    assert store.manifest.cleaning["dropped"] == {"empty": 3}


def test_unequal_files_leave_nothing(tmp_path: Path, tokenizers: Tokenizers) -> None:
    """stefan-it/nmt-en-vi#6, sillsdev/silnlp#137, facebookresearch/fairseq#4146."""
    corpus = write_corpus(tmp_path, ["a"] * 5, ["b"] * 4)
    with pytest.raises(DataError, match=r"5 lines .*4;"):
        build_store(corpus, tokenizers, CLEANING, tmp_path / "store", workers=1, chunk_pairs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.src", "train.tgt"]


def test_too_many_tokens_are_dropped_and_counted(tmp_path: Path, tokenizers: Tokenizers) -> None:
    lines = ["the cat", "the cat sleeps near the big house", "a dog"]
    corpus = write_corpus(tmp_path, lines, ["the"] * 3)
    lengths = [len(tokenizers.encode_source(line)) + 1 for line in lines]
    store = build_store(corpus, tokenizers, CleaningConfig(max_tokens=lengths[1] - 1), tmp_path / "store")
    assert [row[2] for row in text_of(store, tokenizers)] == [1, 3]
    assert store.manifest.cleaning == {"kept": 2, "dropped": {"too_long": 1}, "examples": {"too_long": [2]}}
    exact = build_store(corpus, tokenizers, CleaningConfig(max_tokens=lengths[1]), tmp_path / "exact")
    assert exact.num_pairs == 3


def test_unseen_characters_are_left_out_as_in_translation(tmp_path: Path) -> None:
    characters = train_tokenizer("bpe", ["abc ab c"], vocabulary_size=300)
    unseen = tuple(index for index in characters.fallback_ids() if index)
    tokenizers = Tokenizers(characters, characters, shared=True, unseen_source_ids=unseen)
    store = build_store(
        write_corpus(tmp_path, ["ab中c", "中"], ["ab中c", "c"]), tokenizers, CLEANING, tmp_path / "store"
    )
    assert store.source(0).tolist() == [*tokenizers.encode_source("ab中c"), 1] == [*tokenizers.encode_source("abc"), 1]
    assert store.source(1).tolist() == [1]
    assert tokenizers.target.decode(store.target(0).tolist()) == "ab中c"


def test_source_ids_in_stores(tmp_path: Path, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malmoi.data.prepare.IDS_AT_ONCE", 3)
    stores = [
        build_store(write_corpus(tmp_path, [text], ["zzz"]), tokenizers, CLEANING, tmp_path / name)
        for text, name in (("the cat sleeps", "one"), ("a dog \u4e2d", "two"))
    ]
    expected = {1, *tokenizers.encode_source("the cat sleeps"), *tokenizers.encode_source("a dog \u4e2d")}
    assert source_ids_in(stores) == expected
    assert source_ids_in(stores[:1]) == {1, *tokenizers.encode_source("the cat sleeps")}


def mark(folder: Path) -> None:
    """Leave something that goes when the store is made again."""
    (folder / "mark").touch()


def is_marked(folder: Path) -> bool:
    return (folder / "mark").exists()


def test_a_store_is_made_again_only_when_something_changed(
    tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers
) -> None:
    folder = tmp_path / "store"
    other = train_tokenizer("bpe", make_lines(200, 0), vocabulary_size=300)

    def even() -> Iterator[Pair]:
        return (pair for pair in corpus.pairs() if pair.line % 2 == 0)

    part = replace(corpus, pairs=even, part="even")

    build_store(corpus, tokenizers, CLEANING, folder)
    mark(folder)
    assert build_store(corpus, tokenizers, CLEANING, folder, workers=2).num_pairs == 600
    assert is_marked(folder)
    # One thing changes at a time.
    build_store(corpus, tokenizers, CleaningConfig(max_tokens=255), folder)
    assert not is_marked(folder)
    mark(folder)
    build_store(corpus, Tokenizers(other, other, shared=True), CleaningConfig(max_tokens=255), folder)
    assert not is_marked(folder)
    build_store(corpus, tokenizers, CLEANING, folder)
    mark(folder)
    build_store(part, tokenizers, CLEANING, folder)
    assert not is_marked(folder)
    mark(folder)
    write_corpus(tmp_path, make_lines(600, 1), make_lines(600, 3))
    store = build_store(part, tokenizers, CLEANING, folder)
    assert not is_marked(folder)
    assert [row[2] for row in text_of(store, tokenizers)] == list(range(2, 601, 2))


def test_weight_is_not_content(tmp_path: Path, tokenizers: Tokenizers) -> None:
    lines = make_lines(5, 1)
    build_store(write_corpus(tmp_path, lines, lines), tokenizers, CLEANING, tmp_path / "store")
    mark(tmp_path / "store")
    heavy = write_corpus(tmp_path, lines, lines, weight=3.0)
    assert build_store(heavy, tokenizers, CLEANING, tmp_path / "store").weight == 3.0
    assert is_marked(tmp_path / "store")


def test_a_damaged_or_foreign_folder_is_not_replaced(tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear", encoding="utf-8")
    with pytest.raises(DataError, match="mine"):
        build_store(corpus, tokenizers, CLEANING, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter").read_text(encoding="utf-8") == "dear"
    build_store(corpus, tokenizers, CLEANING, tmp_path / "store")
    data = bytearray((tmp_path / "store" / "target.ids").read_bytes())
    data[3] ^= 4
    (tmp_path / "store" / "target.ids").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"target\.ids"):
        build_store(corpus, tokenizers, CLEANING, tmp_path / "store")


def test_progress_counts_up_to_the_end(tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers) -> None:
    counts: list[int] = []
    build_store(corpus, tokenizers, CLEANING, tmp_path / "store", chunk_pairs=250, progress=counts.append)
    assert counts == [250, 500, 600]


# Workers that go wrong


def chunks_of(corpus: Corpus, size: int = 50) -> Iterator[list[Pair]]:
    return cut_chunks(corpus.pairs(), size)


def test_a_killed_worker_is_an_error(
    tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "Workers", started := Recorded)
    results = encode_in_order(chunks_of(corpus), tokenizers, 2)
    next(results)
    processes = started.latest.processes
    processes[1].kill()
    with pytest.raises(DataError, match=r"killed by signal 9.*fewer workers"):
        list(results)
    assert all(process.poll() is not None for process in processes)


class Recorded(Workers):
    """Workers that can be looked at from outside."""

    latest: Workers

    def __enter__(self) -> "Recorded":
        Recorded.latest = self
        return self


def test_a_killed_worker_leaves_no_store(
    tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "Workers", Recorded)

    def kill_one(_: int) -> None:
        Recorded.latest.processes[0].kill()

    with pytest.raises(DataError, match="killed by signal 9"):
        build_store(corpus, tokenizers, CLEANING, tmp_path / "store", workers=2, chunk_pairs=50, progress=kill_one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.src", "train.tgt"]


def test_what_a_worker_cannot_do_is_told(
    tmp_path: Path, corpus: Corpus, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizers, "save", lambda self, folder: None)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        list(encode_in_order(chunks_of(corpus), tokenizers, 1))


def test_a_full_temporary_folder_is_told(
    corpus: Corpus, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Tokenizers, "save", fail)
    with pytest.raises(DataError, match=r"No space left on device\); let TMPDIR"):
        list(encode_in_order(chunks_of(corpus), tokenizers, 1))


def test_why_a_worker_left_is_told_even_when_it_left_long_ago(corpus: Corpus, tmp_path: Path) -> None:
    """The chunk after the failure finds a closed pipe; the reason stands in what the worker wrote before."""
    tokenizer = train_tokenizer("characters", ["abc"], vocabulary_size=10)
    tokenizers = Tokenizers(tokenizer, tokenizer, shared=True)
    tokenizers.save(tmp_path)
    with pytest.raises(DataError, match=r"tokenizer\.json"), Workers(tokenizers, tmp_path / "nowhere", 1) as pool:
        pool.worker(0).wait()
        for chunk in chunks_of(corpus):
            pool.send(chunk, pool.worker(0))


def test_workers_go_when_nobody_listens(
    corpus: Corpus, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "Workers", Recorded)
    results = encode_in_order(chunks_of(corpus), tokenizers, 2)
    next(results)
    del results
    gc.collect()
    assert all(process.poll() is not None for process in Recorded.latest.processes)


CALLER = """
import sys
from pathlib import Path
from typing import Any
from malmoi.data import encoding
from malmoi.text.corpus import Pair
from malmoi.text.tokenizer import Tokenizers

pool = encoding.Workers(Tokenizers.load(Path(sys.argv[1])), Path(sys.argv[1]), 2)
results = pool.encode([Pair("the cat", "the dog", line)] for line in range(100))
next(results)
print(*(process.pid for process in pool.processes), flush=True)
sys.stdin.read()
"""


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process_id}/stat")
    # Where nobody reaps it, an ended process stays in the table as a zombie.
    return not (status.exists() and status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(sys.platform == "win32", reason="asks the system about process ids as POSIX does")
def test_workers_do_not_outlive_a_killed_caller(tmp_path: Path, tokenizers: Tokenizers) -> None:
    tokenizers.save(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as caller:
        assert caller.stdout is not None
        workers = [int(word) for word in caller.stdout.readline().split()]
        assert len(workers) == 2
        assert all(is_running(worker) for worker in workers)
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        deadline = time.monotonic() + 60
        while any(is_running(worker) for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(is_running(worker) for worker in workers)


def test_chunks_are_bounded_by_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malmoi.data.prepare.CHUNK_CHARACTERS", 10)
    pairs = [Pair("a" * size, "b", line) for line, size in enumerate([1, 1, 20, 1, 1], start=1)]
    assert [[pair.line for pair in chunk] for chunk in cut_chunks(pairs, 100)] == [[1, 2, 3], [4, 5]]
    assert [[pair.line for pair in chunk] for chunk in cut_chunks(pairs[:2], 2)] == [[1, 2]]
