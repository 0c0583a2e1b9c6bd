"""Messages of the program, whatever other tests did to its logger."""

import logging
from collections.abc import Iterator

import pytest

from malmoi.log import get_logger


class Collector(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What was logged since the test began."""
    logger, collector = get_logger(), Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    yield collector.messages
    logger.removeHandler(collector)
    logger.setLevel(level)
