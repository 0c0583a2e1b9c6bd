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

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from malmoi.decoding.banks import choose_from_banks
from malmoi.decoding.candidates import Candidates, best_candidates, merge_best
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.interface import Best
from malmoi.decoding.live import Choice, Flags, Floats, Integers, Live


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

    def choose(self, log_probs_RV: Tensor, live: Live, at_limit_B: Flags, constraints: Constraints) -> Choice:
        """One step of all sentences; those at their limit may only end."""
        totals_BK = torch.from_numpy(live.totals_BK).to(log_probs_RV.device)
        if self.num_groups == 1:
            candidates = best_candidates(log_probs_RV, totals_BK, 2 * self.width)
            choice = pick(candidates, self.width, self.end_id)
            if constraints.active:
                choice = choose_from_banks(choice, candidates, log_probs_RV, live, constraints, self.end_id)
        else:
            choice = self.choose_groups(log_probs_RV, totals_BK)
        if at_limit_B.any():
            ends = rank_ends(log_probs_RV, live, np.flatnonzero(at_limit_B), self.end_id)
            choice = end_at_limit(choice, ends, live, at_limit_B, self.width // self.num_groups)
        return close(choice, live, at_limit_B)

    def choose_best(self, best: Best, live: Live, at_limit_B: Flags) -> Choice:
        """The same for one group and without constraints, from 2 K candidates of each row that is alive."""
        alive = live.alive
        choice = pick(merge_best(best, alive, live.totals_BK, 2 * self.width), self.width, self.end_id)
        if np.count_nonzero(at_limit_B):
            ends = find_ends(best, live, alive, np.flatnonzero(at_limit_B), self.end_id)
            choice = end_at_limit(choice, ends, live, at_limit_B, self.width)
        return close(choice, live, at_limit_B)

    def choose_groups(self, log_probs_RV: Tensor, totals_BK: Tensor) -> Choice:
        """Group after group, each one kept from what the earlier ones took."""
        num_sentences, size = totals_BK.size(0), log_probs_RV.size(1)
        width = self.width // self.num_groups
        log_probs_BKV = log_probs_RV.view(num_sentences, self.width, size)
        penalty_BV = torch.zeros(num_sentences, size, dtype=log_probs_RV.dtype, device=log_probs_RV.device)
        parts: list[Choice] = []
        for group in range(self.num_groups):
            rows = slice(group * width, (group + 1) * width)
            lowered_RV = (log_probs_BKV[:, rows] - penalty_BV[:, None]).flatten(0, 1)
            candidates = best_candidates(lowered_RV, totals_BK[:, rows].contiguous(), 2 * width)
            choice = pick(restore(candidates, log_probs_BKV[:, rows], totals_BK[:, rows]), width, self.end_id)
            parts.append(replace(choice, rows_BK=choice.rows_BK + group * width))
            taken_BK = torch.from_numpy(choice.ids_BK).to(penalty_BV.device)
            weight_BK = torch.from_numpy(np.where(choice.totals_BK > -np.inf, self.diversity, 0.0)).to(penalty_BV)
            penalty_BV.scatter_add_(1, taken_BK, weight_BK)
        names = ("rows_BK", "ids_BK", "log_probs_BK", "totals_BK", "ended_BK", "end_log_probs_BK", "cut_BK")
        return Choice(*(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in names))


def restore(candidates: Candidates, log_probs_BKV: Tensor, totals_BK: Tensor) -> Candidates:
    """The same candidates in the same order, with the model's own numbers in the place of lowered ones."""
    sentences_B1 = torch.arange(totals_BK.size(0), device=totals_BK.device)[:, None]
    rows_BC = torch.from_numpy(candidates.rows_BC).to(totals_BK.device)
    ids_BC = torch.from_numpy(candidates.ids_BC).to(totals_BK.device)
    log_probs_BC = log_probs_BKV[sentences_B1, rows_BC, ids_BC].double()
    totals = (totals_BK[sentences_B1, rows_BC] + log_probs_BC).cpu().numpy()
    alive = candidates.totals_BC > -np.inf
    return replace(candidates, totals_BC=np.where(alive, totals, -np.inf), log_probs_BC=log_probs_BC.cpu().numpy())


def pick(candidates: Candidates, width: int, end_id: int) -> Choice:
    """The `width` best continuations, and the endings that are not worse than the last of them."""
    num_sentences, num_candidates = candidates.totals_BC.shape
    alive_BC = candidates.totals_BC > -np.inf
    ends_BC = alive_BC & (candidates.ids_BC == end_id)
    goes_on_BC = alive_BC & ~ends_BC
    place_BC = goes_on_BC.cumsum(axis=1)
    ends_BC &= place_BC < width
    if width == 1:
        goes_on_BC &= ~ends_BC.any(axis=1, keepdims=True)
    lives_BC = goes_on_BC & (place_BC <= width)
    ended_BK, end_log_probs_BK = mark_ends(candidates, ends_BC, width)
    chosen = lives_BC.ravel().nonzero()[0]
    if len(chosen) == num_sentences * width:
        # All places are filled, as in nearly every step: no more than `width` of each sentence live, so each has that.
        shape = (num_sentences, width)
        return Choice(
            candidates.rows_BC.ravel()[chosen].reshape(shape),
            candidates.ids_BC.ravel()[chosen].reshape(shape),
            candidates.log_probs_BC.ravel()[chosen].reshape(shape),
            candidates.totals_BC.ravel()[chosen].reshape(shape),
            ended_BK,
            end_log_probs_BK,
            cut_BK=np.zeros(shape, dtype=np.bool_),
        )
    order_BK = np.argsort(~lives_BC, axis=1, kind="stable")[:, :width]
    if num_candidates < width:
        # A beam wider than what there is to choose from has places left over.
        order_BK = np.pad(order_BK, ((0, 0), (0, width - num_candidates)), constant_values=num_candidates - 1)
        filled_BK = np.take_along_axis(lives_BC, order_BK, 1) & (np.arange(width) < num_candidates)
    else:
        filled_BK = np.take_along_axis(lives_BC, order_BK, 1)
    return Choice(
        rows_BK=np.where(filled_BK, np.take_along_axis(candidates.rows_BC, order_BK, 1), 0),
        ids_BK=np.where(filled_BK, np.take_along_axis(candidates.ids_BC, order_BK, 1), end_id),
        log_probs_BK=np.take_along_axis(candidates.log_probs_BC, order_BK, 1),
        totals_BK=np.where(filled_BK, np.take_along_axis(candidates.totals_BC, order_BK, 1), -np.inf),
        ended_BK=ended_BK,
        end_log_probs_BK=end_log_probs_BK,
        cut_BK=np.zeros_like(ended_BK),
    )


def mark_ends(candidates: Candidates, ends_BC: Flags, width: int) -> tuple[Flags, Floats]:
    """Which rows end, and the log-probabilities of their end symbols."""
    ended_BK = np.zeros((len(ends_BC), width), dtype=np.bool_)
    end_log_probs_BK = np.full((len(ends_BC), width), -np.inf)
    if np.count_nonzero(ends_BC):
        sentences, places = ends_BC.nonzero()
        rows = candidates.rows_BC[sentences, places]
        ended_BK[sentences, rows] = True
        end_log_probs_BK[sentences, rows] = candidates.log_probs_BC[sentences, places]
    return ended_BK, end_log_probs_BK


def close(choice: Choice, live: Live, at_limit_B: Flags) -> Choice:
    """Rows are cut where their sentence is at its limit or has nothing to go on with."""
    closing_B = at_limit_B | ~(choice.totals_BK > -np.inf).any(1)
    if not np.count_nonzero(closing_B):
        return choice
    return replace(choice, cut_BK=(live.totals_BK > -np.inf) & ~choice.ended_BK & closing_B[:, None])


def rank_ends(log_probs_RV: Tensor, live: Live, sentences: Integers, end_id: int) -> tuple[Floats, Integers]:
    """For the rows (X, K) of some sentences: log-probabilities of the end symbol, and how many tokens come before."""
    sentences_X = torch.from_numpy(sentences).to(log_probs_RV.device)
    log_probs_XKV = log_probs_RV.view(*live.totals_BK.shape, -1)[sentences_X]
    ends_XK1 = log_probs_XKV[..., end_id : end_id + 1]
    num_better_XK = (log_probs_XKV > ends_XK1).sum(-1) + (log_probs_XKV[..., :end_id] == ends_XK1).sum(-1)
    return ends_XK1[..., 0].double().cpu().numpy(), num_better_XK.cpu().numpy()


def find_ends(best: Best, live: Live, alive: Integers, sentences: Integers, end_id: int) -> tuple[Floats, Integers]:
    """The same from candidates: more tokens than they are may come before, which is as good as any too many."""
    ends_R1 = best.end_log_probs_R[:, None]
    is_better_RC = (best.log_probs_RC > ends_R1) | ((best.log_probs_RC == ends_R1) & (best.ids_RC < end_id))
    ends_BK = np.full(live.totals_BK.shape, -np.inf)
    num_better_BK = np.zeros(live.totals_BK.shape, dtype=np.int64)
    ends_BK.ravel()[alive] = best.end_log_probs_R
    num_better_BK.ravel()[alive] = is_better_RC.sum(1)
    return ends_BK[sentences], num_better_BK[sentences]


def end_at_limit(choice: Choice, ends: tuple[Floats, Integers], live: Live, at_limit_B: Flags, width: int) -> Choice:
    """Sentences at their limit: no row goes on, each ends if the end symbol is among its `width` best tokens."""
    ends_XK, num_better_XK = ends
    ended_XK = (num_better_XK < width) & (ends_XK > -np.inf)
    ended_BK, end_log_probs_BK = choice.ended_BK.copy(), choice.end_log_probs_BK.copy()
    ended_BK[at_limit_B] = ended_XK & (live.totals_BK[at_limit_B] > -np.inf)
    end_log_probs_BK[at_limit_B] = ends_XK
    totals_BK = np.where(at_limit_B[:, None], -np.inf, choice.totals_BK)
    return replace(choice, totals_BK=totals_BK, ended_BK=ended_BK, end_log_probs_BK=end_log_probs_BK)
