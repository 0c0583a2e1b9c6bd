"""Beam search, one step: which continuations live on, and which outputs end.

In: log-probabilities of all rows. Out: a `Choice`. The K best continuations live on. An output ends when its end symbol
is at least as likely as the last of those: it would have had a place among them. So a beam of 1 is greedy search (and
stops with its first ending), and a beam that holds every prefix sees every ending. At the length limit, where no row
competes for a place any more, a row ends if the end symbol is among its own K best tokens, and is cut otherwise.

With groups (diverse beam search: Vijayakumar et al., 2018, with their Hamming diversity), each group is such a beam of
K / G rows that sees log-probabilities lowered by `diversity` for each earlier group's row that took the same token.
The lowered numbers choose; sums and scores hold the model's own.

Letters: B sentences, K rows of a sentence, R = B x K rows, V vocabulary, C candidates.
"""

from dataclasses import dataclass

import numpy as np

from malmoi.decoding.banks import choose_from_banks
from malmoi.decoding.candidates import best_candidates, merge_best
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.interface import Best, Candidates, Flags, Floats, Integers, Numbers
from malmoi.decoding.live import Choice, Live, ends_of


@dataclass(frozen=True)
class BeamChooser:
    """Chooses for beams of `width` rows in `num_groups` equal groups."""

    width: int
    end_id: int
    num_groups: int = 1
    diversity: float = 0.0

    @property
    def first_rows(self) -> slice:
        """Rows that begin with a hypothesis: one of each group."""
        return slice(0, self.width, self.width // self.num_groups)

    def choose(self, log_probs_RV: Numbers, live: Live, constraints: Constraints) -> Choice:
        """One step of all sentences; those at their limit may only end."""
        if self.num_groups == 1:
            candidates = best_candidates(log_probs_RV, live.totals_BK, 2 * self.width)
            choice = pick(candidates, self.width, self.end_id)
            if constraints.active:
                choice = choose_from_banks(choice, candidates, log_probs_RV, live, constraints, self.end_id)
        else:
            choice = self.choose_groups(log_probs_RV, live.totals_BK)
        if live.at_limit_B is not None:
            ends = rank_ends(log_probs_RV, live, np.flatnonzero(live.at_limit_B), self.end_id)
            choice = end_at_limit(choice, ends, live, self.width // self.num_groups)
        return close(choice, live)

    def choose_best(self, best: Best, live: Live) -> Choice:
        """The same for one group and without constraints, from 2 K candidates of each row that is alive."""
        choice = pick(merge_best(best, live.maybe_alive, live.totals_BK, 2 * self.width), self.width, self.end_id)
        if live.at_limit_B is not None:
            ends = find_ends(best, live, np.flatnonzero(live.at_limit_B), self.end_id)
            choice = end_at_limit(choice, ends, live, self.width)
        return close(choice, live)

    def choose_merged(self, candidates: Candidates, live: Live) -> Choice:
        """The same from 2 K candidates of each sentence, where none is at its limit."""
        return close(pick(candidates, self.width, self.end_id), live)

    def choose_groups(self, log_probs_RV: Numbers, totals_BK: Floats) -> Choice:
        """Group after group, each one kept from what the earlier ones took."""
        num_sentences, size = len(totals_BK), log_probs_RV.shape[1]
        width = self.width // self.num_groups
        log_probs_BKV = log_probs_RV.reshape(num_sentences, self.width, size)
        penalty_BV = np.zeros((num_sentences, size), dtype=log_probs_RV.dtype)
        parts: list[Choice] = []
        for group in range(self.num_groups):
            rows = slice(group * width, (group + 1) * width)
            lowered_RV = (log_probs_BKV[:, rows] - penalty_BV[:, None]).reshape(-1, size)
            candidates = best_candidates(lowered_RV, totals_BK[:, rows], 2 * width)
            choice = pick(restore(candidates, log_probs_BKV[:, rows], totals_BK[:, rows]), width, self.end_id)
            parts.append(choice._replace(rows_BK=choice.rows_BK + group * width))
            weight_BK = np.where(choice.totals_BK > -np.inf, self.diversity, 0.0).astype(penalty_BV.dtype)
            np.add.at(penalty_BV, (np.arange(num_sentences)[:, None], choice.ids_BK), weight_BK)
        ends = [ends_of(part) for part in parts]
        return Choice(
            rows_BK=np.concatenate([part.rows_BK for part in parts], axis=1),
            ids_BK=np.concatenate([part.ids_BK for part in parts], axis=1),
            log_probs_BK=np.concatenate([part.log_probs_BK for part in parts], axis=1),
            totals_BK=np.concatenate([part.totals_BK for part in parts], axis=1),
            ended_BK=np.concatenate([ended_BK for ended_BK, _ in ends], axis=1),
            end_log_probs_BK=np.concatenate([log_probs_BK for _, log_probs_BK in ends], axis=1),
        )


def restore(candidates: Candidates, log_probs_BKV: Numbers, totals_BK: Floats) -> Candidates:
    """The same candidates in the same order, with the model's own numbers in the place of lowered ones."""
    sentences_B1 = np.arange(len(totals_BK))[:, None]
    log_probs_BC = log_probs_BKV[sentences_B1, candidates.rows_BC, candidates.ids_BC].astype(np.float64)
    totals_BC = totals_BK[sentences_B1, candidates.rows_BC] + log_probs_BC
    alive_BC = candidates.totals_BC > -np.inf
    return candidates._replace(totals_BC=np.where(alive_BC, totals_BC, -np.inf), log_probs_BC=log_probs_BC)


def pick(candidates: Candidates, width: int, end_id: int) -> Choice:
    """The `width` best continuations, and the endings that are not worse than the last of them."""
    num_sentences, num_candidates = candidates.totals_BC.shape
    if is_plain(candidates, width, end_id):
        # As in most steps of a sentence.
        return Choice(
            candidates.rows_BC[:, :width],
            candidates.ids_BC[:, :width],
            candidates.log_probs_BC[:, :width],
            candidates.totals_BC[:, :width],
            fills_all=True,
            in_place=width == 1,
        )
    alive_BC = candidates.totals_BC > -np.inf
    ends_BC = alive_BC & (candidates.ids_BC == end_id)
    goes_on_BC = alive_BC & ~ends_BC
    place_BC = goes_on_BC.cumsum(axis=1)
    ends_BC &= place_BC < width
    if width == 1:
        goes_on_BC &= ~ends_BC.any(axis=1, keepdims=True)
    lives_BC = goes_on_BC & (place_BC <= width)
    ended_BK, end_log_probs_BK = mark_ends(candidates, ends_BC, width)
    # Those that live come first, in their order.
    order_BK = (~lives_BC).argsort(axis=1, kind="stable")[:, :width]
    if num_candidates < width:
        # A beam wider than what there is to choose from has places left over.
        order_BK = np.pad(order_BK, ((0, 0), (0, width - num_candidates)), constant_values=num_candidates - 1)
    sentences_B1 = np.arange(num_sentences)[:, None]
    filled_BK = lives_BC[sentences_B1, order_BK] & (np.arange(width) < num_candidates)
    return Choice(
        rows_BK=np.where(filled_BK, candidates.rows_BC[sentences_B1, order_BK], 0),
        ids_BK=np.where(filled_BK, candidates.ids_BC[sentences_B1, order_BK], end_id),
        log_probs_BK=candidates.log_probs_BC[sentences_B1, order_BK],
        totals_BK=np.where(filled_BK, candidates.totals_BC[sentences_B1, order_BK], -np.inf),
        ended_BK=ended_BK,
        end_log_probs_BK=end_log_probs_BK,
        in_place=width == 1,
    )


def is_plain(candidates: Candidates, width: int, end_id: int) -> bool:
    """Whether the best continuations of each sentence fill all places and none of them ends."""
    if candidates.maybe_plain is not None:
        return candidates.maybe_plain
    if candidates.totals_BC.shape[1] < width or (candidates.totals_BC[:, width - 1] == -np.inf).any():
        return False
    return not np.count_nonzero(candidates.ids_BC[:, :width] == end_id)


def mark_ends(candidates: Candidates, ends_BC: Flags, width: int) -> tuple[Flags, Floats]:
    """Which rows end, and the log-probabilities of their end symbols."""
    ended_BK = np.zeros((len(ends_BC), width), dtype=np.bool_)
    end_log_probs_BK = np.full((len(ends_BC), width), -np.inf)
    sentences, places = ends_BC.nonzero()
    rows = candidates.rows_BC[sentences, places]
    ended_BK[sentences, rows] = True
    end_log_probs_BK[sentences, rows] = candidates.log_probs_BC[sentences, places]
    return ended_BK, end_log_probs_BK


def close(choice: Choice, live: Live) -> Choice:
    """Rows are cut where their sentence is at its limit or has nothing to go on with."""
    if choice.fills_all:
        return choice
    closing_B = choice.totals_BK.max(axis=1) == -np.inf
    if not np.count_nonzero(closing_B):
        return choice
    cut_BK = (live.totals_BK > -np.inf) & closing_B[:, None]
    return choice._replace(cut_BK=cut_BK if choice.ended_BK is None else cut_BK & ~choice.ended_BK)


def rank_ends(log_probs_RV: Numbers, live: Live, sentences: Integers, end_id: int) -> tuple[Floats, Integers]:
    """For the rows (X, K) of some sentences: log-probabilities of the end symbol, and how many tokens come before."""
    log_probs_XKV = log_probs_RV.reshape(*live.totals_BK.shape, -1)[sentences]
    ends_XK1 = log_probs_XKV[..., end_id : end_id + 1]
    num_better_XK = (log_probs_XKV > ends_XK1).sum(-1) + (log_probs_XKV[..., :end_id] == ends_XK1).sum(-1)
    return ends_XK1[..., 0].astype(np.float64), num_better_XK


def find_ends(best: Best, live: Live, sentences: Integers, end_id: int) -> tuple[Floats, Integers]:
    """The same from candidates: more tokens than they are may come before, which is as good as any too many."""
    ends_R1 = best.end_log_probs_R[:, None]
    is_better_RC = (best.log_probs_RC > ends_R1) | ((best.log_probs_RC == ends_R1) & (best.ids_RC < end_id))
    ends_BK = np.full(live.totals_BK.shape, -np.inf)
    num_better_BK = np.zeros(live.totals_BK.shape, dtype=np.int64)
    ends_BK.ravel()[live.alive] = best.end_log_probs_R
    num_better_BK.ravel()[live.alive] = is_better_RC.sum(1)
    return ends_BK[sentences], num_better_BK[sentences]


def end_at_limit(choice: Choice, ends: tuple[Floats, Integers], live: Live, width: int) -> Choice:
    """Sentences at their limit: no row goes on, each ends if the end symbol is among its `width` best tokens."""
    at_limit_B = live.num_tokens_B >= live.most_B
    ends_XK, num_better_XK = ends
    ended_XK = (num_better_XK < width) & (ends_XK > -np.inf)
    ended_BK, end_log_probs_BK = ends_of(choice)
    ended_BK[at_limit_B] = ended_XK & (live.totals_BK[at_limit_B] > -np.inf)
    end_log_probs_BK[at_limit_B] = ends_XK
    totals_BK = np.where(at_limit_B[:, None], -np.inf, choice.totals_BK)
    return choice._replace(totals_BK=totals_BK, ended_BK=ended_BK, end_log_probs_BK=end_log_probs_BK, fills_all=False)
