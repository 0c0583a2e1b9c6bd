"""Greedy search, several steps at once: the scorer goes on by itself, and what its rows said is looked at after that.

In: sentences in flight with one row each. Out: the same after so many steps, and the answers of those that ended
meanwhile. What comes out is what single steps give: a row takes its best token (ties to the lower id), and its sentence
is done with its first end symbol.
"""

import numpy as np

from malmoi.decoding.interface import Flags, GreedyScorer, Hypothesis, Integers, Run, Said
from malmoi.decoding.running import Running
from malmoi.decoding.scoring import Scoring


def go_on(
    scorer: GreedyScorer, running: Running, scoring: Scoring, forbidden_ids: Integers, num_steps: int
) -> tuple[Running | None, dict[int, list[Hypothesis]]]:
    """`num_steps` for all rows; None where no sentence is left. No sentence may reach a limit in them."""
    live = running.live
    totals_R = live.totals_BK[:, 0]
    run, state = scorer.run_greedily(running.token_A, running.state, forbidden_ids, totals_R, num_steps)
    rows = np.arange(len(totals_R))
    says_end_R = (run.counts_R > 0) & (run.ids_TR[run.counts_R - 1, rows] == scorer.end_id)
    goes_on_R = (run.counts_R == num_steps) & ~says_end_R
    answers = collect(running, run, says_end_R, (~goes_on_R).nonzero()[0], scoring)
    kept = goes_on_R.nonzero()[0]
    if not len(kept):
        return None, answers
    said = tuple(Said(rows, run.ids_TR[step], run.log_probs_TR[step]) for step in range(num_steps))
    live = live.pass_over(said, run.totals_R[:, None])
    after = Running(live, state, run.ids_TR[-1], running.rules, running.constraints, running.record)
    return after if len(kept) == len(rows) else after.keep(kept), answers


def collect(
    running: Running, run: Run, says_end_R: Flags, done: Integers, scoring: Scoring
) -> dict[int, list[Hypothesis]]:
    """Outputs of the rows that are done, by the numbers of their sentences: those without an end symbol are cut."""
    live = running.live
    counts = run.counts_R[done]
    scores: list[float] = scoring.score(run.totals_R[done], live.num_tokens_B[done] + counts).tolist()
    ids_RT: list[list[int]] = run.ids_TR.T[done].tolist()
    log_probs_RT: list[list[float]] = run.log_probs_TR.T[done].tolist()
    answers: dict[int, list[Hypothesis]] = {}
    for row, place in enumerate(done.tolist()):
        count = int(counts[row])
        ids, log_probs = live.ids_and_log_probs(place, 0)
        ids, log_probs = (*ids, *ids_RT[row][:count]), (*log_probs, *log_probs_RT[row][:count])
        sentence = live.sentences[place]
        sentence.pool.add(Hypothesis(ids, scores[row], log_probs, bool(says_end_R[place])), 0)
        answers[sentence.number] = sentence.pool.outputs()
    return answers
