"""Text in, text out: what the command line, a service, evaluation and a notebook call.

In: raw text, one sentence each, with wishes (options, forced prefixes, phrases that must appear). Out: a `Translation`
for every text, in order. Text is normalised, cut into ids, searched for, and put together again; nothing here knows
how a network works or how a search is made.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from malmoi.config.decoding import DecodingConfig
from malmoi.config.training import Device
from malmoi.decoding.forced import force
from malmoi.decoding.interface import Hypothesis, Request, Scorer
from malmoi.decoding.search import search, search_config
from malmoi.device import count_threads
from malmoi.engine.choose import StoredScorers, allows_threads
from malmoi.errors import CheckpointError, ConfigError
from malmoi.log import get_logger
from malmoi.settings import validate
from malmoi.stored import Stored, read_stored
from malmoi.text.ids import END_ID, UNKNOWN_ID
from malmoi.text.lines import is_blank, normalize, one_line
from malmoi.text.tokenizer import Tokenizers
from malmoi.wishes import Window, encode_phrase, encode_prefix, read_windows

WINDOW_LINES = 4000
"""Lines of a file that are read, sorted by length and translated together."""

SHOWN_SYMBOLS = 10
"""So many left-out symbols of a line are named."""

Options = Mapping[str, Any] | DecodingConfig


@dataclass(frozen=True)
class Translation:
    """What became of one text.

    `score` is that of `decoding/scoring.py`, None where the model was not asked. `tokens` and `token_scores` (natural
    log-probabilities) go together and end with `</s>` if the output is `finished`. `alternatives` are the rest of the
    n-best list, best first. `notes` say what the reader should know; with an `error` the text is empty.
    """

    text: str
    score: float | None = None
    tokens: tuple[str, ...] = ()
    token_scores: tuple[float, ...] = ()
    finished: bool = True
    alternatives: tuple["Translation", ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class PairScore:
    """How likely a model finds a target, given its source.

    `log_probability` is the sum of `token_scores` (natural logarithms, `</s>` included), `score` the same by the
    length formula of the model's decoding settings. With an `error` all of it is 0 or empty.
    """

    log_probability: float
    score: float
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    notes: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Prepared:
    """One text on its way: either a request to search for, or what is known without the model."""

    text: str = ""
    request: Request | None = None
    maybe_known: Translation | None = None
    notes: tuple[str, ...] = ()


class Translator:
    """One model, or an ensemble, with its tokenisers and decoding settings. Calls never change it."""

    def __init__(
        self,
        scorer: Scorer | StoredScorers,
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        max_source_tokens: int | None = None,
        *,
        tell: bool = True,
        threads: int = 1,
    ) -> None:
        """`max_source_tokens`: the longest source that training saw, `</s>` included; None where nobody knows.

        `tell`: notes on sources go to the log as well. `threads` search at once where the scorer is the engine's.
        One scorer stands for itself alone, in fp32; those of stored models give what a call's settings ask for.
        """
        self.maybe_stored = scorer if isinstance(scorer, StoredScorers) else None
        self.maybe_scorer = None if isinstance(scorer, StoredScorers) else scorer
        self.max_steps = scorer.max_steps
        self.threads = threads
        self.tokenizers = tokenizers
        # What a model stores for the engine is no wish of a call that has one scorer alone.
        self.decoding = decoding if self.maybe_stored else decoding.model_copy(update={"precision": "fp32"})
        self.max_source_tokens = max_source_tokens
        self.tell = tell

    @classmethod
    def load(
        cls, model: str | Path | Sequence[str | Path], *, device: Device = "auto", threads: int = 0
    ) -> "Translator":
        """Read a model folder or a run folder; several make an ensemble, whose first model gives the settings.

        `threads` of the processor, 0 takes all. Errors: `CheckpointError` for what cannot be read and for models with
        different vocabularies, `ConfigError` for a device that is not there.
        """
        num_threads = count_threads(threads)
        paths = [Path(model)] if isinstance(model, str | Path) else [Path(path) for path in model]
        if not paths:
            raise ConfigError("no model was given")
        models = [read_stored(path) for path in paths]
        check_same_vocabularies(paths, models)
        lengths = [length for one in models if (length := one.card.get("max_source_tokens")) is not None]
        return cls(
            StoredScorers(models, device, threads),
            models[0].tokenizers,
            models[0].config.decoding,
            min(lengths, default=None),
            threads=num_threads,
        )

    @property
    def scorer(self) -> Scorer:
        """The networks themselves, loaded when they are first asked for, or the one scorer that there is."""
        if self.maybe_scorer is None:
            assert self.maybe_stored is not None
            self.maybe_scorer = self.maybe_stored.networks
        return self.maybe_scorer

    @scorer.setter
    def scorer(self, scorer: Scorer) -> None:
        self.maybe_scorer = scorer

    def scorer_for(self, config: DecodingConfig) -> Scorer:
        """The scorer of a call's precision; `ConfigError` where there is none."""
        if self.maybe_stored is not None:
            return self.maybe_stored.fastest(config.precision)
        if config.precision != "fp32":
            raise ConfigError(f"precision {config.precision}: this translator was made for one scorer, in fp32")
        return self.scorer

    def resolve(self, options: Options | None) -> DecodingConfig:
        """The settings of a call: the model's own, with `options` above them; `ConfigError` names every fault."""
        if isinstance(options, DecodingConfig):
            config = options
        else:
            settings = {**self.decoding.model_dump(), **(options or {})}
            config = validate(DecodingConfig, settings, "the decoding options")
        kinds = {self.tokenizers.source.kind, self.tokenizers.target.kind}
        if config.replace_unknown and kinds != {"words"}:
            raise ConfigError(
                f"replace_unknown needs a model whose tokenisers are `words`, not {' and '.join(sorted(kinds))}: "
                "others have no unknown words to replace"
            )
        return config

    def translate(
        self,
        texts: Sequence[str],
        *,
        options: Options | None = None,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        first_line: int = 1,
    ) -> list[Translation]:
        """A translation for every text, in order; none depends on the others.

        `prefixes[i]` is how output i must begin, `constraints[i]` are phrases that it must hold. Line breaks inside a
        text are spaces. Messages count texts as lines, from `first_line`. Errors: `ConfigError` for options,
        `DataError` for prefixes and phrases that are too few or that the model cannot spell. A text that the model
        cannot take has an `error` of its own and leaves the others alone.
        """
        window = Window(texts, prefixes, constraints, first_line)
        return self.translate_window(window, self.resolve(options))

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        options: Options | None = None,
        prefixes: Iterable[str] | None = None,
        constraints: Iterable[Sequence[str]] | None = None,
        window: int = WINDOW_LINES,
    ) -> Iterator[Translation]:
        """Like `translate` for a stream: `window` lines are read and translated together; with 1, each line is
        answered before the next one is asked for. Wishes that are too few or too many are a `DataError` at the end,
        behind the translations of all texts that have theirs."""
        config = self.resolve(options)
        for block in read_windows(lines, prefixes, constraints, window):
            yield from self.translate_window(block, config)

    def translate_window(self, window: Window, config: DecodingConfig) -> list[Translation]:
        """Translations of one window, in order; samples depend on the number of their line."""
        window.check()
        plain = [one_line(normalize(text)) for text in window.texts]
        rows = zip(plain, self.tokenizers.encode_and_tell(plain), strict=True)
        lines = [self.prepare(text, *row, *window.wishes(index)) for index, (text, row) in enumerate(rows)]
        requests = {
            place: line.request
            for place, line in enumerate(lines, start=window.first_line - 1)
            if line.request is not None
        }
        answers = iter(self.search(requests, config))
        return [
            line.maybe_known if line.maybe_known is not None else self.build(next(answers), line, config)
            for line in lines
        ]

    def prepare(
        self,
        text: str,
        ids: Sequence[int],
        left_out: Sequence[str],
        prefix: str,
        phrases: Sequence[str],
        number: int,
    ) -> Prepared:
        """A text, its ids and what these leave out, to a request, or to an answer where the model cannot be asked."""
        if is_blank(text):
            return Prepared(maybe_known=Translation(""))
        if not ids:
            note = f"line {number}: no character of this line was seen in training, so there is nothing to translate"
            if self.tell:
                get_logger().warning(note)
            return Prepared(maybe_known=Translation("", notes=(note,)))
        target = self.tokenizers.target
        start = encode_prefix(target, prefix, number)
        error = self.maybe_too_long(len(ids) + 1, f"line {number}")
        error = error or self.maybe_too_long(len(start) + 1, f"line {number}, forced prefix")
        if error is not None:
            if self.tell:
                get_logger().error(error)
            return Prepared(maybe_known=Translation("", finished=False, notes=(error,), error=error))
        notes = [f"line {number}: {describe_left_out(left_out)}"] if left_out else []
        if self.max_source_tokens is not None and len(ids) + 1 > self.max_source_tokens:
            notes.append(
                f"line {number}: {len(ids) + 1} tokens are more than the {self.max_source_tokens} of the longest "
                "source in training; translated whole, but expect mistakes"
            )
        for note in notes if self.tell else ():
            get_logger().warning(note)
        spelt = tuple(encode_phrase(target, phrase, number) for phrase in phrases)
        return Prepared(text=text, request=Request((*ids, END_ID), start, spelt), notes=tuple(notes))

    def maybe_too_long(self, num_tokens: int, place: str) -> str | None:
        """What is wrong with a sentence of so many tokens, `</s>` included, if the model's positions end before.

        A model with a table of positions has one of the same size for both sides.
        """
        limit = self.max_steps
        if limit is None or num_tokens <= limit:
            return None
        return (
            f"{place}: {num_tokens} tokens (end symbol included), but this model has learned {limit} positions: "
            "shorten or split the line"
        )

    def words_behind(self, text: str) -> list[str]:
        """The word behind each source id of a `words` model; words that `encode_sources` leaves out are not there."""
        words = text.split()
        return [word for word, ids in zip(words, self.tokenizers.encode_sources(words), strict=True) if ids]

    def forbidden_ids(self, config: DecodingConfig) -> list[int]:
        """Ids that no output may hold; an unknown word may where another will take its place."""
        found = set(self.tokenizers.target.forbidden_ids())
        return sorted(found - {UNKNOWN_ID} if config.replace_unknown else found)

    def search(self, requests: Mapping[int, Request], config: DecodingConfig) -> list[list[Hypothesis]]:
        """n-best lists of ids for requests by their place. More are asked for where equal texts will be merged."""
        if not requests:
            return []
        config = search_config(config)
        scorer = self.scorer_for(config)
        return search(
            scorer,
            list(requests.values()),
            config,
            self.forbidden_ids(config),
            keep_attention=config.replace_unknown,
            places=list(requests),
            workers=self.threads if allows_threads(scorer) else 1,
        )

    def build(self, hypotheses: Sequence[Hypothesis], line: Prepared, config: DecodingConfig) -> Translation:
        """Ids to text, and the n-best list to one translation with its alternatives."""
        translations = [self.build_one(hypothesis, line, config) for hypothesis in hypotheses]
        if config.merge_equal_texts:
            best = {one.text: one for one in reversed(translations)}
            translations = [one for one in translations if one is best[one.text]]
        first, *rest = translations[: config.n_best]
        maybe_note = maybe_too_few(1 + len(rest), config.n_best)
        notes = first.notes if maybe_note is None else (*first.notes, maybe_note)
        return replace(first, alternatives=tuple(rest), notes=notes)

    def build_one(self, hypothesis: Hypothesis, line: Prepared, config: DecodingConfig) -> Translation:
        """One hypothesis as text, with a note where it is not what was asked for."""
        target = self.tokenizers.target
        tokens = tuple(target.pieces(hypothesis.ids))
        notes = list(line.notes)
        if not hypothesis.finished:
            notes.append(f"the translation was cut after {len(hypothesis.ids)} tokens, the most that were allowed")
        if hypothesis.num_missing:
            notes.append(f"{hypothesis.num_missing} of the phrases that the translation must hold are missing")
        if config.replace_unknown:
            text = replace_unknown(tokens, hypothesis, self.words_behind(line.text))
        else:
            text = target.decode(hypothesis.ids)
        return Translation(
            text=one_line(text),
            score=hypothesis.score,
            tokens=tokens,
            token_scores=hypothesis.log_probs,
            finished=hypothesis.finished,
            notes=tuple(notes),
        )

    def score(self, pairs: Sequence[tuple[str, str]], *, options: Options | None = None) -> list[PairScore]:
        """How likely each target is, given its source, in order; a pair above the model's positions has an `error`."""
        config = self.resolve(options)
        source_ids = self.tokenizers.encode_sources([source for source, _ in pairs])
        target_ids = self.tokenizers.encode_targets([target for _, target in pairs])
        errors = [
            self.maybe_too_long(max(len(source), len(target)) + 1, f"pair {number}")
            for number, (source, target) in enumerate(zip(source_ids, target_ids, strict=True), start=1)
        ]
        sources = [(*ids, END_ID) for ids, error in zip(source_ids, errors, strict=True) if error is None]
        targets = [(*ids, END_ID) for ids, error in zip(target_ids, errors, strict=True) if error is None]
        forced = iter(force(self.scorer_for(config), sources, targets, config) if sources else [])
        return [
            self.build_pair_score(next(forced), left_out)
            if error is None
            else PairScore(0.0, 0.0, (), (), (error,), error)
            for error, left_out in zip(errors, self.tokenizers.left_out([source for source, _ in pairs]), strict=True)
        ]

    def build_pair_score(self, hypothesis: Hypothesis, left_out: Sequence[str]) -> PairScore:
        """A forced hypothesis as its score."""
        return PairScore(
            log_probability=float(sum(hypothesis.log_probs)),
            score=hypothesis.score,
            tokens=tuple(self.tokenizers.target.pieces(hypothesis.ids)),
            token_scores=hypothesis.log_probs,
            notes=(describe_left_out(left_out),) if left_out else (),
        )


