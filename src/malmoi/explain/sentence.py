"""One text explained: searched for, replayed, taken apart.

In: a model and a text. Out: an `Explanation`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from malmoi.checkpoint import Model
from malmoi.config.decoding import DecodingConfig
from malmoi.decoding.interface import Hypothesis, Ids, Request
from malmoi.decoding.scoring import Scoring
from malmoi.errors import CheckpointError, ConfigError
from malmoi.explain.aggregate import mean_of_heads, rollout, rollout_decoder
from malmoi.explain.influence import drops, without
from malmoi.explain.positions import compare_order, encoding, reorder
from malmoi.explain.replay import Floats, Replay, evaluating, replay
from malmoi.explain.result import Explanation, Output
from malmoi.explain.shapes import model_boxes
from malmoi.explain.subject import Check, Subject, describe, open_subject
from malmoi.explain.words import Side, Span, make_side
from malmoi.translate import Options, Prepared, Translation, Translator

NUM_RUNNERS_UP = 5

MOST_REPLAY_CHANGE = 1e-4
"""What a replay may change in a score; sums are made in another order than in the search."""

MOST_SEARCHES = 50
"""A sentence of more words is not searched for once more without each of them: that would take minutes."""


def explain_sentence(
    model: str | Path | Model | Translator,
    text: str,
    *,
    n_best: int = 1,
    against: str | None = None,
    options: Options | None = None,
    page: Callable[[Explanation], str] | None = None,
    check: Check = lambda: None,
) -> Explanation:
    """Translate `text` as the model's settings say, `options` above them, and replay the `n_best` outputs.

    `against`: a second sentence for the experiment with the order of words, by default the words the other way round.
    `page` makes what a notebook shows. `check` is called before each piece of work, and may raise to end it: none is
    longer than a step of a search (in int8 a whole one) or a batch through the network. `DataError` for a text that the
    model cannot be asked about, `ConfigError` for options, `CheckpointError` where a replay differs from the search,
    which would make every picture worthless.
    """
    subject = open_subject(model, check)
    prepared = subject.prepare(text)
    assert prepared.request is not None
    wished = decoding_config(subject, options, n_best)
    searcher = subject.searcher(wished.precision)
    # What searches has one scorer, whatever that computes in.
    config = wished.model_copy(update={"precision": "fp32"})
    with evaluating(subject.network):
        found = search_outputs(searcher, prepared, config)
        source = make_side(subject.tokenizers.source, prepared.request.source)
        check()
        targets = [hypothesis.ids for _, hypothesis in found]
        replays = replay(subject.network, [source.ids] * len(found), targets, NUM_RUNNERS_UP)
        attention = {name: values for name, values in replays[0].attention.items() if name.startswith("encoder")}
        encoder_LSS = mean_of_heads(attention, "encoder", "self")
        flow = {} if encoder_LSS is None else {"encoder.self": rollout(encoder_LSS)}
        outputs = [
            make_output(subject, source, *one, flow.get("encoder.self"), wished)
            for one in zip(found, replays, strict=True)
        ]
        longest = max(len(source.ids), *(len(target) for target in targets))
        check()
        other, other_text = reorder(source) if against is None else read_other(subject, against)
        return Explanation(
            text=prepared.text,
            description=describe(subject),
            precision=wished.precision,
            num_parameters=sum(parameter.numel() for parameter in subject.network.parameters()),
            source=source,
            outputs=tuple(outputs),
            attention=attention,
            rollout=flow,
            units=source.units,
            left_out_texts=search_without(searcher, source.ids, source.units, config),
            encoding=encoding(subject.network, longest),
            order=compare_order(subject.network, source, prepared.text, other, other_text),
            boxes=model_boxes(
                subject.config,
                subject.network.source_vocabulary_size,
                subject.network.target_vocabulary_size,
                len(source.ids),
                len(targets[0]),
            ),
            notes=tuple(dict.fromkeys(note for one, _ in found for note in one.notes)),
            page=page,
        )


def decoding_config(subject: Subject, options: Options | None, n_best: int) -> DecodingConfig:
    """The user's search, with a beam as wide as the list of outputs unless a width was asked for."""
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, but one output is the least")
    translator = subject.translator
    if isinstance(options, DecodingConfig):
        return translator.resolve({**options.model_dump(), "n_best": n_best})
    width = max(n_best, translator.decoding.beam_size)
    own: Mapping[str, Any] = {"beam_size": width, "precision": subject.precision}
    return translator.resolve({**own, **(options or {}), "n_best": n_best})


