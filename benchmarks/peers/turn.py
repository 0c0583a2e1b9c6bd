"""One turn of a contestant: its command runs until it has made the updates that are asked for, then it is stopped.

In: a contestant, a setting. Out: its updates and the highest resident memory of its process tree. Linux only, since
memory is read from /proc; standard library only.
"""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from peers.environment import UnavailableError
from peers.probe import RECORD_VARIABLE
from peers.record import tokens_per_second
from peers.setting import Contestant, Setting, Update

LOOK_SECONDS = 0.1
LOOKS_PER_COUNT = 5
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Turn:
    """What a turn gave."""

    updates: list[Update]
    warm_up: int
    peak_bytes: int

    @property
    def speed(self) -> float:
        """Target tokens per second after the warm-up."""
        return tokens_per_second(self.updates, self.warm_up)

    @property
    def tokens_per_update(self) -> float:
        measured = self.updates[self.warm_up :]
        return sum(update.tokens for update in measured) / len(measured)

    @property
    def losses(self) -> tuple[float, float] | None:
        """Means of the first and of the last three updates, as the contestant counts its loss."""
        losses = [update.loss for update in self.updates if update.loss is not None]
        return (sum(losses[:3]) / len(losses[:3]), sum(losses[-3:]) / len(losses[-3:])) if losses else None


def take_turn(
    contestant: Contestant, setting: Setting, python: str, *, warm_up: int, updates: int, seconds: float
) -> Turn:
    """Run until all updates are made; `UnavailableError` if it ends before or takes longer than `seconds`."""
    shutil.rmtree(setting.folder, ignore_errors=True)
    setting.folder.mkdir(parents=True)
    for old in setting.record.parent.glob(f"{setting.record.name}.*"):
        old.unlink()
    log = setting.folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            contestant.command(setting, python),
            cwd=setting.folder,
            env=environment_of(setting),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return watch(process, contestant, setting, warm_up, updates, time.monotonic() + seconds)
        except UnavailableError as reason:
            raise UnavailableError(f"{reason}: {last_words(log)}") from None
        finally:
            stop(process)


def environment_of(setting: Setting) -> dict[str, str]:
    """What the command finds in its environment: threads, the record, this folder for `python -m peers.NAME`."""
    return os.environ | {
        "OMP_NUM_THREADS": str(setting.threads),
        "MKL_NUM_THREADS": str(setting.threads),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        RECORD_VARIABLE: str(setting.record),
    }


def watch(
    process: "subprocess.Popen[bytes]",
    contestant: Contestant,
    setting: Setting,
    warm_up: int,
    wanted: int,
    deadline: float,
) -> Turn:
    """Look at memory often and at the record sometimes, until there are enough updates."""
    peak, looks = 0, 0
    while True:
        peak = max(peak, sum(resident_bytes(pid) for pid in tree(process.pid)))
        looks += 1
        if looks % LOOKS_PER_COUNT == 0:
            found = contestant.updates(setting)
            if len(found) >= warm_up + wanted:
                return Turn(found[: warm_up + wanted], warm_up, peak)
            if process.poll() is not None:
                raise UnavailableError(f"{contestant.name} ended with {process.returncode} after {len(found)} updates")
            if time.monotonic() > deadline:
                raise UnavailableError(f"{contestant.name} made {len(found)} updates in the time for a turn")
        time.sleep(LOOK_SECONDS)


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    found = [root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text(encoding="ascii").split()]
            except OSError:
                # The thread has ended while we looked.
                continue
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    except OSError:
        return 0


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End the turn's processes, and no others: those that descend from the one that was started here."""
    for pid in tree(process.pid) if process.poll() is None else []:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def last_words(log: Path) -> str:
    """The last line of a log that names an error, or that says something at all."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    spoken = [line for line in lines if any(letter.isalpha() for letter in line)]
    errors = [line for line in spoken if "Error: " in line]
    return ((errors or spoken)[-1:] or ["it said nothing"])[0][:300]
