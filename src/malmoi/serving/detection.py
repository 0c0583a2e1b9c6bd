"""Which of the served source languages a text is in.

In: codes of the served languages. Out: codes with confidences, best first. py3langid weighs all languages that it
knows, so that a text in a language that is not served has no confidence in any that is. It is loaded when a client
first asks (a second, 80 MB), and never otherwise.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any

CODES = {"zt": "zh", "pb": "pt", "nb": "no", "fil": "tl", "ckb": "ku"}
"""Codes that the identifier knows under another name."""
LONGEST = 5_000
"""So many characters say enough."""


class Detector:
    """Guesses among some languages. Threads may share it."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self.lock = threading.Lock()
        self.of_labels: dict[str, str] = {}
        for code in languages:
            plain = code.partition("-")[0].lower()
            self.of_labels.setdefault(CODES.get(plain, plain), code)

    @functools.cached_property
    def identifier(self) -> Any:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Served codes with confidences from 0 to 100, best first; all 0 for a text without a letter, and for
        languages that cannot be told from others."""
        shares: dict[str, float] = {}
        if self.languages and any(character.isalpha() for character in text):
            with self.lock:
                shares = dict(self.identifier.rank(text[:LONGEST]))
        of_codes = {code: shares.get(label, 0.0) for label, code in self.of_labels.items()}
        found = [(code, round(100 * min(max(float(of_codes.get(code, 0.0)), 0.0), 1.0), 1)) for code in self.languages]
        return sorted(found, key=lambda one: -one[1])
