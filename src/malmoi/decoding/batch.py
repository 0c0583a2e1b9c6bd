"""Sentences that are searched together: one step of all of them, and who leaves and who comes in.

In: a scorer and requests. Out: the outputs of each request, as soon as nothing can better them. In each step the scorer
is asked once about all rows that hold a hypothesis, rules forbid what may not be, a chooser (beam or sampling) decides,
outputs that end are put aside for good, and the scorer's state, rules and records all move by one selection of rows.

Letters: B sentences, K rows of a sentence, R = B x K rows, A rows that hold a hypothesis, V vocabulary.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.attention import AttentionRecord
from malmoi.decoding.beam import BeamChooser
from malmoi.decoding.constraints import Constraints
from malmoi.decoding.forced import pad_sources
from malmoi.decoding.greedy import go_on
from malmoi.decoding.interface import (
    BestScorer,
    DecoderState,
    Flags,
    GreedyScorer,
    Hypothesis,
    Ids,
    Integers,
    MergingScorer,
    Numbers,
    Request,
    Scorer,
)
from malmoi.decoding.live import Choice, Live, Pool, Samples, Sentence
from malmoi.decoding.rules import NO_IDS, Bans, ForbiddenIds, ForcedPrefix, Limits, MinimumLength, NoRepeat, Rule
from malmoi.decoding.running import Continuations, Running
from malmoi.decoding.sampling import SampleChooser, draw_numbers
from malmoi.decoding.scoring import Scoring

STEPS_AT_ONCE = 8
"""So many plain steps of few rows, or greedy ones, are made without a look at them; others can come in after that."""

FEW_ROWS = 32
"""Steps of more rows take long."""


class SearchBatch:
    """Sentences that are searched together, one step at a time; others can come in between steps."""

    def __init__(
        self,
        scorer: Scorer,
        config: DecodingConfig,
        forbidden_ids: Sequence[int] = (),
        *,
        keep_attention: bool = False,
        is_patient: bool = True,
    ) -> None:
        """`is_patient`: sentences that are to come in can wait for several steps of however many rows."""
        self.scorer = scorer
        self.is_patient = is_patient
        self.config = config
        self.scoring = Scoring.from_config(config)
        self.keep_attention = keep_attention
        self.looks = keep_attention or config.coverage_beta > 0
        self.width = config.n_best if config.method == "sample" else config.beam_size
        self.chooser = (
            SampleChooser.from_config(config, scorer.end_id)
            if config.method == "sample"
            else BeamChooser(self.width, scorer.end_id, config.diverse_groups, config.diversity)
        )
        self.maybe_best = maybe_best_scorer(scorer, config, self.width)
        self.maybe_merging = maybe_merging_scorer(self.maybe_best)
        self.maybe_greedy = maybe_greedy_scorer(self.maybe_best, self.width)
        self.first_rules = make_rules(config, forbidden_ids, scorer.end_id)
        self.running: Running | None = None

    @property
    def num_sentences(self) -> int:
        """Sentences in flight."""
        return 0 if self.running is None else len(self.running.live.sentences)

    def num_fitting(self, source_lengths: Iterable[int]) -> int:
        """How many of the waiting sentences, in their order, should come in now.

        None until half of the budget is free, since coming in has its own cost; one at least where nothing goes on.
        """
        live = [] if self.running is None else [len(one.request.source) for one in self.running.live.sentences]
        longest, budget = max(live, default=0), self.config.batch_tokens
        if 2 * len(live) * self.width * longest > budget:
            return 0
        num_sentences = len(live)
        for length in source_lengths:
            longest = max(longest, length)
            if num_sentences and (num_sentences + 1) * self.width * longest > budget:
                break
            num_sentences += 1
        return num_sentences - len(live)

    def add(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Let sentences in, each with the number that its answer shall bear."""
        if not requests:
            return
        scorer = self.scorer
        source_BS, lengths_B = pad_sources([request.source for _, request in requests], scorer)
        state = scorer.start(scorer.encode(source_BS, lengths_B), keep_attention=self.looks)
        plain = [request for _, request in requests]
        sentences = tuple(self.make_sentence(number, request) for number, request in requests)
        live = Live.start(sentences, self.width, self.chooser.first_rows)
        rows_A = live.alive // self.width
        running = Running(
            live=live,
            state=state if len(rows_A) == len(requests) else state.select(rows_A),
            token_A=np.full_like(rows_A, scorer.start_id),
            rules=[rule.start(plain, self.width) for rule in self.first_rules],
            constraints=Constraints(scorer.end_id).start(plain, self.width),
            record=AttentionRecord.start(lengths_B.repeat(self.width), self.keep_attention) if self.looks else None,
        )
        self.running = running if self.running is None else self.running.append(running)

    def remove(self, numbers: Collection[int]) -> None:
        """Sentences that nobody waits for any more leave without an answer; the others go on as if alone."""
        if self.running is None:
            return
        sentences = self.running.live.sentences
        kept = [place for place, sentence in enumerate(sentences) if sentence.number not in numbers]
        if len(kept) < len(sentences):
            self.running = self.running.keep(np.array(kept, dtype=np.int64)) if kept else None

    def best_rows(self) -> dict[int, Ids]:
        """What the likeliest row of each sentence in flight has said so far, by the sentences' numbers."""
        if self.running is None:
            return {}
        live = self.running.live
        best_B: list[int] = live.totals_BK.argmax(axis=1).tolist()
        return {
            sentence.number: live.ids_and_log_probs(place, best_B[place])[0]
            for place, sentence in enumerate(live.sentences)
        }

    def make_sentence(self, number: int, request: Request) -> Sentence:
        """A request with all that it brings along."""
        limits = Limits.of(request, self.config, self.scorer.end_id)
        if self.config.method == "beam":
            return Sentence(number, request, limits, Pool(self.config.n_best))
        draws = draw_numbers(self.config.seed, number, self.width, limits.most + 1)
        return Sentence(number, request, limits, Samples(), draws)

    def step(self) -> dict[int, list[Hypothesis]]:
        """One more token for every row, or several; the answers of sentences that are done, by their numbers."""
        running = self.running
        assert running is not None, "there is nothing to search"
        scorer = self.scorer
        if self.maybe_greedy is not None and (most := self.greedy_steps(running)) > 1:
            bans = Bans.of(running.rules)
            if bans is not None and bans.no_end_R is None:
                self.running, answers = go_on(self.maybe_greedy, running, self.scoring, bans.ids, most)
                return answers
        running, choice, state = self.choose(running)
        self.running, live, seen = running, running.live, None
        if running.record:
            attention_RS = None if state.attention_RS is None else spread(state.attention_RS, live, 0.0)
            seen = running.record.add(attention_RS, running.num_tokens_R)
        if choice.ended_BK is not None and choice.end_log_probs_BK is not None:
            ends_BK = np.full_like(choice.ids_BK, scorer.end_id)
            totals_BK = live.totals_BK + choice.end_log_probs_BK
            endings = Continuations(self.own_rows(live), ends_BK, choice.end_log_probs_BK, totals_BK)
            self.collect(choice.ended_BK, endings, seen)
        if choice.cut_BK is not None:
            as_they_are = Continuations(self.own_rows(live), None, choice.log_probs_BK, live.totals_BK)
            self.collect(choice.cut_BK, as_they_are, running.record)
        maybe_open_B = self.find_open(choice)
        if scorer.max_steps is not None and live.most_said + 1 >= scorer.max_steps:
            exhausted_B = live.num_tokens_B + 1 >= scorer.max_steps
            going_on = Continuations(choice.rows_BK, choice.ids_BK, choice.log_probs_BK, choice.totals_BK)
            self.collect((choice.totals_BK > -np.inf) & exhausted_B[:, None], going_on, seen)
            maybe_open_B = ~exhausted_B if maybe_open_B is None else maybe_open_B & ~exhausted_B
        if maybe_open_B is None or maybe_open_B.all():
            self.running = running.advance(choice, None, state, seen)
            return {}
        kept = maybe_open_B.nonzero()[0]
        self.running = running.advance(choice, kept, state, seen) if kept.size else None
        done = [live.sentences[number] for number in (~maybe_open_B).nonzero()[0].tolist()]
        return {sentence.number: sentence.pool.outputs() for sentence in done}

    def own_rows(self, live: Live) -> Integers:
        """Each row by its own number."""
        return np.tile(np.arange(self.width), (len(live.sentences), 1))

    def choose(self, running: Running) -> tuple[Running, Choice, DecoderState]:
        """Ask the scorer, for candidates alone where it can choose them and nothing needs to see more.

        It may make plain steps before; sentences as they are after those come first.
        """
        live, chooser = running.live, self.chooser
        maybe_bans = None
        if self.maybe_best is not None and not running.constraints.active:
            maybe_bans = Bans.of(running.rules)
        if self.maybe_best is not None and maybe_bans is not None and isinstance(chooser, BeamChooser):
            no_end_R = maybe_bans.no_end_R
            no_end_A = None if no_end_R is None else no_end_R[live.alive]
            asked = (running.token_A, running.state, 2 * self.width, maybe_bans.ids, no_end_A)
            if self.maybe_merging is not None and live.at_limit_B is None:
                most = self.most_steps(running) if no_end_A is None else 1
                merged, state = self.maybe_merging.step_merged(*asked, live.totals_BK, live.maybe_alive, most)
                if merged.plain:
                    live = live.pass_over(merged.plain, merged.totals_BK)
                    running = replace(running, live=live)
                return running, chooser.choose_merged(merged.candidates, live), state
            best, state = self.maybe_best.step_best(*asked)
            return running, chooser.choose_best(best, live), state
        log_probs_AV, state = self.scorer.step(running.token_A, running.state)
        log_probs_RV = spread(log_probs_AV, live, -np.inf)
        for rule in (*running.rules, running.constraints):
            rule.apply(log_probs_RV)
        return running, chooser.choose(log_probs_RV, live, running.constraints), state

    def most_steps(self, running: Running) -> int:
        """How many steps may be made before something has to be looked at: one where outputs are there to compare with,
        where attention is kept, or where the steps themselves take long."""
        live = running.live
        if live.totals_BK.size > FEW_ROWS or live.maybe_alive is not None or running.record is not None:
            return 1
        if any(sentence.pool.threshold > -np.inf for sentence in live.sentences):
            return 1
        most = min(STEPS_AT_ONCE, live.steps_left)
        return most if self.scorer.max_steps is None else min(most, max(self.scorer.max_steps - live.most_said, 1))

    def greedy_steps(self, running: Running) -> int:
        """How many steps the scorer may go on by itself before a sentence reaches a limit; none where more is asked
        for than its best tokens."""
        live = running.live
        has_few = self.is_patient or len(live.sentences) <= FEW_ROWS
        if not has_few or live.maybe_alive is not None or running.record is not None or running.constraints.active:
            return 0
        most = min(STEPS_AT_ONCE, live.steps_left)
        return most if self.scorer.max_steps is None else min(most, self.scorer.max_steps - live.most_said - 1)

    def collect(self, taken_BK: Flags, continuations: Continuations, record: AttentionRecord | None) -> None:
        """Put outputs aside: the marked continuations, if they are good enough for the pools of their sentences."""
        running = self.running
        sentences, places = np.nonzero(taken_BK)
        if running is None or not sentences.size:
            return
        live, ids_BK = running.live, continuations.ids_BK
        rows = continuations.rows_BK[sentences, places]
        coverage = record.coverage(self.scoring)[sentences * self.width + rows] if record and self.scoring.beta else 0.0
        num_tokens = live.num_tokens_B[sentences] + (ids_BK is not None)
        scores = self.scoring.score(continuations.totals_BK[sentences, places], num_tokens, coverage)
        for sentence, row, place, score in zip(
            sentences.tolist(), rows.tolist(), places.tolist(), scores.tolist(), strict=True
        ):
            pool = live.sentences[sentence].pool
            token = None if ids_BK is None else int(ids_BK[sentence, place])
            finished = token == self.scorer.end_id
            if finished and score <= pool.threshold:
                continue
            flat = sentence * self.width + row
            ids, log_probs = live.ids_and_log_probs(sentence, row)
            if token is not None:
                ids, log_probs = (*ids, token), (*log_probs, float(continuations.log_probs_BK[sentence, place]))
            trail = record.trail(flat, len(ids)) if record else None
            missing = 0 if finished else running.constraints.num_missing_after(flat, token)
            pool.add(Hypothesis(ids, score, log_probs, finished, trail, missing), row)

    def find_open(self, choice: Choice) -> Flags | None:
        """Which sentences have a live row that can still better what they have, or fill what they lack; None: all."""
        assert self.running is not None
        live = self.running.live
        thresholds = [sentence.pool.threshold for sentence in live.sentences]
        is_any_full = max(thresholds) > -np.inf
        if choice.fills_all and not is_any_full:
            return None
        best = choice.totals_BK.max(axis=1)
        open_B = best > -np.inf
        if not is_any_full:
            return open_B
        most = live.most_B + 1
        if self.scorer.max_steps is not None:
            most = np.minimum(most, self.scorer.max_steps)
        return open_B & (self.scoring.bound(best, live.num_tokens_B + 1, most) > thresholds)