def search_outputs(
    translator: Translator, prepared: Prepared, config: DecodingConfig
) -> list[tuple[Translation, Hypothesis]]:
    """The list of outputs that the user would see, each with its ids."""
    assert prepared.request is not None
    hypotheses = translator.search({0: prepared.request}, config)[0]
    best = translator.build(hypotheses, prepared, config)
    seen = [best, *best.alternatives]
    # Equal texts may have been merged, so that what is shown is not simply the front of what was found.
    known = {(translator.build_one(one, prepared, config).tokens, one.score): one for one in reversed(hypotheses)}
    return [(one, known[one.tokens, one.score]) for one in seen if one.score is not None and one.tokens]


def make_output(
    subject: Subject,
    source: Side,
    found: tuple[Translation, Hypothesis],
    replayed: Replay,
    encoder_SS: Floats | None,
    config: DecodingConfig,
) -> Output:
    """One output with everything that was captured of it."""
    translation, hypothesis = found
    target = subject.tokenizers.target
    attention = {name: values for name, values in replayed.attention.items() if name.startswith("decoder")}
    flow: dict[str, Floats] = {}
    self_LTT = mean_of_heads(attention, "decoder", "self")
    cross_LTS = mean_of_heads(attention, "decoder", "cross")
    if self_LTT is not None and cross_LTS is not None and encoder_SS is not None:
        _, from_source_TS = rollout_decoder(self_LTT, cross_LTS, encoder_SS)
        flow = {"decoder.self": rollout(self_LTT), "decoder.cross": from_source_TS}
    return Output(
        text=translation.text,
        score=hypothesis.score,
        score_difference=compare_scores(hypothesis, replayed, cross_LTS, config),
        finished=hypothesis.finished,
        target=make_side(target, hypothesis.ids),
        log_probs=replayed.log_probs,
        runners_up=tuple(
            tuple((target.pieces([index])[0], probability) for index, probability in others)
            for others in replayed.runners_up
        ),
        attention=attention,
        rollout=flow,
        drops=drops(subject.scorer, source.ids, hypothesis.ids, replayed.log_probs, source.units),
    )


def compare_scores(hypothesis: Hypothesis, replayed: Replay, cross_LTS: Floats | None, config: DecodingConfig) -> float:
    """The score of the replay minus that of the search; `CheckpointError` where they are not the same, but for a search
    in int8, whose difference is what it costs."""
    scoring, coverage = Scoring.from_config(config), 0.0
    if scoring.beta > 0 and cross_LTS is not None:
        looked_1S = cross_LTS[-1].sum(0, keepdims=True)
        coverage = float(scoring.coverage(looked_1S, np.array([looked_1S.shape[1]]))[0])
    total = np.array([sum(replayed.log_probs.tolist(), 0.0)])
    score = float(scoring.score(total, np.array([len(hypothesis.ids)]), coverage)[0])
    tokens = float(np.abs(replayed.log_probs - np.array(hypothesis.log_probs)).max())
    if config.precision == "fp32" and not (abs(score - hypothesis.score) <= MOST_REPLAY_CHANGE >= tokens):
        raise CheckpointError(
            f"the replay of {len(hypothesis.ids)} tokens scores {score:.6f}, the search {hypothesis.score:.6f}: what "
            "was captured is not what was computed. Where rounding alone grows so far in a model, load it with "
            "load_model(path, dtype=torch.float64)"
        )
    return score - hypothesis.score


def read_other(subject: Subject, text: str) -> tuple[Ids, str]:
    """Ids and text of the sentence to compare with."""
    prepared = subject.prepare(text)
    assert prepared.request is not None
    return prepared.request.source, prepared.text


def search_without(
    translator: Translator, source: Ids, units: Sequence[Span], config: DecodingConfig
) -> tuple[str, ...]:
    """What the same search says of the sentence without each of its words."""
    if len(units) > MOST_SEARCHES:
        return ()
    requests = {number: Request(without(source, unit)) for number, unit in enumerate(units)}
    found = translator.search(requests, config.model_copy(update={"n_best": 1}))
    return tuple(translator.build_one(one[0], Prepared(), config).text for one in found)
