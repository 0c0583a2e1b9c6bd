"""What a model did with a sentence: where it looked, how sure it was, and what it owes to which word.

`from malmoi.explain import explain`, then `explain(model, text)`. As `malmoi` itself, this is a front door: it imports
what it calls only when it is called.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from malmoi.checkpoint import Model
    from malmoi.config.decoding import DecodingConfig
    from malmoi.explain.result import Explanation
    from malmoi.translate import Translator

__all__ = ["explain"]


def explain(
    model: "str | Path | Model | Translator",
    text: str,
    *,
    n_best: int = 1,
    against: str | None = None,
    options: "Mapping[str, Any] | DecodingConfig | None" = None,
) -> "Explanation":
    """Translate one text as the model's own settings (with `options` above them) say, and show how it was done.

    In a notebook the result shows itself as a page.
    Arguments, errors and result are those of `explain_sentence` in `malmoi/explain/sentence.py`.
    """
    from malmoi.explain.sentence import explain_sentence
    from malmoi.report.explanation import notebook_page

    return explain_sentence(model, text, n_best=n_best, against=against, options=options, page=notebook_page)
