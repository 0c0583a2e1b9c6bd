"""A run that is hurt again and again, and ends with the weights of one that was left alone.

    python benchmarks/soak.py --minutes 60 --out benchmarks/results/soak.md
    python benchmarks/soak.py --minutes 10 --every 30

`malmoi train` on a prepared store, in a folder of a small tmpfs where one can be mounted (as root). About every minute,
at a moment drawn by the seed, something happens to it, and the same command is given again:

* kill -9, at any moment; while the folder of a state is half written; while that of a model is;
* SIGTERM: it must save, say so and leave with 143;
* the disk fills up: it must leave with a message that names what could not be written;
* a file of the store is gone, or holds other bytes: it must be refused by its name. Then it is put back.

When the time is over the run is brought to its end, and another is made from the same store without any of this. Losses
of all updates, weights and the optimiser's moments must be equal bit for bit. Linux only. A page goes to standard
output; the exit status is 1 where anything was not as it must be.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from command import malmoi, table
from data import generate
from peers.machine import describe

SETTINGS = (
    "model.width=128",
    "model.heads=4",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.feed_forward=256",
    "model.dropout=0.1",
    "training.lr=0.002",
    "training.warmup_steps=100",
    "training.schedule=inverse_sqrt",
    "training.batch_tokens=1024",
    "training.metrics=['loss']",
    "training.best_metric=loss",
    "training.average=0",
    "training.keep_last=1",
    "training.threads=1",
    "training.log_every=1",
    "training.save_every=10",
    "training.validate_every=40",
)
WITHOUT_END = 1_000_000
SAVES = ("kill in a save of the state",) * 2 + ("kill in a save of a model",)
DECK = ("kill",) * 4 + SAVES + ("SIGTERM", "full disk", "data")
"""What happens in ten turns; each deck is shuffled anew."""
DISK_MEGABYTES = 400
LOOK_SECONDS = 0.001
PATIENCE = 300.0
"""Seconds in which a run must have done what is waited for."""


class NotAsItMustBeError(Exception):
    """What the run did instead."""


@dataclass
class Event:
    """Something that was done to a run, and how it went on."""

    kind: str
    where: str
    """What the run was doing."""
    step: int
    """The last update that it had told of."""
    status: int
    resumed_at: int = -1

    def cells(self, number: int) -> list[str]:
        return [str(number), self.kind, self.where, str(self.step), str(self.status), str(self.resumed_at)]


@dataclass
class Soak:
    """One run, what it is trained on, and what has happened to it."""

    store: Path
    run: Path
    draw: random.Random
    messages: BinaryIO
    maybe_disk: Path | None
    events: list[Event] = field(default_factory=list[Event])
    data_turns: int = 0

    def start(self, steps: int = WITHOUT_END) -> "subprocess.Popen[bytes]":
        words = ["train", str(self.store), *SETTINGS, f"training.max_steps={steps}", "--out", str(self.run)]
        self.messages.seek(0)
        self.messages.truncate()
        return subprocess.Popen([sys.executable, "-m", "malmoi", *words], stdout=self.messages, stderr=self.messages)

    def said(self) -> str:
        """What the present process has told so far."""
        return Path(self.messages.name).read_text(encoding="utf-8", errors="replace")

    def step(self) -> int:
        """Of the last row of metrics."""
        path = self.run / "metrics.jsonl"
        found = re.findall(rb'"step": (\d+)', path.read_bytes()) if path.exists() else []
        return int(found[-1]) if found else 0

    def where(self) -> str:
        """What the run is doing, by what lies on the disk and what it told."""
        for name, words in (("state", "save of the state"), ("checkpoints", "save of a model")):
            if next((self.run / name).glob(".tmp-*"), None) is not None:
                return words
        return "training" if self.is_training() else "start"

    def is_training(self) -> bool:
        return "going on from step" in self.said() or (not self.events and self.step() > 0)

    def wait(self, process: "subprocess.Popen[bytes]", condition: Callable[[], bool], what: str) -> None:
        """Look until it is so; the run must not end before."""
        began = time.monotonic()
        while not condition():
            if process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise NotAsItMustBeError(f"waiting for {what}: status {process.poll()}\n{self.said()}")
            time.sleep(LOOK_SECONDS)

    def expect(self, process: "subprocess.Popen[bytes]", kind: str, where: str, step: int, *patterns: str) -> None:
        """The run must end by itself and say this."""
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise NotAsItMustBeError(f"{kind}: still there after {PATIENCE:.0f} s\n{self.said()}") from None
        if status == 0 or not any(re.search(pattern, self.said()) for pattern in patterns):
            raise NotAsItMustBeError(f"{kind}: status {status}, none of {patterns} in\n{self.said()}")
        self.events.append(Event(kind, where, step, status))

    def hurt(self, kind: str, process: "subprocess.Popen[bytes]") -> None:
        """Do it, and see what becomes of it."""
        match kind:
            case "SIGTERM":
                where, step = self.where(), self.step()
                process.send_signal(signal.SIGTERM)
                self.expect(process, kind, where, step, r"received SIGTERM: state of step \d+ saved")
                if self.events[-1].status != 128 + signal.SIGTERM:
                    raise NotAsItMustBeError(f"SIGTERM: status {self.events[-1].status}")
            case "full disk":
                self.fill_disk(process)
            case "data":
                self.spoil_data(process)
            case _:
                folders = {"state": "state", "model": "checkpoints"}
                maybe_folder = folders.get(kind.rpartition(" ")[2])
                if maybe_folder is not None:
                    inside = self.run / maybe_folder
                    self.wait(process, lambda: next(inside.glob(".tmp-step-*"), None) is not None, kind)
                process.kill()
                where, step = self.where(), self.step()
                self.events.append(Event(kind, where, step, process.wait()))

    def fill_disk(self, process: "subprocess.Popen[bytes]") -> None:
        """Leave no room for a save, until the run has left; a start into it must be refused too."""
        if self.maybe_disk is None:
            return
        ballast = self.maybe_disk / "ballast"
        where, step = self.where(), self.step()
        try:
            with ballast.open("wb") as file:
                # Nearly all: a save finds some room, and not enough.
                left = shutil.disk_usage(self.maybe_disk).free - self.draw.randrange(1, 3_000_000)
                for _ in range(left // 2**16):
                    file.write(bytes(2**16))
            full = r"No space left on device", r"cannot be (saved|written)"
            self.expect(process, "full disk", where, step, *full)
            again = self.start()
            self.expect(again, "start on a full disk", "start", self.step(), r"make room first", *full)
        finally:
            ballast.unlink()

    def spoil_data(self, process: "subprocess.Popen[bytes]") -> None:
        """Take a file away, or put another in its place, under the run; a start must be refused too."""
        names = ("source.ids", "target.ids", "source.offsets", "target.offsets", "lines")
        path = self.store / "data" / "train" / "00" / self.draw.choice(names)
        kept = path.with_name("kept")
        where, step = self.where(), self.step()
        kind = ("data file gone", "data file changed")[self.data_turns % 2]
        self.data_turns += 1
        if kind == "data file changed":
            content = bytearray(path.read_bytes())
            content[self.draw.randrange(len(content))] ^= 1
            path.rename(kept)
            path.write_bytes(content)
        else:
            path.rename(kept)
        try:
            self.expect(process, kind, where, step, re.escape(path.name))
            self.expect(self.start(), f"start, {kind}", "start", self.step(), re.escape(path.name))
        finally:
            kept.rename(path)

    def go(self, minutes: float, every: float) -> int:
        """Hurt it until the time is over; the last update that it has saved."""
        end = time.monotonic() + 60 * minutes
        deck: list[str] = []
        process = self.start()
        self.wait(process, lambda: self.step() > 0, "the first update")
        while time.monotonic() < end:
            if not deck:
                deck = self.draw.sample(DECK, len(DECK))
            # Short waits too, so that some blows fall at the start.
            moment = time.monotonic() + self.draw.uniform(0.1, 2) * every
            while time.monotonic() < min(moment, end):
                if process.poll() is not None:
                    raise NotAsItMustBeError(f"ended by itself, status {process.poll()}\n{self.said()}")
                time.sleep(0.01)
            kind = deck.pop()
            if kind != "kill":
                # What is to be seen in these needs a run that trains.
                self.wait(process, self.is_training, "training to go on")
            number = len(self.events)
            self.hurt(kind, process)
            process = self.start() if process.poll() is not None else process
            if self.draw.random() < 0.8 and len(self.events) > number:
                self.wait(process, self.is_training, "training to go on")
                self.note_resumed()
                print(f"{self.events[-1].kind}, step {self.events[-1].step}", file=sys.stderr)
        self.wait(process, self.is_training, "training to go on")
        self.note_resumed()
        process.send_signal(signal.SIGTERM)
        saved = r"received SIGTERM: state of step (\d+) saved"
        self.expect(process, "SIGTERM at the end", self.where(), self.step(), saved)
        return int(re.findall(saved, self.said())[-1])

    def note_resumed(self) -> None:
        """Where the run went on after the last blows."""
        found = re.findall(r"going on from step (\d+)", self.said())
        for event in self.events:
            if event.resumed_at < 0 and found:
                event.resumed_at = int(found[-1])

    def finish(self, steps: int) -> None:
        """To its end, undisturbed."""
        process = self.start(steps)
        if process.wait() != 0:
            raise NotAsItMustBeError(f"the last start: status {process.returncode}\n{self.said()}")
        self.note_resumed()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A tmpfs, or None where none can be mounted."""
    place = folder / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(place)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=False)


