"""Workers on all machines of a Ray cluster, or of a Ray that is started here for the purpose.

In: a `Plan` whose model every machine finds under the same path, where malmoi is installed too. Out: a crew whose
seats are Ray actors. Text travels to them and answers come back: no machine but this one needs the input or the output.

Which cluster is Ray's to say: that of `RAY_ADDRESS`, else one that runs on this machine, else a new one. An actor takes
one CPU for each thread, and one GPU where the device is CUDA. A machine that leaves takes its actors along; their
blocks are done by others, and new actors begin wherever there is room again.
"""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from malmoi.bulk.work import Event, Lost, Plan, Worker
from malmoi.errors import ConfigError
from malmoi.wishes import Window


def require_ray() -> Any:
    """The library, which only a cluster needs; `ConfigError` where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"--cluster ray needs a library that is missing here ({error}): pip install 'malmoi[ray]'"
        ) from error
    return ray


class RayCrew:
    """An actor for each seat."""

    def __init__(self, ray: Any, plan: Plan, num_seats: int, *, on_gpu: bool) -> None:
        self.ray = ray
        self.plan = plan
        self.num_seats = num_seats
        # What was lost is noticed and replaced by whoever leads the job, not by Ray.
        needs = {"num_cpus": plan.threads, "num_gpus": int(on_gpu), "max_restarts": 0, "max_task_retries": 0}
        self.actor = ray.remote(Worker).options(**needs)
        self.seats: dict[int, Any] = {}
        self.tickets: dict[Any, int] = {}

    @classmethod
    @contextmanager
    def at_work(cls, plan: Plan, num_seats: int, *, on_gpu: bool) -> Generator["RayCrew"]:
        """A crew that leaves the cluster behind the `with` block; 0 seats are as many as the cluster has room for."""
        # A Ray that is started here has no need to report that it was used.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = require_ray()
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        try:
            found = ray.cluster_resources()
            room = int(found.get("GPU", 0)) if on_gpu else int(found.get("CPU", 0)) // plan.threads
            if not room:
                raise ConfigError(f"the Ray cluster has no room for a worker: it has {dict(found)}")
            yield cls(ray, plan, num_seats or room, on_gpu=on_gpu)
        finally:
            ray.shutdown()

    def hire(self, seat: int) -> None:
        self.seats[seat] = self.actor.remote(self.plan)
        self.tickets[self.seats[seat].open.remote()] = seat

    def give(self, seat: int, block: Window) -> None:
        self.tickets[self.seats[seat].answer.remote(block)] = seat

    def next_event(self) -> tuple[int, Event]:
        done, _ = self.ray.wait(list(self.tickets), num_returns=1)
        seat = self.tickets.pop(done[0])
        try:
            return seat, self.ray.get(done[0])
        except self.ray.exceptions.RayError as error:
            self.ray.kill(self.seats.pop(seat))
            lines = str(error).strip().splitlines()
            # The last line of a traceback is the error; of Ray's own words the first line says what happened.
            told = lines[-1] if isinstance(error, self.ray.exceptions.RayTaskError) else lines[0]
            return seat, Lost(f"ended ({type(error).__name__}: {told})")
