"""The program's way in: `malmoi` and `python -m malmoi`.

In: the words of the command line. Out: an exit status; 0 done, 1 refused or failed, 2 asked for in a way that cannot
work, 130 stopped by Ctrl-C. Faults of the user are one message on standard error, never a traceback.
"""

import io
import os
import sys
from pathlib import Path

from malmoi.commands.main import app
from malmoi.errors import ConfigError, MalmoiError


def main() -> None:
    """Run one command and leave with its status."""
    open_missing_streams()
    use_utf8_streams()
    try:
        app(prog_name="malmoi")
    except MalmoiError as error:
        sys.stderr.write(f"malmoi: {error}\n")
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        # What no room foresaw, as a disk that fills up while results are written to it.
        sys.stderr.write(f"malmoi: {error.filename or 'standard output'}: {error.strerror or error}\n")
        sys.exit(1)


def open_missing_streams() -> None:
    """A standard stream that was closed before the start is empty, or swallows what is written to it.

    Otherwise the next file that is opened would get its number, and what belongs to the stream would go into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def use_utf8_streams() -> None:
    """Text is UTF-8 and lines end with LF on every system, whatever the locale says."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    # A message must come out even when it holds a file name that is not UTF-8.
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


if __name__ == "__main__":
    main()