def compare(hurt: Path, whole: Path, steps: int) -> dict[str, bool]:
    """What must be equal."""

    def losses(run: Path) -> list[tuple[int, float, float]]:
        rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [(row["step"], row["loss"], row["nll"]) for row in rows if "loss" in row]

    def weights(run: Path) -> bytes:
        return (run / "checkpoints" / f"step-{steps:08d}" / "model.safetensors").read_bytes()

    def state(run: Path) -> bytes:
        newest = max((run / "state").glob(f"step-{steps:08d}-*"), key=lambda one: one.name)
        return (newest / "tensors.safetensors").read_bytes()

    return {
        "losses of all updates": losses(hurt) == losses(whole) and len(losses(whole)) == steps,
        "weights": weights(hurt) == weights(whole),
        "weights and moments to go on from": state(hurt) == state(whole),
        "nothing half-written is left": not list(hurt.rglob(".tmp-*")),
    }


def page(soak: Soak, equal: dict[str, bool], facts: dict[str, str]) -> str:
    """What happened, as Markdown."""
    kinds = Counter(event.kind for event in soak.events)
    kills = [event for event in soak.events if event.status == -signal.SIGKILL]
    hits = Counter(event.where for event in kills)
    redone = sum(max(0, event.step - event.resumed_at) for event in soak.events if event.resumed_at >= 0)
    lines = ["# A run that was hurt", "", *(f"* {name}: {text}" for name, text in facts.items())]
    lines.append(f"* kills with -9: {len(kills)}; they hit " + ", ".join(f"{words} {n}" for words, n in hits.items()))
    lines.append("* all that happened: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    if soak.maybe_disk is None:
        lines.append("* full disk: skipped, since no tmpfs can be mounted here")
    lines += [f"* updates made again: {redone}", ""]
    rows = [[name, "yes" if is_so else "NO"] for name, is_so in equal.items()]
    lines += table([["equal to the undisturbed run", ""], *rows])
    head = ["", "what happened", "while", "after update", "status", "next went on from"]
    return "\n".join([*lines, "", *table([head, *(one.cells(n) for n, one in enumerate(soak.events, 1))]), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two blows, on average")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        tempfile.TemporaryDirectory(prefix="malmoi-soak-") as name,
        small_disk(Path(name)) as maybe_disk,
        (Path(name) / "messages").open("wb") as messages,
    ):
        folder = Path(name)
        generate(folder, options.pairs, options.seed, 6)
        text = [str(folder / "train.src"), str(folder / "train.tgt")]
        malmoi("prepare", *text, "text.vocabulary_size=1000", "--workers=1", "--quiet", "--out", str(folder / "store"))
        run = (maybe_disk or folder) / "run"
        soak = Soak(folder / "store", run, random.Random(options.seed), messages, maybe_disk)
        began = time.monotonic()
        steps = soak.go(options.minutes, options.every) + 1
        soak.finish(steps)
        hurt_seconds = time.monotonic() - began
        whole = Soak(folder / "store", folder / "whole", random.Random(), messages, None)
        began = time.monotonic()
        whole.finish(steps)
        alone_seconds = time.monotonic() - began
        given = [f"--{name} {getattr(options, name):g}" for name in ("minutes", "every", "pairs", "seed")]
        facts = {
            **describe("python benchmarks/soak.py " + " ".join(given), options.seed),
            "updates": f"{steps:,} in {hurt_seconds / 60:.1f} minutes, undisturbed in {alone_seconds / 60:.1f}",
        }
        equal = compare(run, whole.run, steps)
    text_of_page = page(soak, equal, facts)
    if options.out is not None:
        options.out.write_text(text_of_page, encoding="utf-8")
    print(text_of_page)
    raise SystemExit(0 if all(equal.values()) else 1)


if __name__ == "__main__":
    main()
