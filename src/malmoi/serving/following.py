"""What could stand next: the words that a model finds likely behind a prefix of a translation.

In: a text and a prefix. Out: words with probabilities, best first. Two searches: the likeliest next tokens, then each
of them spelt on, greedily, to the end of its word. A word's probability is the product of those of its tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from malmoi.decoding.interface import Hypothesis, Ids
from malmoi.explain.words import group
from malmoi.serving.limits import finite
from malmoi.serving.models import Loaded, ServedModel
from malmoi.serving.service import Caller, Service
from malmoi.serving.tickets import Group
from malmoi.serving.translation import Plan, Wish
from malmoi.text.ids import END_ID, REPLACEMENT
from malmoi.text.tokenizer import Tokenizer

MOST_TOKENS = 12
"""Of one word."""


@dataclass(frozen=True)
class Following:
    """A word that could follow; `prefix` is the former one with this word."""

    text: str
    probability: float
    prefix: str
    is_glued: bool = False
    """Whether no space stands before it."""


async def next_words(
    service: Service, caller: Caller, model: ServedModel, text: str, prefix: str, count: int
) -> list[Following]:
    """At most `count` different words."""
    loaded, plan = await service.plan(caller, model, [text], Wish(prefix=prefix, is_whole=True))
    if not plan.requests:
        return []
    given = plan.requests[0].prefix
    firsts = await search(service, caller, loaded, widened(plan, len(given), 2 * count))
    starts = {one.ids[: len(given) + 1]: one for one in firsts if len(one.ids) > len(given)}
    starts = {ids: one for ids, one in starts.items() if ids[-1] != END_ID}
    if not starts:
        return []
    spelt = await search(service, caller, loaded, spelling(plan, list(starts)))
    target = loaded.translator.tokenizers.target
    found: dict[str, Following] = {}
    for one in spelt:
        following = read_word(target, one, len(given))
        if following is not None:
            found.setdefault(following.prefix, following)
    best = sorted(found.values(), key=lambda one: -one.probability)
    if prefix and best and not best[0].is_glued:
        # In a text with spaces a letter right behind the last word would be another word than that.
        best = [one for one in best if not (one.is_glued and one.text[0].isalnum())]
    return best[:count]


async def search(service: Service, caller: Caller, loaded: Loaded, plan: Plan) -> list[Hypothesis]:
    """All hypotheses of a plan in a row."""
    return [one for found in await service.search(caller, loaded, plan) for one in found]


def widened(plan: Plan, num_given: int, width: int) -> Plan:
    """A search for the likeliest tokens behind a prefix."""
    return with_settings(plan, num_given + 1, beam_size=width, n_best=width)


def spelling(plan: Plan, starts: Sequence[Ids]) -> Plan:
    """Greedy searches that go on from each start."""
    one = plan.prepared[0]
    assert one.request is not None
    requests = [type(one.request)(one.request.source, start) for start in starts]
    prepared = tuple(type(one)(text=one.text, request=request) for request in requests)
    longest = max(map(len, starts)) + MOST_TOKENS
    narrow = with_settings(plan, longest, beam_size=1, n_best=1)
    return Plan(plan.texts, plan.spans, prepared, narrow.config, narrow.group)


def with_settings(plan: Plan, longest: int, **settings: Any) -> Plan:
    """A plain beam search with other settings; nothing but the model decides."""
    config = plan.config.model_copy(
        update={
            "method": "beam",
            "diverse_groups": 1,
            "min_length": 0,
            "min_length_ratio": 0.0,
            "coverage_beta": 0.0,
            "no_repeat_ngram": 0,
            "length_penalty": "none",
            "replace_unknown": False,
            "max_length": longest,
            "max_length_ratio": 0.0,
            "max_length_extra": longest,
            **settings,
        }
    )
    return Plan(plan.texts, plan.spans, plan.prepared, config, Group(config))


def read_word(target: Tokenizer, one: Hypothesis, num_given: int) -> Following | None:
    """The word in which the first token behind the prefix stands; None where it is no whole text."""
    ids = one.ids[:-1] if one.ids and one.ids[-1] == END_ID else one.ids
    spans = group(ids, target.pieces(ids), target.kind)
    # A script without spaces is read token by token.
    is_one = len(spans) == 1
    behind = num_given + 1 if is_one else next((behind for _, behind in spans if behind > num_given), 0)
    prefix, before = target.decode(ids[:behind]), target.decode(ids[:num_given])
    text = prefix[len(before) :].strip() if prefix.startswith(before) else ""
    if behind <= num_given or not text or prefix.endswith(REPLACEMENT):
        return None
    log_prob = finite(sum(one.log_probs[num_given:behind]))
    return Following(text, min(1.0, math.exp(log_prob)), prefix, is_glued=prefix == before + text)
