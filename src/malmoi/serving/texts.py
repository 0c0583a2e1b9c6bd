"""Whole texts of the two foreign interfaces, plain or HTML.

In: texts and options. Out: translated texts with alternatives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from malmoi.serving.models import ServedModel
from malmoi.serving.service import Client, Service
from malmoi.serving.translation import Wish


@dataclass(frozen=True)
class Output:
    """A translated text and others that it could have been."""

    text: str
    alternatives: list[str]


async def translate_texts(
    service: Service,
    request: Request,
    client: Client | None,
    model: ServedModel,
    texts: Sequence[str],
    options: Mapping[str, Any],
    *,
    is_html: bool = False,
    num_alternatives: int = 0,
    at_lines: bool = True,
    is_whole: bool = False,
) -> list[Output]:
    """Translations in order."""
    wish = Wish(options=options, at_lines=at_lines, is_whole=is_whole)
    _, answers = await service.translate(request, client, model, texts, wish)
    return [Output(answer.text, answer.alternatives(num_alternatives)) for answer in answers]