def maybe_best_scorer(scorer: Scorer, config: DecodingConfig, width: int) -> BestScorer | None:
    """The scorer, if it can choose as many candidates as this search needs."""
    # To ask a protocol would take as long as several steps of a small model.
    if config.method == "beam" and config.diverse_groups == 1 and hasattr(scorer, "step_best"):
        best = cast(BestScorer, scorer)
        return best if 2 * width <= best.most_candidates else None
    return None


def maybe_merging_scorer(maybe_best: BestScorer | None) -> MergingScorer | None:
    """The same if it can merge candidates, too."""
    return cast(MergingScorer, maybe_best) if hasattr(maybe_best, "step_merged") else None


def maybe_greedy_scorer(maybe_best: BestScorer | None, width: int) -> GreedyScorer | None:
    """The same if it can go on by itself where each sentence has one row."""
    return cast(GreedyScorer, maybe_best) if width == 1 and hasattr(maybe_best, "run_greedily") else None


def spread(values_AX: Numbers, live: Live, fill: float) -> Numbers:
    """What the scorer said of the rows that hold a hypothesis, among all rows, `(R, X)`."""
    if live.maybe_alive is None:
        return values_AX
    values_RX = np.full((live.totals_BK.size, values_AX.shape[1]), fill, dtype=values_AX.dtype)
    values_RX[live.maybe_alive] = values_AX
    return values_RX


def make_rules(config: DecodingConfig, forbidden_ids: Sequence[int], end_id: int) -> list[Rule]:
    """The rules that settings ask for, without rows yet; the forced prefix comes first, as it must."""
    rules: list[Rule] = [ForcedPrefix(NO_IDS.reshape(0, 0))]
    if forbidden_ids:
        rules.append(ForbiddenIds(np.array(sorted(set(forbidden_ids)), dtype=np.int64)))
    if config.min_length or config.min_length_ratio:
        rules.append(MinimumLength(config, end_id, NO_IDS))
    if config.no_repeat_ngram:
        rules.append(NoRepeat(config.no_repeat_ngram, NO_IDS.reshape(0, 0), NO_IDS))
    return rules
