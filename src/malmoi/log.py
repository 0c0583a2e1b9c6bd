"""Messages for people: standard error always, and the run's own log file on request.

Results go to standard output and never pass through here.
"""

import logging
import sys
from pathlib import Path

LOGGER_NAME = "malmoi"


def get_logger() -> logging.Logger:
    """The one logger of the program; silent until `configure_logging` gave it somewhere to write."""
    return logging.getLogger(LOGGER_NAME)


def configure_logging(*, quiet: bool = False, verbose: bool = False, speaker: str = "") -> None:
    """Send messages to standard error.

    `quiet` leaves errors only, `verbose` adds details for finding faults. `speaker` stands before each message.
    """
    logger = get_logger()
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{speaker}%(message)s"))
    handler.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


def add_log_file(path: Path) -> logging.Handler:
    """Append every message with its time to `path` (UTF-8); the caller removes the handler when the run ends."""
    handler = logging.FileHandler(path, mode="a", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.DEBUG)
    get_logger().addHandler(handler)
    get_logger().setLevel(logging.DEBUG)
    return handler
