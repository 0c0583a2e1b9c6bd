"""`malmoi translate --out`: whatever ends it and whoever works, it gives the bytes of one plain translation."""

import gzip
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.product_toys import run_malmoi, sentences, write

from malmoi.commands.main import app
from malmoi.errors import ConfigError, DataError
from malmoi.text.lines import read_lines

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="workers are looked up in /proc")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (extra `ray`)")
MINUTES = 5 * 60
NUMBER = re.compile(r"-?[0-9]+\.[0-9]+(?:e-[0-9]+)?")


def call(*words: str | Path) -> None:
    """The command in this process, for what ends before any worker is started."""
    app(list(map(str, words)), standalone_mode=False)


@pytest.fixture(scope="module")
def corpus(toy: Path) -> Path:
    """90 lines, among them blank ones, without a line feed at the end."""
    lines = [source for source, _ in sentences(90, seed=9)]
    lines[3] = lines[60] = ""
    lines[4] = " \u00a0"
    path = toy / "corpus.src"
    path.write_bytes("\n".join(lines).encode())
    return path


@pytest.fixture(scope="module")
def plain(toy: Path, corpus: Path) -> bytes:
    """The slow and obvious way: everything in one go to standard output."""
    return run_malmoi("translate", "run", corpus, cwd=toy).stdout


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_matter(toy: Path, corpus: Path, plain: bytes, tmp_path: Path, workers: int) -> None:
    words = ("translate", toy / "run", corpus, "--out", "out.txt", "--workers", str(workers), "--block", "17")
    done = run_malmoi(*words, cwd=tmp_path)
    assert (tmp_path / "out.txt").read_bytes() == plain and plain.count(b"\n") == 90
    assert done.stdout == b""
    assert b"6 blocks to do" in done.stderr and b"out.txt: 90 lines" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_samples_json_lists_wishes_and_archives(toy: Path, tmp_path: Path) -> None:
    """A sample depends on the number of its line, so that blank lines in earlier blocks change nothing."""
    sources = ["kami to.", "", "su.", "ne wi lu.", "", "yo ha kami.", "to"]
    (tmp_path / "in.gz").write_bytes(gzip.compress("\r\n".join(sources).encode()))
    write(tmp_path / "prefixes", ["to", "", "", "su", "", "", ""])
    write(tmp_path / "phrases", ["mi", "", "", "", "", "ka\tto", ""])
    sample = ("--set", "method=sample", "--set", "seed=7", "--json")
    wishes = ("--prefix", "prefixes", "--constraints", "phrases", "--n-best", "2")
    for name, words in (("out.zst", sample), ("out.gz", wishes)):
        expected = run_malmoi("translate", toy / "run", "in.gz", *words, cwd=tmp_path)
        done = run_malmoi("translate", toy / "run", "in.gz", *words, "--out", name, "--block", "2", cwd=tmp_path)
        found = list(read_lines(tmp_path / name))
        wanted = expected.stdout.decode().split("\n")[:-1]
        # Scores of other batches differ in their last digits.
        assert [NUMBER.sub("#", line) for line in found] == [NUMBER.sub("#", line) for line in wanted]
        numbers = [[float(one) for one in NUMBER.findall(" ".join(lines))] for lines in (found, wanted)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
        assert [line for line in expected.stderr.split(b"\n") if line not in done.stderr] == []
    rows = [json.loads(line) for line in read_lines(tmp_path / "out.zst")]
    assert [row["line"] for row in rows] == list(range(1, 8))


def test_an_empty_file_and_a_bad_line(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").write_bytes(b"")
    run_malmoi("translate", toy / "run", "empty", "--out", "out.txt", cwd=tmp_path)
    assert (tmp_path / "out.txt").read_bytes() == b""
    (tmp_path / "bad").write_bytes(b"kami\n" * 10 + b"caf\xe9\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="bad:11: not UTF-8 at byte 4"):
        call("translate", toy / "run", "bad", "--out", "bad.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty", "out.txt"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-", "--out", "out.txt"), "standard input cannot be read again"),
        (("in", "--out", "in"), "is the input itself"),
        (("in", "--out", "."), "this is a folder"),
        (("in", "--out", "out.txt", "--unbuffered"), "leave one of them away"),
        (("in", "--out", "out.txt", "--cluster", "spark"), "--cluster spark: must be one of ray"),
        (("in", "--out", "out.txt", "--set", "beam_sise=3"), "beam_size"),
        (("in", "--workers", "2"), "give --out, too"),
        (("in", "--cluster", "ray"), "give --out, too"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], told: str
) -> None:
    (tmp_path / "in").write_bytes(b"kami\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        call("translate", toy / "run", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


class Job:
    """The command in a process of its own, that can be watched and killed."""

    def __init__(self, folder: Path, words: Sequence[str | Path]) -> None:
        self.parts = folder / "out.txt.parts"
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "malmoi", *map(str, words)],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def blocks(self) -> dict[str, tuple[int, int]]:
        """Finished blocks, and what tells one that was made anew from one that was not."""
        return {
            path.name: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in self.parts.glob("[0-9]*.block")
        }

    def wait_for(self, condition: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            assert time.monotonic() - began < MINUTES, self.log.read_text(encoding="utf-8")
            time.sleep(0.002)

    def finish(self) -> str:
        assert self.process.wait(MINUTES) == 0, self.log.read_text(encoding="utf-8")
        return self.log.read_text(encoding="utf-8")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def descendants(self) -> list[int]:
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += [int(child) for child in children.read_text(encoding="ascii").split()]
                except OSError:
                    continue
        return found[1:]


def named(pids: Sequence[int], name: bytes) -> list[int]:
    """Those processes whose command line holds a word."""
    found: list[int] = []
    for pid in pids:
        try:
            if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def stop_in(name: bytes, pids: Sequence[int]) -> list[int]:
    """Stop one of the processes that bear a name, and still do when they stand; none where there is no such one."""
    for pid in named(pids, name):
        os.kill(pid, signal.SIGSTOP)
        if named([pid], name):
            return [pid]
        os.kill(pid, signal.SIGCONT)
    return []


def test_killed_at_any_block_it_goes_on_and_does_nothing_twice(
    toy: Path, corpus: Path, plain: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("translate", toy / "run", corpus, "--out", "out.txt", "--workers", "1", "--block", "2")
    draw = random.Random(os.getpid())
    done: dict[str, tuple[int, int]] = {}
    for most in (10, 25):
        job = Job(tmp_path, words)
        aim = draw.randrange(len(done) + 1, most)
        job.wait_for(lambda job=job, aim=aim: len(job.blocks()) >= aim)
        job.kill()
        found = job.blocks()
        assert done.items() <= found.items() and len(found) > len(done)
        done = found
        assert not (tmp_path / "out.txt").exists()

    monkeypatch.chdir(tmp_path)
    told = "beam_size: 5 -> 2; length_alpha: 1.0 -> 0.5.*choose another --out, or remove the folder"
    with pytest.raises(ConfigError, match=told):
        call(*words, "--beam", "2", "--set", "length_alpha=0.5")
    (tmp_path / "other").write_bytes(corpus.read_bytes() + b"!")
    with pytest.raises(ConfigError, match="the input is another file"):
        call("translate", toy / "run", "other", *words[3:])
    checkpoint = next((toy / "run" / "checkpoints").iterdir())
    with pytest.raises(ConfigError, match="the model is another"):
        call("translate", checkpoint, *words[2:])
    assert job.blocks() == done

    # The same file by another name goes on as well: what counts is what is in it.
    (tmp_path / "copy").write_bytes(corpus.read_bytes())
    last = run_malmoi("translate", toy / "run", "copy", *words[3:], cwd=tmp_path)
    assert f"{len(done)} of 45 blocks are done; going on".encode() in last.stderr
    assert f"{45 - len(done)} blocks to do".encode() in last.stderr
    assert (tmp_path / "out.txt").read_bytes() == plain
    assert not job.parts.exists()


@needs_proc
def test_a_killed_workers_block_is_done_by_another(toy: Path, corpus: Path, plain: bytes, tmp_path: Path) -> None:
    words = ("translate", toy / "run", corpus, "--out", "out.txt", "--workers", "2", "--block", "2")
    job = Job(tmp_path, words)
    try:
        job.wait_for(lambda: len(job.blocks()) >= 8)
        os.kill(named(job.descendants(), b"spawn_main")[0], signal.SIGKILL)
        told = job.finish()
    finally:
        job.kill()
    assert "ended by signal 9 (SIGKILL)" in told or "2 workers" in told
    assert (tmp_path / "out.txt").read_bytes() == plain


@needs_proc
@needs_ray
def test_begun_here_and_ended_by_ray_with_one_worker_killed(
    toy: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed one is stopped first, while it has a block in hand, until all others are done: that one is lost."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # So wide a beam that there is much left to do when the first block is seen.
    search = ("--beam", "60")
    words = ("translate", toy / "run", corpus, "--out", "out.txt", "--workers", "2", "--block", "2", *search)
    wanted = run_malmoi("translate", "run", corpus, *search, cwd=toy).stdout
    here = Job(tmp_path, words)
    here.wait_for(lambda: len(here.blocks()) >= 5)
    here.kill()
    done = here.blocks()
    there = Job(tmp_path, (*words, "--cluster", "ray"))
    try:
        stopped: list[int] = []
        there.wait_for(lambda: bool(stopped.extend(stop_in(b"ray::Worker.answer", there.descendants())) or stopped))
        there.wait_for(lambda: len(there.blocks()) == 44)
        os.kill(stopped[0], signal.SIGKILL)
        assert done.items() <= there.blocks().items()
        told = there.finish()
    finally:
        for pid in there.descendants() if there.process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        there.kill()
    assert "a worker ended (ActorDiedError" in told
    assert (tmp_path / "out.txt").read_bytes() == wanted
