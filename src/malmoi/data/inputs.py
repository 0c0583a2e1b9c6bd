"""The files that a store was made from: whether they are still what they were.

In: paths, or what was written down about them. Out: size, time of the last change and hash of each; `DataError` with
the file's name where it is gone or changed. A file whose size and time are as they were is not read.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from malmoi.data.store import InputRecord
from malmoi.errors import DataError
from malmoi.files import measure


def record_inputs(paths: Iterable[Path]) -> dict[str, InputRecord]:
    """What is to be remembered of files; each is read once."""
    records: dict[str, InputRecord] = {}
    for path in paths:
        try:
            # Looked at before it is read: a change meanwhile is seen as one.
            status = path.stat()
            records[str(path)] = InputRecord(size=status.st_size, modified_ns=status.st_mtime_ns, hash=measure(path)[1])
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return records


def check_inputs(records: Mapping[str, InputRecord], advice: str) -> None:
    """`DataError` with `advice` for the first file that is gone or holds something else than it did."""
    for name, record in records.items():
        path = Path(name)
        try:
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) == (record.size, record.modified_ns):
                continue
            is_same = status.st_size == record.size and measure(path)[1] == record.hash
        except FileNotFoundError:
            raise DataError(f"{path}: this data file is gone; {advice}") from None
        except OSError as error:
            raise DataError(f"{path}: this data file cannot be read any more ({error.strerror or error})") from error
        if not is_same:
            raise DataError(f"{path}: this data file changed; {advice}")
