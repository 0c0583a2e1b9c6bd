"""The arithmetic of the decoding benchmark, and the page that it writes."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks are scripts: what they import lies beside them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("decode", "decoders", "memory", "peers")]:
        del sys.modules[name]


def test_trials_are_spread_over_all_lines() -> None:
    from decode import spread

    lines = [str(number) for number in range(10)]
    assert spread(lines, 4) == ["0", "2", "5", "7"]
    assert spread(lines, 20) == lines


def make_task(**changes: Any) -> Any:
    from decoders.task import Task

    facts: dict[str, Any] = {
        "system": "malmoi-fp32",
        "model": "m",
        "precision": "fp32",
        "workers": 2,
        "threads": 1,
        "sources": "s",
        "beam": 5,
        "batch_sizes": (1, 16),
        "num_tokens": 16,
        "num_single": 3,
        "seconds": 1.0,
        "outputs": "",
        "seed": 1,
    }
    return Task(**{**facts, **changes})


class Slow:
    """Each pass takes as long as it says; every output has as many tokens as its text has words."""

    versions = "none"

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 100.0

    def clock(self) -> float:
        return self.now

    def translate(self, texts: Sequence[str], beam: int, batch_size: int) -> list[Any]:
        from decoders.task import Output

        self.now += self.seconds
        return [Output(len(text.split()), text) for text in texts]


@pytest.mark.parametrize(("seconds", "passes"), [(0.0, 1), (1.0, 3), (1.2, 3), (1.3, 4)])
def test_whole_passes_are_counted_until_the_time_is_up(seconds: float, passes: int) -> None:
    from decoders.task import measure

    system = Slow(0.4)
    cell, outputs = measure(system, ["a b c", "d"], make_task(seconds=seconds), 16, system.clock)
    assert cell.num_sentences == 2 * passes
    assert cell.tokens_per_second == pytest.approx(4 / 0.4)
    assert cell.sentences_per_second == pytest.approx(2 / 0.4)
    assert [one.num_tokens for one in outputs] == [3, 1]


def test_a_task_comes_back_from_its_file(tmp_path: Path) -> None:
    from decoders.task import Task

    task = make_task()
    task.write(tmp_path / "task.json")
    assert Task.read(tmp_path / "task.json") == task


def test_percentiles_are_values_that_occurred() -> None:
    from decoders.task import percentile

    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.2, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert percentile([float(one) for one in range(1, 101)], 0.95) == 95.0
    assert percentile([7.0], 0.95) == 7.0


def test_cores_are_shared_out_in_every_way() -> None:
    from decoders.task import splits

    assert splits(1) == [(1, 1)]
    assert splits(2) == [(1, 2), (2, 1)]
    assert splits(6) == [(1, 6), (2, 3), (3, 2), (6, 1)]


def test_outputs_of_another_length_are_counted() -> None:
    from decoders.task import Output, wrong_lengths

    outputs = [Output(16, ""), Output(15, ""), Output(17, "")]
    assert wrong_lengths(outputs, 16) == 2
    assert wrong_lengths(outputs, 0) == 0


def make_report() -> Any:
    from decoders.report import Report, Row, Start

    def row(name: str, speeds: list[float], single: list[float], **more: Any) -> Row:
        seconds = [[one, one, one * 10] for one in single]
        return Row(name, name.upper(), 5, "how", "1 threads", speeds, speeds, seconds, [0.25, 0.5, 1.0], 2**20, **more)

    rows = [
        row("malmoi-int8", [300.0, 330.0, 300.0], [0.002, 0.002, 0.002], bleu=38.256),
        row("ctranslate2-float32", [100.0, 110.0, 100.0], [0.004, 0.004, 0.004]),
        row("ctranslate2-int8", [200.0, 165.0, 150.0], [0.008, 0.008, 0.008], num_wrong=3),
    ]
    return Report({"seed": "1"}, "tiny", ["a fact"], rows, [Start("MALMOI", [1.0, 3.0, 2.0])], {"HF": "not here"})


def test_ratios_are_to_ctranslate2s_best_round_by_round() -> None:
    from decoders.report import as_markdown

    report = make_report()
    assert report.best_peer(5).name == "ctranslate2-int8" and report.quickest_peer(5).name == "ctranslate2-float32"
    page = as_markdown(report)
    # The tables stand above the one that says how each was measured.
    tables = page.partition("## Chosen")[0].split("\n")
    cells = {cell[0]: cell for line in tables if (cell := line.strip("| ").split(" | "))[0]}
    assert cells["MALMOI-INT8"][1:6] == ["300", "300", "330", "2.00", "300.0"]
    assert cells["MALMOI-INT8"][6:12] == ["2.0", "20.0", "0.50", "0.50", "1", "38.26"]
    assert "CTRANSLATE2-INT8 (3 outputs of another length)" in cells
    assert cells["MALMOI"] == ["MALMOI", "2.00", "1.00", "3.00"]
    assert "* HF: not here" in page and "## Beam 5" in page and "Greedy" not in page
    assert json.loads(json.dumps(report.as_json()))["rows"][0]["bleu"] == 38.256


def test_without_peers_there_is_no_ratio() -> None:
    from decoders.report import as_markdown

    report = make_report()
    report.rows = report.rows[:1]
    assert report.best_peer(5) is None and report.best_peer(1) is None
    assert "| MALMOI-INT8 | 300 | 300 | 330 |  | 300.0 | 2.0 | 20.0 |  |" in as_markdown(report)


def test_sentences_are_made_of_known_words(tmp_path: Path) -> None:
    from decoders.material import MOST_WORDS, VOCABULARY, write_sentences

    write_sentences(tmp_path / "one", 50, seed=1)
    write_sentences(tmp_path / "again", 50, seed=1)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "again").read_bytes()
    rows = (tmp_path / "one").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(rows) == 50 and all(3 <= len(row.split()) <= MOST_WORDS for row in rows)
    assert all(0 <= int(word[1:]) < VOCABULARY - 2 for row in rows for word in row.split())


def test_a_leak_has_a_slope_and_a_cache_that_fills_up_has_none() -> None:
    from memory import Sample, as_markdown, slope, thinned

    seconds = [60.0 * minute for minute in range(61)]
    leak = [Sample(one, 500 + one / 36, 7) for one in seconds]
    cache = [Sample(one, min(500 + one, 800), 7) for one in seconds]
    assert slope(leak) == pytest.approx(100.0)
    assert slope(cache) == pytest.approx(0.0)
    assert slope(cache[:1]) == 0.0
    assert [one.seconds for one in thinned(cache, 3)] == [0.0, 1800.0, 3600.0]
    assert "slope over the second half +100.0 MB per hour" in as_markdown({}, leak)


def test_a_last_line_without_a_line_feed_is_a_line(tmp_path: Path) -> None:
    """Else the lines of the next shuffle, or the right answers, would be other lines."""
    from decoders.material import bleu
    from memory import whole_lines

    assert whole_lines(b"a\rb\n\nc") == whole_lines(b"a\rb\n\nc\n") == [b"a\rb\n", b"\n", b"c\n"]
    (tmp_path / "outputs").write_bytes(b"one two three four\nfive six seven eight\n")
    (tmp_path / "reference").write_bytes(b"one two three four\nfive six seven eight")
    assert bleu(tmp_path / "outputs", tmp_path / "reference") == pytest.approx(100.0)
