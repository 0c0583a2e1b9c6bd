"""Another program's command, in which every translation of CTranslate2 has a fixed number of tokens.

    python benchmarks/servers/held.py TOKENS PROGRAM [OPTION ...]

In: a Python program that searches with CTranslate2 and has no option for the length of outputs. Out: the program as it
is, but for this length. Runs in the environment of the program; needs ctranslate2 beside the standard library.
"""

# pyright: reportMissingImports=false

import runpy
import sys
from typing import Any

import ctranslate2


def held(translator: type[Any], tokens: int) -> type[Any]:
    """The same class, whose outputs have so many tokens."""

    class Held(translator):
        def translate_batch(self, *rows: Any, **options: Any) -> Any:
            length = {"min_decoding_length": tokens, "max_decoding_length": tokens}
            return super().translate_batch(*rows, **(options | length))

    return Held


def main() -> None:
    tokens, *words = sys.argv[1:]
    ctranslate2.Translator = held(ctranslate2.Translator, int(tokens))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
