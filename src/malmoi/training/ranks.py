"""The processes that train one model together, and what they tell each other.

In: what torchrun says to each process (RANK, WORLD_SIZE, ...). Out: a `Ranks`, handed to whoever takes part.

A process alone is the same object with one rank and nobody to ask, so that training has one path. Numbers and JSON go
over the CPU; nothing is pickled. Every method of one name is called by all ranks, in the same order: who leaves
this order makes the others wait until the time limit.
"""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from malmoi.errors import ConfigError, MalmoiError

T = TypeVar("T")

TIME_LIMIT = timedelta(minutes=30)
"""A rank that does not answer for so long is given up. One that has died is noticed at once."""
LOOK_EVERY = 0.1
AHEAD, DONE, FAILED = "ahead", "done", "failed"
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankError(MalmoiError):
    """Another process of this run is gone, or does not answer."""


@dataclass(frozen=True)
class Ranks:
    """This process among all (`rank` of `count`, from 0) and among those of its machine (`local_rank`)."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    store: Store | None = None
    """Where words can be left for the others without all of them waiting; None for a process alone."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    @property
    def key(self) -> tuple[int, ...]:
        """What this rank adds to a key of random numbers; the first draws what a process alone draws."""
        return (self.rank,) if self.rank else ()

    @property
    def part(self) -> slice:
        """Which of many things are this rank's. Rows sorted by length are shared out evenly by it."""
        return slice(self.rank, None, self.count)

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        """Everyone's numbers in the order of ranks."""
        if self.count == 1:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(everyone, mine)
        return [tuple(one.tolist()) for one in everyone]

    def wait(self) -> None:
        """Until all have come here."""
        self.gather(0.0)

    def merge(self, mine: Sequence[T]) -> list[T]:
        """All things in order (any JSON), of which each rank has done its `part`."""
        if self.count == 1:
            return list(mine)
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        sizes = [int(size) for (size,) in self.gather(len(data))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        everyone = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everyone, padded)
        shares = [json.loads(bytes(one[:size].numpy())) for one, size in zip(everyone, sizes, strict=True)]
        merged: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            merged[rank :: self.count] = share
        return merged

    def from_first(self, value: Any) -> Any:
        """The first rank's value (any JSON); what the others give does not count."""
        if self.count == 1:
            return value
        return self.merge([value] if self.is_first else [None])[0]

    def spread(self, tensor: Tensor) -> None:
        """Overwrite a tensor by that of the first rank."""
        if self.count > 1:
            dist.broadcast(tensor, src=0)

    @contextmanager
    def first_ahead(self) -> Generator[None]:
        """The first rank goes inside; the others follow when it has come out, however long it takes.

        Once in the life of a `Ranks`. `RankError` in the others where the first has failed.
        """
        if self.store is None:
            yield
        elif self.is_first:
            try:
                yield
            except BaseException:
                self.store.set(AHEAD, FAILED)
                raise
            self.store.set(AHEAD, DONE)
        else:
            # A wait of the store's own has a time limit, and Python hears no signal meanwhile.
            while not self.store.check([AHEAD]):
                time.sleep(LOOK_EVERY)
            if self.store.get(AHEAD) != DONE.encode():
                raise RankError("rank 0 could not prepare the run; its own message says why")
            yield

    def check_device(self, device: torch.device) -> None:
        """`ConfigError` where this machine cannot give each of its ranks a device of its own."""
        if self.count == 1 or device.type == "cpu":
            return
        if device.type != "cuda":
            raise ConfigError(f"several processes cannot train on {device.type}: set training.device = cpu")
        if self.local_count > torch.cuda.device_count():
            raise ConfigError(
                f"{self.local_count} processes on a machine with {torch.cuda.device_count()} CUDA device(s): "
                "give torchrun a smaller --nproc-per-node, or set training.device = cpu"
            )


ALONE = Ranks()
"""A process without others."""


@contextmanager
def join_ranks(environment: Mapping[str, str]) -> Generator[Ranks]:
    """The processes that torchrun started, joined for as long as the `with` block lasts; else a process alone.

    Errors of other ranks than the first say which one speaks. Where another process is gone, `RankError`.
    """
    if "RANK" not in environment or environment.get("WORLD_SIZE") == "1":
        yield ALONE
        return
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise ConfigError(f"RANK is set but {missing[0]} is not: start several processes with torchrun, which sets all")
    rank = int(environment["RANK"])
    try:
        yield connect(environment)
    except MalmoiError as error:
        if rank == 0:
            raise
        raise type(error)(f"rank {rank}: {error}") from error
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise RankError(
            f"rank {rank}: another process of this run is gone or does not answer; its own message says why "
            f"({reason}). The same command goes on from the last saved state"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def connect(environment: Mapping[str, str]) -> Ranks:
    """Meet the others; each rank of a machine with CUDA takes the device of its own number there."""
    rank, count, local_rank, local_count = (int(environment[name]) for name in NEEDED[:4])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    store, _, _ = next(rendezvous("env://", rank, count, timeout=TIME_LIMIT))
    # What was said before a restart does not count.
    store = PrefixStore(f"malmoi {environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIME_LIMIT)
    return Ranks(rank, count, local_rank, local_count, store)


def is_loss(error: RuntimeError) -> bool:
    """Whether an error says that others cannot be reached; those of gloo have no type of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
