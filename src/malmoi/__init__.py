"""malmoi: sequence-to-sequence models from pairs of text.

`malmoi.load("model").translate(["..."])` is all that a program needs; nothing is imported before `load` is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from malmoi.config.training import Device
    from malmoi.translate import Translator

    __version__: str

__all__ = ["__version__", "load"]


def load(model: "str | Path | Sequence[str | Path]", *, device: "Device" = "auto", threads: int = 0) -> "Translator":
    """A translator from a model folder or a run folder; several of them make an ensemble.

    `threads` are those of the processor, 0 leaves torch's own number. Raises `CheckpointError` for what is no model.
    """
    from malmoi.translate import Translator

    return Translator.load(model, device=device, threads=threads)


def __getattr__(name: str) -> str:
    """`__version__` is read from the installed package when someone asks for it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("malmoi")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
