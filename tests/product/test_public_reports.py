"""Faults that users of other toolkits reported, asked of the command line; in this process, which is quicker."""

import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.product_toys import FAST, write

from malmoi.__main__ import main

BREAKS = ("\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    status: int
    out: bytes
    err: str


Call = Callable[..., Said]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    """Runs a command in `tmp_path`."""

    def run(*words: str | Path, stdin: bytes = b"") -> Said:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["malmoi", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            main()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Said(int(left.value.code or 0), out, err.decode())

    return run


def test_every_verb_counts_lines_by_line_feeds_alone(toy: Path, tmp_path: Path, call: Call) -> None:
    """tensorflow/datasets#2633; rsennrich/subword-nmt#92; allenai/allennlp#338; python/cpython#82921."""
    write(tmp_path / "a.src", ["kami to.", *(f"kami{mark}to {index}." for index, mark in enumerate(BREAKS)), "su."])
    write(tmp_path / "a.tgt", ["to kami!", *(f"{index} to kami!" for index in range(8)), "su!"])
    from_file = call("translate", toy / "run", "a.src").out
    assert from_file.count(b"\n") == 10
    assert call("translate", toy / "run", stdin=(tmp_path / "a.src").read_bytes()).out == from_file
    assert call("score", toy / "run", "a.src", "a.tgt").out.count(b"\n") == 10
    (tmp_path / "output").write_bytes(from_file)
    assert b"10 segments" in call("evaluate", "output", "a.src", "a.tgt").out
    assert (
        json.loads(
            call(
                "prepare",
                "a.src",
                "a.tgt",
                "--out",
                "store",
                "--valid",
                "a.src",
                "--valid",
                "a.tgt",
                "text.tokenizer=words",
                "--json",
            ).out
        )["pairs"]
        == 10
    )


def test_printed_scores_follow_from_printed_token_scores(toy: Path, tmp_path: Path, call: Call) -> None:
    """awslabs/sockeye#483 and #487; huggingface/transformers#8722, #16413 and #27808: ended, cut, with a prefix."""
    write(tmp_path / "prefix", ["to kami"] * 20)
    finished: set[bool] = set()
    # A beam that holds every token ends some outputs of a model that hardly learned anything.
    for words in ((), ("--prefix", "prefix"), ("--set", "max_length=1", "--beam", "200")):
        said = call("translate", toy / "run", toy / "test.src", "--json", "--set", "length_alpha=0.7", *words)
        for row in map(json.loads, said.out.splitlines()):
            length = len(row["tokens"])
            assert row["score"] == pytest.approx(sum(row["token_scores"]) / ((5 + length) / 6) ** 0.7, abs=1e-5)
            finished.add(row["finished"])
    assert finished == {True, False}


def test_a_short_n_best_list_is_told_and_limits_are_kept(toy: Path, call: Call) -> None:
    """facebookresearch/fairseq#7 and #8; espnet/espnet#4981; facebookresearch/fairseq#119; OpenNMT/CTranslate#45."""
    said = call("translate", toy / "run", "--n-best", "900", "--set", "max_length=1", stdin=b"kami to.\n\n")
    rows = said.out.decode().split("\n")[:-1]
    assert re.search(rf"line 1: there are {len(rows) - 1} translations, fewer than the 900 wanted", said.err)
    assert rows[-1] == "2\t\t" and "line 2" not in said.err
    assert call("translate", toy / "run", "--set", "max_length=0", stdin=b"kami.\n").status == 2
    two = json.loads(call("translate", toy / "run", "--set", "max_length=2", "--json", stdin=b"kami to su ne.\n").out)
    assert len(two["tokens"]) - two["finished"] <= 2


def test_more_right_answers_never_lower_a_score_and_segments_are_told(tmp_path: Path, call: Call) -> None:
    """mjpost/sacrebleu#220, #275 and #272: sets of references are not mixed up with segments."""
    write(tmp_path / "hyp", ["the cat sat on the mat", "a dog ran far away", "birds sing in the tree"])
    write(tmp_path / "a", ["the cat sat on the mat", "one hound went off then", "all is quiet there now"])
    write(tmp_path / "b", ["some cat was on a mat", "a dog ran far off today", "the birds sing in the tree"])

    def bleu(*words: str) -> float:
        report = json.loads(call("evaluate", "hyp", "hyp", *words, "--metric", "bleu", "--json").out)["report"]
        return report["scores"][0]["value"]

    first, second = bleu("a"), bleu("b")
    assert first < 60
    assert bleu("a", "--reference", "b") >= max(first, second)
    assert b"3 segments" in call("evaluate", "hyp", "hyp", "a").out
    write(tmp_path / "short", ["some cat was on a mat", "a dog ran far off today"])
    refused = call("evaluate", "hyp", "hyp", "a", "--reference", "short")
    assert refused.status == 1 and "short has 2 lines, but DATA has 3" in refused.err


class Canary:
    """Its pickle makes a file when someone loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return open, ("CANARY_RAN", "w")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("run/state/*/tensors.safetensors", ("train", "--out", "run", "training.max_steps=30")),
        ("run/data/train/00/source.ids", ("train", "--out", "run", "training.max_steps=30")),
        ("run/tokenizer/tokenizer.json", ("train", "--out", "run", "training.max_steps=30")),
        ("run/config.toml", ("train", "--out", "run", "training.max_steps=30")),
        ("run/model/tokenizer/shared-pieces.model", ("translate", "run")),
        ("run/checkpoints/*/model.safetensors", ("average", "run", "--out", "mean")),
        ("settings.toml", ("train", "{toy}/test.tsv", "--out", "new", "--config", "settings.toml", *FAST)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_folder_of_a_run_is_ever_unpickled(
    toy: Path, tmp_path: Path, call: Call, place: str, words: tuple[str, ...]
) -> None:
    """ecmwf/anemoi-core#1416; NVIDIA-NeMo/Automodel#3240; voicepaw/so-vits-svc-fork#193: resume folders, caches."""
    shutil.copytree(toy / "run", tmp_path / "run")
    (tmp_path / "settings.toml").write_bytes(b"")
    changed = list(tmp_path.glob(place))
    assert changed
    for path in changed:
        path.write_bytes(pickle.dumps(Canary()))
    said = call(*(word.format(toy=toy) for word in words))
    assert said.status in (1, 2)
    assert changed[0].name in said.err
    assert not (tmp_path / "CANARY_RAN").exists()


def test_scores_are_the_same_in_a_bare_locale(toy: Path, tmp_path: Path, call: Call) -> None:
    """joeynmt/joeynmt#62; OpenNMT/OpenNMT-py#1948; OpenNMT/OpenNMT-tf#126: measuring reads and prints UTF-8 too."""
    write(tmp_path / "a.src", ["réha kami.", "日本 to."])
    write(tmp_path / "a.tgt", ["kami réha!", "to 日本!"])
    verbs = (
        ("score", str(toy / "run"), "a.src", "a.tgt", "--tokens"),
        ("evaluate", "a.tgt", "a.src", "a.tgt"),
    )
    usual = b"".join(call(*words).out for words in verbs)
    assert "é".encode() in usual
    code = (
        "import json, os, sys\nfrom malmoi.__main__ import main\n"
        "for words in json.loads(os.environ['WORDS']):\n"
        "    sys.argv = ['malmoi', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as left:\n        assert not left.code, left.code\n"
    )
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **bare, "WORDS": json.dumps(verbs)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == usual
