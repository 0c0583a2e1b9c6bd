"""Several ranks as forks of this process."""

import os
import socket
import sys
import traceback
from collections.abc import Callable

CRASHED = 70


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fork_ranks(count: int, work: Callable[[dict[str, str]], int]) -> list[int]:
    """Run `work` in so many forks, each with what torchrun would say; their exit statuses."""
    port = str(free_port())
    children: list[int] = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            environment = {name: str(value) for name, value in words.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            # torch reads address and port from its own environment.
            os.environ.update(environment)
            status = CRASHED
            try:
                status = work(environment)
            finally:
                if status == CRASHED:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                # Whatever happened, this fork goes no further than here.
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
