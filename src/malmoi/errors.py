"""Errors that users see.

Each one says what was asked for, where the fault lies (file, line, key) and what to do about it.
A broken assumption of our own is an `assert`, never one of these.
"""


class MalmoiError(Exception):
    """Whatever malmoi refuses to do, told in a sentence that a user can act on."""


class ConfigError(MalmoiError):
    """A setting, an option or a combination of them that cannot work."""


class DataError(MalmoiError):
    """Text, pairs or a store that cannot be used as they are."""


class CheckpointError(MalmoiError):
    """A model folder, a checkpoint or a run that cannot be read or written."""
