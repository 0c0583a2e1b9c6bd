"""Who leads a job: gives blocks to free workers, keeps what they answer, and gives a lost worker's block to another.

In: a crew, blocks with their wishes. Out: calls of `keep`, one for each block, in whatever order blocks are done. At
any time there are as many blocks in memory as there are workers, and one more.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator

from malmoi.bulk.crew import Crew
from malmoi.bulk.work import Answer, Lost, Ready, Refusal
from malmoi.errors import DataError
from malmoi.log import get_logger
from malmoi.wishes import Window

MOST_LOSSES = 3
"""So often is a block tried; so often, for each seat, may workers end one after another without having done a thing."""

Keep = Callable[[Window, Answer], None]


def lead(crew: Crew, blocks: Iterator[Window], keep: Keep) -> None:
    """Have all blocks done.

    Errors: what a worker refuses; `DataError` for a block that ends one worker after another, and where no worker can
    be had.
    """
    given: dict[int, Window] = {}
    idle: deque[int] = deque()
    returned: deque[Window] = deque()
    losses: Counter[int] = Counter()
    num_in_a_row = 0
    for seat in range(crew.num_seats):
        crew.hire(seat)
    while True:
        is_over = False
        while idle and not is_over:
            maybe_block = returned.popleft() if returned else next(blocks, None)
            if maybe_block is None:
                is_over = True
            else:
                given[seat := idle.popleft()] = maybe_block
                crew.give(seat, maybe_block)
        if is_over and not given:
            return
        seat, event = crew.next_event()
        match event:
            case Ready():
                idle.append(seat)
            case Answer():
                num_in_a_row = 0
                keep(given.pop(seat), event)
                idle.append(seat)
            case Refusal(error):
                raise error
            case Lost(reason):
                num_in_a_row += 1
                if seat in idle:
                    idle.remove(seat)
                if seat in given:
                    returned.append(block := given.pop(seat))
                    losses[block.first_line] += 1
                    check_losses(block, losses[block.first_line], reason)
                if num_in_a_row >= MOST_LOSSES * crew.num_seats:
                    raise DataError(f"no worker can be kept: {num_in_a_row} ended one after another; the last {reason}")
                crew.hire(seat)


def check_losses(block: Window, num_losses: int, reason: str) -> None:
    """Tell of a lost worker; `DataError` where its block was the end of too many."""
    lines = describe(block)
    if num_losses >= MOST_LOSSES:
        longest = max(range(len(block.texts)), key=lambda index: len(block.texts[index]))
        raise DataError(
            f"{lines}: {num_losses} workers ended while they translated these lines; the last {reason}. The longest is "
            f"line {block.first_line + longest} with {len(block.texts[longest]):,} characters: split it if it is no "
            "sentence, or give the workers more memory (fewer --workers); the same command goes on then"
        )
    get_logger().warning("%s: a worker %s; another one takes them", lines, reason)


def describe(block: Window) -> str:
    """The lines of a block in words."""
    return f"lines {block.first_line:,} to {block.first_line + len(block.texts) - 1:,}"
