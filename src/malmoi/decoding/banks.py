"""Beam search under lexical constraints: the places of a beam shared out by what rows have done.

Dynamic beam allocation (Post & Vilar, 2018): beside the best continuations of all rows, each row offers its best tokens
and every token that brings it nearer to a missing phrase. Candidates with as many tokens still missing form a bank, and
banks share the K places, so that outputs on their way to all phrases are never crowded out by fluent ones without them.
An output ends, once nothing is missing, if its end symbol would have had a place in its bank.

Letters: B sentences, K rows of a sentence, R = B x K rows, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malmoi.decoding.candidates import stable_topk
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.interface import Candidates, Numbers
from malmoi.decoding.live import Choice, Live, ends_of


@dataclass(frozen=True)
class Offer:
    """A continuation of one row of a sentence, with the tokens that are still missing after it."""

    total: float
    row: int
    token: int
    log_prob: float
    missing: int

    @property
    def rank(self) -> tuple[float, int, int]:
        """Sorts best first, ties to the lower row and then to the lower token."""
        return (-self.total, self.row, self.token)


def choose_from_banks(
    choice: Choice, candidates: Candidates, log_probs_RV: Numbers, live: Live, constraints: Constraints, end_id: int
) -> Choice:
    """The same choice, made anew for the sentences with constraints."""
    width = live.totals_BK.shape[1]
    offers = make_offers(candidates, log_probs_RV, live, constraints, end_id)
    rows_BK, ids_BK = choice.rows_BK.copy(), choice.ids_BK.copy()
    log_probs_BK, totals_BK = choice.log_probs_BK.copy(), choice.totals_BK.copy()
    ended_BK, end_log_probs_BK = ends_of(choice)
    for sentence, of_sentence in offers.items():
        kept, ended = share_out(of_sentence, width, end_id)
        rows_BK[sentence], ids_BK[sentence], totals_BK[sentence], ended_BK[sentence] = 0, end_id, -np.inf, False
        rows_BK[sentence, : len(kept)] = [offer.row for offer in kept]
        ids_BK[sentence, : len(kept)] = [offer.token for offer in kept]
        log_probs_BK[sentence, : len(kept)] = [offer.log_prob for offer in kept]
        totals_BK[sentence, : len(kept)] = [offer.total for offer in kept]
        for offer in ended:
            ended_BK[sentence, offer.row] = True
            end_log_probs_BK[sentence, offer.row] = offer.log_prob
    return Choice(
        rows_BK=rows_BK,
        ids_BK=ids_BK,
        log_probs_BK=log_probs_BK,
        totals_BK=totals_BK,
        ended_BK=ended_BK,
        end_log_probs_BK=end_log_probs_BK,
    )


def make_offers(
    candidates: Candidates, log_probs_RV: Numbers, live: Live, constraints: Constraints, end_id: int
) -> dict[int, list[Offer]]:
    """What the rows of each sentence with constraints can go on with; tokens that are not allowed are left out."""
    width = live.totals_BK.shape[1]
    rows = [row for row, automaton in enumerate(constraints.automata_R) if automaton]
    # Two, since the end symbol may be the best one.
    best_tokens: list[list[int]] = stable_topk(log_probs_RV[rows], 2)[1].tolist()
    pairs: set[tuple[int, int]] = set()
    for row, best in zip(rows, best_tokens, strict=True):
        pairs.update((row, token) for token in (*best, *constraints.wanted(row), end_id))
    for sentence in sorted({row // width for row in rows}):
        places = zip(candidates.rows_BC[sentence].tolist(), candidates.ids_BC[sentence].tolist(), strict=True)
        pairs.update((sentence * width + row, token) for row, token in places)
    ordered = sorted(pairs)
    places_2X = np.array(ordered).T
    log_probs: list[float] = log_probs_RV[places_2X[0], places_2X[1]].tolist()
    offers: dict[int, list[Offer]] = {row // width: [] for row in rows}
    for (row, token), log_prob in zip(ordered, log_probs, strict=True):
        sentence = row // width
        total = float(live.totals_BK[sentence, row % width]) + log_prob
        if total > -np.inf:
            missing = constraints.num_missing_tokens_after(row, token)
            offers[sentence].append(Offer(total, row % width, token, log_prob, missing))
    return offers


def share_out(offers: Sequence[Offer], num_places: int, end_id: int) -> tuple[list[Offer], list[Offer]]:
    """Offers that live on, best first, and offers that end."""
    ordered = sorted(offers, key=lambda offer: offer.rank)
    goes_on = group_by_missing([offer for offer in ordered if offer.token != end_id])
    shares = allot([len(bank) for bank in goes_on.values()], num_places)
    kept = [offer for bank, share in zip(goes_on.values(), shares, strict=True) for offer in bank[:share]]
    kept.sort(key=lambda offer: offer.rank)
    # Endings have nothing missing, so if there are any, the first bank is theirs.
    all_banks = group_by_missing(ordered)
    share = allot([len(bank) for bank in all_banks.values()], num_places)[0] if ordered else 0
    ends = [offer for offer in ordered if offer.token == end_id]
    rivals = goes_on.get(0, [])
    ended = [offer for offer in ends if sum(rival.rank < offer.rank for rival in rivals) < share]
    # A beam of one row is greedy search, which stops with its first ending.
    return ([] if num_places == 1 and ended else kept), ended


def group_by_missing(offers: Sequence[Offer]) -> dict[int, list[Offer]]:
    """Banks of offers, the one with the fewest tokens missing first."""
    banks: dict[int, list[Offer]] = {missing: [] for missing in sorted({offer.missing for offer in offers})}
    for offer in offers:
        banks[offer.missing].append(offer)
    return banks


def allot(num_candidates: Sequence[int], num_places: int) -> list[int]:
    """Share out places among banks, the bank that has done most first.

    Places go round one at a time, so that every bank gets as many as another while it has candidates; where there are
    fewer places than banks, those that have done most get them.
    """
    shares = [0] * len(num_candidates)
    left = num_places
    while left:
        takers = [bank for bank, count in enumerate(num_candidates) if shares[bank] < count][:left]
        if not takers:
            break
        for bank in takers:
            shares[bank] += 1
        left -= len(takers)
    return shares
