"""Text to ids, in this process or in several, in the order of the input.

In: chunks of pairs that are already normalised. Out: each chunk with its ids, end symbols included.

A worker is a fresh Python that speaks through its standard input and output: nothing is shared with the caller's
threads, the caller's script need not be importable, and a worker whose caller is gone reads the end of its input and
leaves. Chunk number n goes to worker n modulo their number and is read back in the same order, so that the result does
not depend on how many there are.
"""

import json
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from malmoi.data.store import IntArray, id_type
from malmoi.data.words import EncodeRows, WordTable, can_use_words
from malmoi.errors import DataError, MalmoiError
from malmoi.text.corpus import Pair
from malmoi.text.tokenizer import Tokenizer, Tokenizers

Chunk: TypeAlias = list[Pair]
EncodeTexts: TypeAlias = Callable[[Sequence[str]], tuple[IntArray, npt.NDArray[np.int32]]]
"""Ids of all texts in a row, each followed by the end symbol, and the length of each."""

# Chunks that a worker may have before it answered the first: it never waits for the next one.
CHUNKS_AHEAD = 2
# The caller's search path is handed over, for a caller that found malmoi on a path of its own.
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from malmoi.data.encoding import serve; serve()"
HEADER = struct.Struct("<Q")
SECONDS_TO_LEAVE = 10.0


@dataclass(frozen=True, eq=False)
class Encoded:
    """Ids of the pairs of a chunk, one pair after the other, and how many belong to each; end symbols included."""

    source_ids: IntArray
    source_lengths: npt.NDArray[np.int32]
    target_ids: IntArray
    target_lengths: npt.NDArray[np.int32]


