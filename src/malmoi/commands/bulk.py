"""`malmoi translate --out`: a file to a file, by several workers, here or on a cluster; begun once, gone on with after
any end.

In: what `malmoi translate` was asked for. Out: the output file; on standard error how far it is.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from malmoi.bulk.cluster import RayCrew, require_ray
from malmoi.bulk.crew import Crew, LocalCrew
from malmoi.bulk.job import Identity, JobFolder, Size, Written, hash_model
from malmoi.bulk.lead import lead
from malmoi.bulk.work import Answer, Plan, compression_of
from malmoi.checkpoint import find_model, load_config
from malmoi.commands.progress import Bar, progress_bar
from malmoi.commands.translate import (
    TranslateRequest,
    check_readable,
    decoding_options,
    read_phrases,
    widen_beam,
    writer,
)
from malmoi.config.decoding import DecodingConfig
from malmoi.config.training import Device
from malmoi.data.encoding import usable_cores
from malmoi.data.inputs import check_inputs, record_inputs
from malmoi.device import choose_device
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.settings import validate
from malmoi.text.lines import read_lines
from malmoi.translate import WINDOW_LINES
from malmoi.wishes import Window, check_counts, read_windows

CLUSTERS = ("ray",)
TELL_SECONDS = 60.0
"""Between two messages on how far the job is; a terminal has a bar as well."""
SHOWN_FAULTS = 20


@dataclass(frozen=True)
class BulkRequest:
    """What is asked for beside a plain translation."""

    out: Path
    workers: int
    maybe_cluster: str | None
    maybe_block_lines: int | None

    @property
    def block_lines(self) -> int:
        return self.maybe_block_lines or WINDOW_LINES


def run_bulk(request: TranslateRequest, bulk: BulkRequest, *, quiet: bool) -> int:
    """Begin or go on, up to the end; 1 if a line could not be translated (it is an empty line of output then), else 0.

    What cannot work is refused before any work; the input is read once to the end, so that a bad line is found first.
    """
    check_request(request, bulk)
    files = {"input": request.file, "prefixes": request.prefix, "constraints": request.constraints}
    given = {name: Path(path) for name, path in files.items() if path is not None}
    for path in given.values():
        check_readable(path)
    if bulk.maybe_cluster:
        require_ray()
    plan, identity_of = make_plan(request, bulk)
    folder = JobFolder(bulk.out)
    with folder.held():
        records = record_inputs(given.values())
        facts = {name: {"size": (one := records[str(path)]).size, "hash": one.hash} for name, path in given.items()}
        identity = identity_of(facts)
        size = folder.begun(identity) or begin(folder, identity, request, bulk)
        num_done = len(folder.finished())
        if num_done:
            get_logger().info("%s: %d of %d blocks are done; going on", bulk.out, num_done, size.num_blocks)
        if num_done < size.num_blocks:
            translate_blocks(request, bulk, plan, folder, size, quiet=quiet)
        check_inputs(records, f"it was read meanwhile; remove {folder.path} and run the command again")
        faults = folder.faults()
        folder.assemble(size)
    get_logger().info("%s: %s lines", bulk.out, f"{size.num_lines:,}")
    for fault in faults[:SHOWN_FAULTS]:
        get_logger().error(fault)
    if faults:
        get_logger().error("%s: %d line(s) could not be translated and are empty", bulk.out, len(faults))
    return 1 if faults else 0


def check_request(request: TranslateRequest, bulk: BulkRequest) -> None:
    """Refuse what does not go together."""
    if request.file == "-":
        raise ConfigError(
            "--out needs the name of a file to translate: standard input cannot be read again after a stop; save it "
            "first, or leave --out away and write > FILE"
        )
    for path in map(Path, filter(None, (request.file, request.prefix, request.constraints))):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path}: cannot be read again after a stop, as --out needs it; save it to a file first")
    if request.unbuffered:
        raise ConfigError("--unbuffered answers line by line, --out block by block: leave one of them away")
    if bulk.maybe_cluster not in (None, *CLUSTERS):
        raise ConfigError(f"--cluster {bulk.maybe_cluster}: must be one of {', '.join(CLUSTERS)}")
    if bulk.out.resolve() == Path(request.file).resolve():
        raise ConfigError(f"--out {bulk.out}: is the input itself")


def make_plan(
    request: TranslateRequest, bulk: BulkRequest
) -> tuple[Plan, Callable[[dict[str, dict[str, int | str]]], Identity]]:
    """What workers are told, and what the job is once its files are known."""
    model = find_model(request.model).resolve()
    if bulk.out.resolve().is_relative_to(model):
        raise ConfigError(f"--out {bulk.out}: in the folder of the model it would make it another model")
    stored = load_config(model).decoding
    options = widen_beam(decoding_options(request.settings, request.beam, request.n_best), stored)
    resolved = validate(DecodingConfig, {**stored.model_dump(), **options}, "the decoding options").model_dump()
    written: Written = "json" if request.as_json else "text" if request.n_best is None else "n-best"
    compression = compression_of(bulk.out)
    # On a cluster and beside other workers each takes one core; a single one all of them.
    threads = request.threads or (usable_cores() if bulk.workers == 1 and not bulk.maybe_cluster else 1)
    plan = Plan(model, cast(Device, request.device), threads, dict(resolved), writer(request), compression)

    def identity_of(files: dict[str, dict[str, int | str]]) -> Identity:
        return Identity(files, hash_model(model), resolved, written, compression, bulk.block_lines)

    return plan, identity_of


def begin(folder: JobFolder, identity: Identity, request: TranslateRequest, bulk: BulkRequest) -> Size:
    """Read everything once, and write down what the job is."""
    check_counts(request.file, {"prefixes": request.prefix, "phrases": request.constraints})
    num_lines = num_blocks = 0
    for block in read_blocks(request, bulk):
        num_lines, num_blocks = num_lines + len(block.texts), num_blocks + 1
    size = Size(num_lines, num_blocks)
    folder.begin(identity, size)
    return size


def read_blocks(request: TranslateRequest, bulk: BulkRequest) -> Iterator[Window]:
    """All blocks of the job; the same each time."""
    return read_windows(
        read_lines(request.file),
        read_lines(request.prefix) if request.prefix else None,
        read_phrases(request.constraints) if request.constraints else None,
        bulk.block_lines,
    )


def translate_blocks(
    request: TranslateRequest, bulk: BulkRequest, plan: Plan, folder: JobFolder, size: Size, *, quiet: bool
) -> None:
    """Have all blocks done that are not."""
    blocks = (block for block in read_blocks(request, bulk) if not folder.is_done(block.first_line))
    num_left = size.num_blocks - len(folder.finished())
    with (
        progress_bar(bulk.out.name, size.num_lines, quiet=quiet) as bar,
        open_crew(bulk, plan, num_left) as crew,
    ):
        noun = "worker" if crew.num_seats == 1 else "workers"
        get_logger().info("%s: %d blocks to do, %d %s", bulk.out, num_left, crew.num_seats, noun)
        teller = Teller(bar, bulk.out, size, num_blocks=num_left, block_lines=bulk.block_lines)

        def keep(block: Window, answer: Answer) -> None:
            for level, message in answer.messages:
                get_logger().log(level, message)
            folder.keep(block.first_line, answer)
            teller.tell(len(block.texts))

        lead(crew, blocks, keep)


def open_crew(bulk: BulkRequest, plan: Plan, num_blocks: int) -> AbstractContextManager[Crew]:
    """As many workers as were asked for, or as there is room for; never more than blocks."""
    on_gpu = False
    if bulk.maybe_cluster is None or plan.device != "auto":
        on_gpu = choose_device(plan.device).type == "cuda" if bulk.maybe_cluster is None else plan.device == "cuda"
    if bulk.maybe_cluster:
        return RayCrew.at_work(plan, min(bulk.workers, num_blocks), on_gpu=on_gpu)
    # Workers of one machine would share its one device.
    wanted = bulk.workers or (1 if on_gpu else max(1, usable_cores() // plan.threads))
    return LocalCrew.at_work(plan, min(wanted, num_blocks))


class Teller:
    """Says from time to time how far a job is, and how long it will take."""

    def __init__(self, bar: Bar, out: Path, size: Size, *, num_blocks: int, block_lines: int) -> None:
        self.bar, self.out, self.size = bar, out, size
        # Blocks that are left hold about so many lines; only the last one, and those of very long lines, hold fewer.
        self.num_left = min(size.num_lines, num_blocks * block_lines)
        self.num_now = self.num_first = 0
        self.began = self.told = time.monotonic()

    def tell(self, num_lines: int) -> None:
        """So many more lines are done."""
        now = time.monotonic()
        if not self.num_now:
            # Workers read their models before the first block: the clock starts behind it.
            self.num_first, self.began = num_lines, now
        self.num_now += num_lines
        speed = (self.num_now - self.num_first) / max(now - self.began, 1e-9)
        num_done = self.size.num_lines - self.num_left + self.num_now
        self.bar(num_done, f"{speed:,.0f} lines/s")
        if now - self.told >= TELL_SECONDS and speed:
            self.told = now
            minutes = max(0, self.num_left - self.num_now) / speed / 60
            get_logger().info(
                "%s: %s of %s lines, %s lines per second, about %s minutes left",
                self.out.name,
                f"{num_done:,}",
                f"{self.size.num_lines:,}",
                f"{speed:,.1f}",
                f"{minutes:,.0f}",
            )
