"""The page of a comparison: one HTML file that loads nothing from anywhere.

In: `Findings`; no model. Out: HTML text. Every number is looked up in the JSON of the findings by its path, which
stands beside it in the page (`data-of`), so that the two cannot differ. Whatever came from a user is text alone.
All words are there in both languages, and a reader's choice shows one of them.
"""

import json
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any, Literal, cast

from malmoi.report.charts import key
from malmoi.report.comparison_charts import attention_pictures, learning_charts, length_chart
from malmoi.report.findings import Findings
from malmoi.report.markup import mark, table

Language = Literal["en", "ko"]
LANGUAGES: tuple[Language, ...] = ("en", "ko")
RULE_COLUMNS = {"tokens": "target-tokens", "time": "time", "parameters": "parameters", "given": ""}
FEW_SEGMENTS = 30
"""Scores of fewer segments say little."""


def comparison_page(findings: Findings, language: Language = "en") -> str:
    """The page; its reader can change the language that it opens in."""
    page = Page(findings)
    parts = {
        "language": language,
        "style": read_part("style.css"),
        "script": read_part("main.js"),
        "body": "\n".join(page.sections()),
    }
    # In one pass, so that a text that spells a placeholder stays a text.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_part("page.html"))


def read_part(name: str) -> str:
    """A file of the page."""
    return (files("malmoi.report") / "pages" / "compare" / name).read_text(encoding="utf-8")


def read_texts() -> dict[str, dict[Language, str]]:
    """All words of the page, by key and language."""
    table: dict[str, list[str]] = json.loads(read_part("texts.json"))
    return {name: {"en": english, "ko": korean} for name, (english, korean) in table.items()}