class Encoder:
    """Turns chunks into ids, by the rules that translation follows too."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        source, target = tokenizers.source, tokenizers.target
        self.encode_source = fast_encoder(source, tokenizers.encode_sources, tokenizers.unseen_source_ids)
        self.encode_target = fast_encoder(target, tokenizers.encode_targets, ())

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> Encoded:
        """Ids of normalised text."""
        return Encoded(*self.encode_source(sources), *self.encode_target(targets))


def fast_encoder(tokenizer: Tokenizer, encode_rows: EncodeRows, refused: Collection[int]) -> EncodeTexts:
    """The quickest way from texts to the ids that `encode_rows` gives."""
    if can_use_words(tokenizer):
        return WordTable(tokenizer, encode_rows, refused).encode
    return lambda texts: join_rows(encode_rows(texts), tokenizer)


def join_rows(rows: Sequence[list[int]], tokenizer: Tokenizer) -> tuple[IntArray, npt.NDArray[np.int32]]:
    """All rows in one array, each followed by the end symbol, and the length of each, end symbol included."""
    lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)) + np.int32(1)
    ends = np.cumsum(lengths, dtype=np.int64) - 1
    is_text = np.ones(int(lengths.sum()), dtype=np.bool_)
    is_text[ends] = False
    ids = np.full(len(is_text), tokenizer.end_id, dtype=id_type(tokenizer.size))
    ids[is_text] = np.fromiter(chain.from_iterable(rows), dtype=ids.dtype, count=len(ids) - len(rows))
    return ids, lengths


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_in_order(chunks: Iterable[Chunk], tokenizers: Tokenizers, workers: int) -> Iterator[tuple[Chunk, Encoded]]:
    """Each chunk with its ids, in order; `workers` 0 uses this process alone.

    Raises DataError when a worker ends early. However the iteration ends, its workers are gone afterwards.
    """
    remaining = iter(chunks)
    beginning = list(islice(remaining, 2))
    if workers == 0 or len(beginning) < 2:
        # One chunk is done sooner than a process is started.
        encoder = Encoder(tokenizers)
        for chunk in chain(beginning, remaining):
            yield chunk, encoder.encode([pair.source for pair in chunk], [pair.target for pair in chunk])
        return
    with tempfile.TemporaryDirectory(prefix="malmoi-") as folder:
        try:
            tokenizers.save(Path(folder))
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be written ({error.strerror or error}); let TMPDIR name a folder with room"
            ) from error
        with Workers(tokenizers, Path(folder), workers) as pool:
            yield from pool.encode(chain(beginning, remaining))


class Workers:
    """A row of processes, none of which outlives the `with` block."""

    def __init__(self, tokenizers: Tokenizers, folder: Path, count: int) -> None:
        self.types = (id_type(tokenizers.source.size), id_type(tokenizers.target.size))
        self.folder = folder
        self.count = count
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        for process in self.processes:
            if kind is not None:
                process.kill()
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe is not None:
                        pipe.close()
                except BrokenPipeError:
                    # What was still to be sent to a worker that is gone has nobody to read it.
                    continue
        for process in self.processes:
            try:
                process.wait(SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def encode(self, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Encoded]]:
        """Each chunk with its ids, in order."""
        waiting: deque[tuple[Chunk, subprocess.Popen[bytes]]] = deque()
        for number, chunk in enumerate(chunks):
            if len(waiting) == CHUNKS_AHEAD * self.count:
                yield self.receive(*waiting.popleft())
            process = self.worker(number % self.count)
            self.send(chunk, process)
            waiting.append((chunk, process))
        while waiting:
            yield self.receive(*waiting.popleft())

    def worker(self, number: int) -> subprocess.Popen[bytes]:
        """A process, started when it gets its first chunk: a short corpus does not start them all."""
        if number == len(self.processes):
            command = [sys.executable, "-P", "-c", BOOT, json.dumps(sys.path), str(self.folder)]
            # One process is one core: libraries must not start threads of their own.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            )
        return self.processes[number]

    def send(self, chunk: Chunk, process: subprocess.Popen[bytes]) -> None:
        texts = [[pair.source for pair in chunk], [pair.target for pair in chunk]]
        assert process.stdin is not None
        try:
            write_frame(process.stdin, json.dumps(texts, ensure_ascii=False).encode())
        except BrokenPipeError:
            # Behind the answers that it still gave stands why it left, or nothing.
            while True:
                self.read_reply(process)

    def receive(self, chunk: Chunk, process: subprocess.Popen[bytes]) -> tuple[Chunk, Encoded]:
        source_ids, source_lengths, target_ids, target_lengths = self.read_reply(process)
        source_type, target_type = self.types
        return chunk, Encoded(
            source_ids=np.frombuffer(source_ids, dtype=source_type),
            source_lengths=np.frombuffer(source_lengths, dtype="<i4"),
            target_ids=np.frombuffer(target_ids, dtype=target_type),
            target_lengths=np.frombuffer(target_lengths, dtype="<i4"),
        )

    def read_reply(self, process: subprocess.Popen[bytes]) -> list[bytes]:
        """The four arrays of an answer; an error if the worker met one, or is gone."""
        assert process.stdout is not None
        frames: list[bytes] = []
        while len(frames) < 5:
            frame = read_frame(process.stdout)
            if frame is None:
                raise self.lost(process)
            if frame and not frames:
                is_told, message = json.loads(frame)
                raise DataError(message) if is_told else RuntimeError(message)
            frames.append(frame)
        return frames[1:]

    def lost(self, process: subprocess.Popen[bytes]) -> DataError:
        """The error for a worker that closed its pipes."""
        try:
            status = process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            status = None
        how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        return DataError(
            f"a process that turns text into ids {how}; if memory ran out, use fewer workers (0 uses no other process)"
        )


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(HEADER.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next frame, or None at the end of the pipe, be it in the midst of a frame."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    data = pipe.read(length)
    return data if len(data) == length else None


def serve() -> None:
    """The life of a worker: chunks from standard input, ids to standard output, until the input ends."""
    # Ctrl-C reaches every process of the terminal; the caller decides, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not get between the frames.
    os.dup2(2, 1)
    requests: queue.Queue[bytes | None] = queue.Queue(CHUNKS_AHEAD)
    # Requests are taken off the pipe at once, so that caller and worker never wait for each other to read.
    threading.Thread(target=take_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    try:
        encoder = Encoder(Tokenizers.load(Path(sys.argv[2])))
        while (request := requests.get()) is not None:
            sources, targets = json.loads(request)
            encoded = encoder.encode(sources, targets)
            write_frame(replies, b"")
            for array in (encoded.source_ids, encoded.source_lengths, encoded.target_ids, encoded.target_lengths):
                write_frame(replies, array.tobytes())
    except BrokenPipeError:
        # The caller is gone, and so is whoever would read a message.
        os._exit(1)
    except MalmoiError as error:
        write_frame(replies, json.dumps([True, str(error)]).encode())
    except Exception:
        write_frame(replies, json.dumps([False, traceback.format_exc()]).encode())
        raise


def take_requests(pipe: IO[bytes], requests: "queue.Queue[bytes | None]") -> None:
    """Move frames from the pipe into the queue; None marks the end."""
    while (frame := read_frame(pipe)) is not None:
        requests.put(frame)
    requests.put(None)
