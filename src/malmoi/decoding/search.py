"""Search: from requests to outputs, many sentences at once.

In: a scorer, requests, settings. Out: for each request its outputs, best first. Sentences of like length go together up
to a budget of tokens; a sentence leaves as soon as no row of it can still win, and waiting ones come in when half of
the budget is free. What a sentence gets depends on its own request and its place in the list alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.batch import SearchBatch
from malmoi.decoding.constraints import spellings
from malmoi.decoding.interface import Hypothesis, Ids, Request, Scorer
from malmoi.errors import ConfigError, DataError


def search(
    scorer: Scorer,
    requests: Sequence[Request],
    config: DecodingConfig,
    forbidden_ids: Sequence[int] = (),
    *,
    keep_attention: bool = False,
    places: Sequence[int] | None = None,
    workers: int = 1,
) -> list[list[Hypothesis]]:
    """The outputs of each request, best first, in the order of the requests.

    Beam search gives up to `n_best` distinct outputs (fewer where there are not so many), finished ones first; sampling
    gives `n_best` samples as they were drawn, equal ones too. `places` are numbers of the requests, all different, by
    which samples are drawn and faults are told (0 is sentence 1); left out, they are counted from 0. `workers` threads
    share out the requests, each with a batch of its own, for a scorer that computes with one thread and allows several.
    Raises `ConfigError` for settings that do not fit together or the model, `DataError` for a request that cannot be.
    """
    check_settings(config, requests)
    chosen = range(len(requests)) if places is None else places
    for place, request in zip(chosen, requests, strict=True):
        check_request(request, place, scorer, config, forbidden_ids)
    queue = Queue(requests, chosen, min(workers, len(requests)))
    batches = [SearchBatch(scorer, config, forbidden_ids, keep_attention=keep_attention) for _ in range(queue.workers)]
    if len(batches) == 1:
        answers = queue.work(batches[0])
    else:
        answers: dict[int, list[Hypothesis]] = {}
        with ThreadPoolExecutor(len(batches)) as threads:
            try:
                for part in [threads.submit(queue.work, batch) for batch in batches]:
                    answers.update(part.result())
            finally:
                # After a fault, or when the user has had enough, nobody goes on.
                queue.is_closed.set()
    return [answers[place] for place in chosen]


def search_config(config: DecodingConfig) -> DecodingConfig:
    """The settings of a search whose outputs become texts: more outputs where equal texts will be merged."""
    if config.merge_equal_texts and config.method == "beam":
        return config.model_copy(update={"n_best": config.beam_size})
    return config


class Queue:
    """Requests that wait, the longest first, for one worker or several."""

    def __init__(self, requests: Sequence[Request], places: Sequence[int], workers: int) -> None:
        numbers = sorted(range(len(requests)), key=lambda number: (-len(requests[number].source), number))
        self.waiting = [(places[number], requests[number]) for number in numbers]
        self.workers = max(workers, 1)
        # A worker that took all that its budget allows could leave nothing to the others.
        self.most = -(-len(requests) // self.workers)
        self.lock = Lock()
        self.is_closed = Event()

    def take(self, batch: SearchBatch) -> list[tuple[int, Request]]:
        """What a batch has room for, taken from the next ones in turn, so that all workers get some of each length."""
        with self.lock:
            room = batch.num_fitting(len(request.source) for _, request in self.waiting)
            room = max(min(room, self.most - batch.num_sentences), 0)
            taken = slice(0, room * self.workers, self.workers)
            requests = self.waiting[taken]
            del self.waiting[taken]
        return requests

    def work(self, batch: SearchBatch) -> dict[int, list[Hypothesis]]:
        """Search until nothing waits; after a fault the others stop with their present step."""
        answers: dict[int, list[Hypothesis]] = {}
        try:
            while not self.is_closed.is_set():
                if self.waiting:
                    batch.add(self.take(batch))
                if not batch.num_sentences:
                    break
                answers.update(batch.step())
        except BaseException:
            self.is_closed.set()
            raise
        return answers


def check_settings(config: DecodingConfig, requests: Sequence[Request]) -> None:
    """Refuse settings that requests with constraints cannot have."""
    if not any(request.constraints for request in requests):
        return
    if config.method == "sample":
        raise ConfigError('constraints need beam search: a sample cannot be made to hold them; set method = "beam"')
    if config.diverse_groups > 1:
        raise ConfigError("constraints and diverse groups share out the same beam: set diverse_groups = 1")


def check_request(
    request: Request, index: int, scorer: Scorer, config: DecodingConfig, forbidden_ids: Sequence[int]
) -> None:
    """Refuse a prefix or a phrase that can never come out."""
    check_ids(request.prefix, f"sentence {index + 1}: forced prefix", scorer, forbidden_ids)
    if len(request.prefix) > config.max_length:
        raise DataError(
            f"sentence {index + 1}: forced prefix of {len(request.prefix)} tokens, above max_length {config.max_length}"
        )
    if scorer.max_steps is not None and len(request.prefix) > scorer.max_steps:
        raise DataError(
            f"sentence {index + 1}: forced prefix of {len(request.prefix)} tokens, but the model can make "
            f"{scorer.max_steps} at most"
        )
    for phrase in request.constraints:
        for spelling in spellings(phrase):
            if not spelling:
                raise DataError(f"sentence {index + 1}: a phrase that must occur is empty")
            check_ids(spelling, f"sentence {index + 1}: phrase that must occur", scorer, forbidden_ids)


def check_ids(ids: Ids, what: str, scorer: Scorer, forbidden_ids: Sequence[int]) -> None:
    """Refuse ids that are not in the vocabulary, forbidden, or the end symbol."""
    for token in ids:
        if not 0 <= token < scorer.vocabulary_size:
            raise DataError(f"{what}: {token} is not an id of the vocabulary")
        if token == scorer.end_id:
            raise DataError(f"{what}: holds the end symbol")
        if token in forbidden_ids:
            raise DataError(f"{what}: holds id {token}, which may not come out; the model does not know this text")