class Page:
    """The parts of the page, made one after the other from the same findings."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.found = findings.to_json()
        self.texts = read_texts()
        self.labels = [system.label for system in findings.systems]
        self.places = {system.name: place for place, system in enumerate(findings.systems)}

    def say(self, name: str, /, **values: str) -> str:
        """Words in both languages; values are markup."""

        def fill(words: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], escape(words, quote=False))

        both = self.texts[name]
        return "".join(f'<span lang="{language}">{fill(both[language])}</span>' for language in LANGUAGES)

    def number(self, path: str, digits: int = 1, scale: float = 1.0, *, signed: bool = False) -> str:
        """The number at a path of the JSON, divided by `scale`; a dash where nothing was measured."""
        value = self.at(path)
        if value is None:
            return "\N{EN DASH}"
        text = f"{value / scale:{'+' if signed else ''},.{digits}f}".replace("-", "\N{MINUS SIGN}")
        return f'<data value="{value!r}" data-of="{escape(path)}" data-scale="{scale:g}">{text}</data>'

    def at(self, path: str) -> Any:
        """What stands at a path of the JSON."""
        value: Any = self.found
        for step in path.split("/"):
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        return cast(Any, value)

    def named(self, place: int) -> str:
        """A system's name beside what it looks like in charts."""
        return f'<span class="system">{key(place)} {escape(self.labels[place])}</span>'

    def sections(self) -> Iterable[str]:
        """The page from top to bottom."""
        yield self.head()
        yield self.section("quality", self.quality())
        if self.findings.quality.lengths.rows:
            yield self.section("lengths", self.lengths())
        if any(run.points for system in self.findings.systems for run in system.runs):
            yield self.section("learning", self.learning())
        yield self.section("cost", self.costs())
        yield self.section("examples", self.examples())
        if self.findings.attention:
            yield self.section("attention", attention_pictures(self.findings, self.say, self.named))
        yield self.section("encoders", self.encoders())
        yield self.section("equal", self.equal())
        yield self.section("next", self.next_commands())

    def section(self, name: str, body: str) -> str:
        return f'<section id="{name}"><h2>{self.say(name)}</h2>\n{body}</section>'

    def head(self) -> str:
        """What this is, and what came out, in sentences."""
        names = escape(", ".join(self.labels))
        rows = "".join(f"<li>{line}</li>" for line in self.verdicts())
        data = self.findings.data
        facts = self.say(
            "facts",
            pairs=self.number("data/num_pairs", 0),
            test=self.number("data/num_test", 0),
            files=escape(", ".join(data.description)),
        )
        return (
            f"<p>{self.say('intro-given' if self.findings.rule == 'given' else 'intro', names=names)} {self.rule()} "
            f'<a href="#equal">{self.say("see-equal")}</a></p>\n<p class="soft">{facts}</p>\n'
            f'<ul class="verdicts">{rows}</ul>\n<p class="soft">{self.say("seeds-" + self.many())}</p>'
        )

    def rule(self) -> str:
        """What was held equal; batches may differ between systems of the user's own."""
        sizes = {system.settings.get("training.batch_tokens") for system in self.findings.systems}
        is_alone = self.findings.rule == "tokens" and len(sizes) > 1
        return self.say("rule-" + self.findings.rule + ("-alone" if is_alone else ""))

    def many(self) -> str:
        return "many" if max(len(system.runs) for system in self.findings.systems) > 1 else "one"

    def verdicts(self) -> Iterable[str]:
        """Who is best by the first metric, and how far ahead of each other one."""
        quality = self.findings.quality
        first = next(iter(quality.scores.values()))[0]
        sign = 1 if first.higher_is_better else -1
        best = max(quality.scores, key=lambda name: sign * quality.scores[name][0].mean)
        value = self.number(f"quality/scores/{best}/0/mean", 2)
        direction = self.say("higher" if first.higher_is_better else "lower")
        yield self.say(
            "best", name=self.named(self.places[best]), label=escape(first.label), value=value, direction=direction
        )
        for place, pairing in enumerate(quality.pairings):
            if pairing.difference.metric != first.metric or best not in (pairing.system, pairing.baseline):
                continue
            other = pairing.baseline if pairing.system == best else pairing.system
            # Ahead is said as a positive number, whichever of the two stands first in the pairing.
            sense = sign if pairing.system == best else -sign
            # The mean of seeds may be the better one where all outputs together are not.
            is_level = sense * pairing.difference.difference <= 0
            yield self.say(
                "against-level" if is_level else "against-clear" if pairing.is_clear else "against-luck",
                name=self.named(self.places[other]),
                difference=self.difference(place, sense),
                p=self.number(f"quality/pairings/{place}/difference/p_value", 4),
            )

    def difference(self, place: int, sense: int = 1) -> str:
        """A difference with its interval; `sense` -1 turns it round."""
        path = f"quality/pairings/{place}/difference"
        low, high = (self.number(f"{path}/interval/{end}", 2, sense, signed=True) for end in (0, 1)[::sense])
        value = self.number(f"{path}/difference", 2, sense, signed=True)
        return f'<span class="nowrap">{value} [{low}, {high}]</span>'

    def quality(self) -> str:
        """Scores with their spread, then each system against each other."""
        quality = self.findings.quality
        scores = next(iter(quality.scores.values()))
        head = ["", *(f"{escape(one.label)} {self.arrow(higher=one.higher_is_better)}" for one in scores)]
        rows: list[list[str]] = []
        for place, name in enumerate(quality.scores):
            cells = [self.score_cell(f"quality/scores/{name}/{number}") for number in range(len(scores))]
            rows.append([self.named(place), *cells])
        signatures = "".join(f"<li>{escape(one.label)}: <code>{escape(one.signature)}</code></li>" for one in scores)
        return (
            f"<p>{self.say('quality-text', count=self.number('data/num_test', 0))}</p>"
            + table(head, rows)
            + f'<ul class="soft signatures">{signatures}</ul><h3>{self.say("pairings")}</h3>'
            + f"<p>{self.say('pairings-text', samples=self.number('quality/num_samples', 0))}</p>"
            + self.pairings()
        )

    def arrow(self, *, higher: bool) -> str:
        return f'<span class="soft">{self.say("higher" if higher else "lower")}</span>'

    def score_cell(self, path: str) -> str:
        """A mean with its spread over seeds, if there are several, and the interval over segments."""
        low, high = (self.number(f"{path}/interval/{end}", 2) for end in (0, 1))
        spread = f" ± {self.number(f'{path}/deviation', 2)}" if self.at(f"{path}/deviation") is not None else ""
        value = f"<b>{self.number(f'{path}/mean', 2)}</b>{spread}"
        return f'{value} <span class="soft nowrap">[{low}, {high}]</span>'

    def pairings(self) -> str:
        """All differences."""
        rows: list[list[str]] = []
        for place, pairing in enumerate(self.findings.quality.pairings):
            rows.append(
                [
                    f"{self.named(self.places[pairing.system])} {self.say('minus')} "
                    f"{self.named(self.places[pairing.baseline])}",
                    escape(pairing.difference.label),
                    self.difference(place),
                    self.number(f"quality/pairings/{place}/difference/p_value", 4),
                    f"<b>{self.say('clear')}</b>" if pairing.is_clear else self.say("luck"),
                ]
            )
        return table(["", self.say("metric"), self.say("difference"), "p", ""], rows)

    def lengths(self) -> str:
        """The chart, and its numbers as a table."""
        lengths = self.findings.quality.lengths
        head = [
            self.say(f"length-{lengths.unit}"),
            self.say("segments"),
            *(self.named(i) for i in range(len(self.labels))),
        ]
        rows: list[list[str]] = []
        for place, row in enumerate(lengths.rows):
            path = f"quality/lengths/rows/{place}"
            values = [self.number(f"{path}/values/{name}", 2) for name in self.places]
            few = f' <span class="soft">{self.say("few")}</span>' if row.num_segments < FEW_SEGMENTS else ""
            rows.append([escape(row.label), self.number(f"{path}/num_segments", 0) + few, *values])
        return (
            f"<p>{self.say('lengths-text')}</p>" + length_chart(self.findings, self.say, self.named) + table(head, rows)
        )

    def learning(self) -> str:
        return f"<p>{self.say('learning-text')}</p>" + learning_charts(self.findings, self.say, self.named)

    def costs(self) -> str:
        """One column for each system, so that names of figures have room."""
        rows: list[list[str]] = []
        figures = (
            ("parameters", "num_parameters", 0, 1),
            ("model-size", "model_bytes", 2, 1e6),
            ("time", "training_seconds", 1, 60),
            ("target-tokens", "target_tokens", 0, 1),
            ("training-speed", "training_tokens_per_second", 0, 1),
            ("memory", "peak_bytes", 0, 1e6),
            ("memory-before", "bytes_before", 0, 1e6),
            ("memory-device", "device_bytes", 0, 1e6),
            ("decoding-speed", "sentences_per_second", 1, 1),
            ("decoding-tokens", "output_tokens_per_second", 0, 1),
            ("latency", "milliseconds_per_sentence", 1, 1),
        )
        for name, field, digits, scale in figures:
            paths = [f"systems/{place}/cost/{field}" for place in range(len(self.labels))]
            if any(self.at(path) is not None for path in paths):
                rows.append([self.say(name), *(self.number(path, digits, scale) for path in paths)])
        decoders = [self.say(f"decoder-{system.cost.decoder}") for system in self.findings.systems]
        rows.append([self.say("decoder"), *decoders])
        head = ["", *(self.named(place) for place in range(len(self.labels)))]
        return f"<p>{self.say('cost-text')}</p>" + table(head, rows)

    def examples(self) -> str:
        """Both choices, each under the rule that made it."""
        parts = [f"<p>{self.say('examples-text')}</p>"]
        for name in ("evenly", "apart"):
            chosen = self.found[name]
            if not chosen:
                continue
            label = escape(self.findings.quality.segment_label)
            parts.append(f"<h3>{self.say(name)}</h3><p>{self.say(name + '-text', label=label)}</p>")
            parts += [self.example(f"{name}/{place}", one) for place, one in enumerate(chosen)]
        return "\n".join(parts)

    def example(self, path: str, one: dict[str, Any]) -> str:
        """A pair with all outputs below each other."""
        rows = [
            (self.say("source"), escape(one["source"]), ""),
            *((self.say("answer"), escape(text), "") for text in one["references"]),
        ]
        rows += [
            (self.named(place), mark(one["outputs"][name], one["references"]) or f"<i>{self.say('empty')}</i>", name)
            for name, place in self.places.items()
        ]
        lines = "".join(
            f"<dt>{name}</dt><dd>{words}"
            + (f' <span class="soft nowrap">{self.number(f"{path}/scores/{system}", 1)}</span>' if system else "")
            + "</dd>"
            for name, words, system in rows
        )
        name = self.say("pair", number=self.number(f"{path}/number", 0))
        return f'<div class="example"><p class="soft">{name}</p><dl>{lines}</dl></div>'

    def encoders(self) -> str:
        """The table of the three encoders, with sizes filled in."""
        rows: list[list[str]] = []
        for place, system in enumerate(self.findings.systems):
            encoder = system.encoder
            takes, gives = (
                "(" + ", ".join(f"{one:,}" for one in shape) + ")" for shape in (encoder.takes, encoder.gives)
            )
            path = f"systems/{place}/encoder"
            rows.append(
                [
                    self.named(place),
                    takes,
                    self.say(f"encoder-{encoder.kind}"),
                    f"{gives}<br>{self.say(f'gives-{encoder.kind}')}",
                    self.number(f"{path}/steps", 0),
                    self.number(f"{path}/path", 0),
                ]
            )
        head = ["", *(self.say(name) for name in ("takes", "does", "gives", "steps", "path"))]
        return f"<p>{self.say('encoders-text')}</p>" + table(head, rows)

    def equal(self) -> str:
        """The rule, the three figures, the settings, and what the numbers stand on."""
        rule = self.findings.rule
        columns = ("parameters", "target-tokens", "time")
        head = [
            "",
            *(
                self.say(name) + (f" <b>{self.say('held')}</b>" if RULE_COLUMNS[rule] == name else "")
                for name in columns
            ),
            self.say("updates"),
        ]
        rows: list[list[str]] = []
        for place, system in enumerate(self.findings.systems):
            for number, run in enumerate(system.runs):
                path = f"systems/{place}/runs/{number}"
                seed = (
                    f' <span class="soft">{self.say("seed", seed=str(run.seed))}</span>'
                    if self.many() == "many"
                    else ""
                )
                rows.append(
                    [
                        self.named(place) + seed,
                        self.number(f"systems/{place}/cost/num_parameters", 0),
                        self.number(f"{path}/target_tokens", 0),
                        self.number(f"{path}/seconds", 1, 60),
                        self.number(f"{path}/steps", 0),
                    ]
                )
        return (
            f"<p>{self.rule()} {self.say('equal-' + self.equality())}</p>"
            + table(head, rows)
            + f"<h3>{self.say('settings')}</h3>"
            + self.settings()
            + f"<h3>{self.say('data')}</h3>"
            + self.data()
        )

    def equality(self) -> str:
        """How much beside the rule is equal: settings of systems of the user's own may differ in anything."""
        names = ("training.label_smoothing", "decoding.beam_size", "decoding.length_penalty", "decoding.length_alpha")
        settings = [tuple(system.settings.get(name) for name in names) for system in self.findings.systems]
        if self.findings.rule == "given":
            return "given"
        return "text" if len(set(settings)) == 1 else "some"

    def settings(self) -> str:
        """What is the same for all stands once; a row for what differs comes first."""
        names = list(dict.fromkeys(name for system in self.findings.systems for name in system.settings))
        cells = {
            name: [escape(one.settings.get(name, "\N{EN DASH}")) for one in self.findings.systems] for name in names
        }
        ordered = sorted(names, key=lambda name: len(set(cells[name])) == 1)
        rows = [[f"<code>{escape(name)}</code>", *cells[name]] for name in ordered]
        return table(["", *(self.named(place) for place in range(len(self.labels)))], rows)

    def data(self) -> str:
        """Pairs, vocabularies, machine, and whether all systems had the same."""
        data = self.findings.data
        rows = [
            [self.say("data-training"), self.number("data/num_pairs", 0)],
            [self.say("data-validation"), self.number("data/num_validation", 0)],
            [self.say("data-test"), self.number("data/num_test", 0)],
            [
                self.say("data-vocabulary"),
                f"{self.number('data/source_vocabulary', 0)}, {self.number('data/target_vocabulary', 0)}",
            ],
            [self.say("data-tokenizers"), escape(data.tokenizers)],
            *([escape(name), escape(value)] for name, value in self.findings.surroundings.items()),
        ]
        notes = [
            "is-equal" if data.is_equal else "is-not-equal",
            "test-held" if data.is_test_held_out else "test-given",
        ]
        return "".join(f"<p>{self.say(note)}</p>" for note in notes) + table(["", ""], rows)

    def next_commands(self) -> str:
        return "".join(
            f"<p>{self.say('do-' + purpose)}</p><pre><code>{escape(command)}</code></pre>"
            for command, purpose in self.findings.commands
        )