def replace_unknown(tokens: Sequence[str], hypothesis: Hypothesis, words: Sequence[str]) -> str:
    """Words joined by a space; an unknown one becomes the source word that the model looked at most when it wrote it
    (Luong et al., 2015, "Addressing the rare word problem"). Raises `ConfigError` for a model without attention."""
    if hypothesis.attention is None:
        raise ConfigError("replace_unknown needs a model with attention, and this one has none")
    result: list[str] = []
    for position, (index, token) in enumerate(zip(hypothesis.ids, tokens, strict=True)):
        if index == UNKNOWN_ID:
            # The last column is `</s>`, behind which there is no word.
            result.append(words[int(hypothesis.attention[position, : len(words)].argmax())])
        elif index != END_ID:
            result.append(token)
    return " ".join(result)


def maybe_too_few(num_found: int, num_wanted: int) -> str | None:
    """What to say of an n-best list that is shorter than it was to be."""
    return (
        None if num_found >= num_wanted else f"there are {num_found} translations, fewer than the {num_wanted} wanted"
    )


def describe_left_out(symbols: Sequence[str]) -> str:
    """What to say of symbols of a source that no source of training had; what cannot be seen is shown by its number."""
    shown = [symbol if symbol.isprintable() else f"U+{ord(symbol[0]):04X}" for symbol in symbols[:SHOWN_SYMBOLS]]
    more = f" and {len(symbols) - len(shown)} more" if len(symbols) > len(shown) else ""
    return f"never seen in training and left out: {' '.join(shown)}{more}"


def check_same_vocabularies(paths: Sequence[Path], models: Sequence[Stored]) -> None:
    """`CheckpointError` unless all models of an ensemble mean the same by every id."""
    first = models[0].tokenizers
    for path, model in zip(paths[1:], models[1:], strict=True):
        maybe_side = first.maybe_different(model.tokenizers)
        if maybe_side is not None:
            raise CheckpointError(
                f"{path}: its {maybe_side} vocabulary is not that of {paths[0]}; an ensemble needs models that were "
                "trained with one tokeniser"
            )
