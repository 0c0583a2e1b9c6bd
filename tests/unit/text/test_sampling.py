"""Subwords cut by chance: the right chances, the same draws everywhere, and never another text.

The models are written byte by byte, so that no version of the library that learns them can change them.
"""

import os
import pickle
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import exp
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.text import sampling
from malmoi.text.subwords import SubwordTokenizer, load_subwords, train_subwords

Kind = Literal["bpe", "unigram"]
KINDS: list[Kind] = ["bpe", "unigram"]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
MERGES = [
    "▁d",
    "or",
    "▁b",
    "an",
    "▁dor",
    "i▁",
    "ano",
    "▁bano",
    "<0",
    "x4",
    "x41",
    "1>",
    "41>",
    "/s>",
    "é",
    "aa",
    "aaaa",
]
LETTERS = list("▁danorib<>/0x41s")
WORDS = {"▁bano": -3.1, "▁dori": -3.7, "▁b": -4.3, "▁d": -4.2, "an": -4.9, "or": -5.3, "no": -5.6, "ano": -6.2}
LINES = ["bano dori", "dori  bano é", "aaaa 🤗 bano", " dori", "nadir bandori"]
FIRST = 2 + 256
# Text that a file can hold on one line, with what is apt to stumble over made frequent.
TEXTS = st.lists(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(
            [*" \u2581\u2585\x1a\t\xa0\u3000\n\0🤗\u200d\u0308é", *LETTERS, "bano", " dori", "<0x41>", "</s>"]
        ),
    ),
    max_size=40,
).map("".join)


def varint(value: int) -> bytes:
    """A number as Protocol Buffers writes it."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, content: bytes | int | float) -> bytes:
    """One field of a message."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    if isinstance(content, float):
        return varint(number << 3 | 5) + struct.pack("<f", content)
    return varint(number << 3) + varint(content)


def model_of(kind: Kind, scores: Mapping[str, float]) -> bytes:
    """A model with these pieces of text behind unknown, end and the bytes; spaces as our own models have them."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("</s>", 0.0, CONTROL), *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256))]
    pieces += [(piece, score, NORMAL) for piece, score in scores.items()]
    messages = [field(1, piece.encode()) + field(2, score) + field(3, sort) for piece, score, sort in pieces]
    trainer = field(3, 2 if kind == "bpe" else 1) + field(35, 1)
    trainer += field(40, 0) + field(41, 2**64 - 1) + field(42, 1) + field(43, 2**64 - 1)
    normalizer = field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1)
    return b"".join(field(1, message) for message in messages) + field(2, trainer) + field(3, normalizer)


def made(kind: Kind, scores: Mapping[str, float]) -> SubwordTokenizer:
    return load_subwords(kind, {"pieces.model": model_of(kind, scores)}, "made")


def ranked(pieces: list[str]) -> dict[str, float]:
    """The scores of BPE: the sooner a merge was learned, the higher."""
    return {piece: -float(rank) for rank, piece in enumerate(pieces)}


SCORES: dict[Kind, dict[str, float]] = {
    "bpe": ranked([*MERGES, *LETTERS]),
    "unigram": {**WORDS, **{letter: -7.0 - 0.13 * place for place, letter in enumerate(LETTERS)}},
}
MADE = {kind: made(kind, SCORES[kind]) for kind in KINDS}
LEARNED = {kind: train_subwords(kind, LINES * 5, vocabulary_size=320, seed=1) for kind in KINDS}


def frequencies(tokenizer: SubwordTokenizer, text: str, alpha: float, number: int = 20_000) -> dict[str, float]:
    """How often each way of cutting a text was drawn, as a share."""
    rows = tokenizer.encode_sampled([text] * number, alpha, 5)
    counts = Counter(" ".join(tokenizer.pieces(row)) for row in rows)
    return {cut: count / number for cut, count in counts.items()}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=TEXTS)
def test_bpe_that_leaves_out_nothing_is_plain_bpe(text: str) -> None:
    for tokenizer in (MADE["bpe"], LEARNED["bpe"]):
        assert tokenizer.encode_sampled([text], 0.0, 1) == [tokenizer.encode(text)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=TEXTS)
def test_unigram_at_a_high_power_is_plain_unigram(text: str) -> None:
    """The likeliest way of cutting takes it all; it may have a rival as likely, so likelihoods are compared."""
    tokenizer = MADE["unigram"]

    def likelihood(ids: list[int]) -> float:
        return sum(SCORES["unigram"].get(piece, -20.0) for piece in tokenizer.pieces(ids))

    (sampled,) = tokenizer.encode_sampled([text], 1e5, 1)
    assert likelihood(sampled) == pytest.approx(likelihood(tokenizer.encode(text)), abs=1e-3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS, max_size=3), alpha=st.sampled_from([0.0, 0.1, 0.5, 0.99]), seed=st.integers(0, 2**63))
def test_a_sample_decodes_to_what_plain_ids_decode_to(texts: list[str], alpha: float, seed: int) -> None:
    for tokenizer in (*MADE.values(), *LEARNED.values()):
        rows = tokenizer.encode_sampled(texts, alpha, seed)
        assert [tokenizer.decode(row) for row in rows] == [tokenizer.decode(tokenizer.encode(text)) for text in texts]
        assert not {0, 1} & {index for row in rows for index in row}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_ways_of_cutting_come_as_often_as_unigram_says(alpha: float) -> None:
    scores = {"▁": -2.0, "a": -1.5, "b": -2.5, "▁a": -2.2, "ab": -3.0, "▁ab": -4.0}
    ways = ["▁ a b", "▁a b", "▁ ab", "▁ab"]
    weights = {way: exp(alpha * sum(scores[piece] for piece in way.split(" "))) for way in ways}
    drawn = frequencies(made("unigram", scores), "ab", alpha)
    assert drawn == pytest.approx({way: weight / sum(weights.values()) for way, weight in weights.items()}, abs=0.02)


def test_ways_of_cutting_come_as_often_as_left_out_merges_say() -> None:
    tokenizer = made("bpe", ranked(["▁a", "▁ab", "ab", "▁", "a", "b"]))
    chance = 0.3
    expected = {
        "▁ab": (1 - chance) ** 2,
        "▁a b": (1 - chance) * chance,
        "▁ ab": chance * (1 - chance) ** 2,
        "▁ a b": chance * chance,
    }
    # With ▁ and a apart, ab may be merged, and then ▁ab comes up once more as another pair.
    expected["▁ab"] += chance * (1 - chance) ** 2
    expected["▁ ab"] = chance * (1 - chance) * chance
    assert sum(expected.values()) == pytest.approx(1.0)
    assert frequencies(tokenizer, "ab", chance) == pytest.approx(expected, abs=0.02)


def test_more_left_out_merges_give_more_pieces() -> None:
    tokenizer = MADE["bpe"]
    numbers = [
        sum(map(len, tokenizer.encode_sampled(LINES * 100, alpha, 3))) for alpha in (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)
    ]
    assert numbers == sorted(set(numbers))
    # Nothing but characters and bytes is left in the end: one space in front of each line, four bytes for the emoji.
    assert numbers[-1] == 100 * sum(1 + len(line) + 3 * line.count("🤗") for line in LINES)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.text("ab", min_size=2, max_size=5), st.integers(-30, 0), max_size=20),
    st.text("abc", min_size=1, max_size=9),
    st.integers(0, 2**32),
)
def test_a_word_that_comes_again_is_merged_as_the_first_time(scores: dict[str, int], word: str, seed: int) -> None:
    """One walk over its spans draws what the agenda draws, also where a longer piece has a better score."""
    distinct = {piece: score - place / 100 for place, (piece, score) in enumerate(scores.items())}
    ids = {piece: number for number, piece in enumerate([*"ab", *distinct], start=300)}
    pieces = sampling.Pieces(ids, {**dict.fromkeys("ab", -100.0), **distinct}, range(256))
    again = sampling.MergedWord(word, pieces)
    for alpha in (0.0, 0.3, 0.7):
        first, second = random.Random(seed), random.Random(seed)
        expected = sampling.merge(word, pieces, lambda draw=first.random, alpha=alpha: draw() < alpha)
        assert sampling.ids_of_cut(word, again.cut(alpha, second.random), pieces) == expected
        assert first.random() == second.random()


def test_ways_back_are_rare_and_found() -> None:
    """abc is better than ab: once ab stands, it is abc that comes up, before what is worse than it."""
    scores = {"bc": -1.0, "abc": -2.0, "ab": -3.0, "cd": -4.0, **dict.fromkeys("abcd", -9.0)}
    word = sampling.MergedWord("abcd", sampling.Pieces(dict.fromkeys(scores, 1), scores, range(256)))
    assert word.back == {2: 1}
    draws = iter([0.0, 0.9, 0.9])
    assert word.cut(0.5, lambda: next(draws)) == 0b11001
    assert not sampling.MergedWord("bcd", sampling.Pieces({}, scores, range(256))).back


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_remembered_changes_no_draw(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = made(kind, SCORES[kind]).encode_sampled(LINES * 20, 0.4, 9)
    warm = made(kind, SCORES[kind])
    for seed, alpha in ((1, 0.4), (2, 0.1), (3, 0.9)):
        warm.encode_sampled(LINES * 20, alpha, seed)
    for tokenizer in (warm, pickle.loads(pickle.dumps(warm))):
        assert tokenizer.encode_sampled(LINES * 20, 0.4, 9) == expected
        # One seed stands for a whole batch: equal texts are not cut alike.
        assert len({tuple(row) for row in expected[:: len(LINES)]}) > 1
    for name in ("MAX_REMEMBERED", "MAX_REMEMBERED_CHARACTERS"):
        with monkeypatch.context() as patch:
            patch.setattr(sampling, name, 8 if name == "MAX_REMEMBERED" else -1)
            limited: Any = made(kind, SCORES[kind])
            assert limited.encode_sampled(LINES * 20, 0.4, 9) == expected
            held = len(limited._sampler._merged) + len(limited._sampler._lattices)
            assert held <= 8 if name == "MAX_REMEMBERED" else held == 0


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_disturb_each_other(kind: Kind) -> None:
    tokenizer = made(kind, SCORES[kind])
    expected = [made(kind, SCORES[kind]).encode_sampled(LINES * 20, 0.4, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda seed: tokenizer.encode_sampled(LINES * 20, 0.4, seed), range(8))) == expected


def test_long_words_and_pieces_with_a_space_inside() -> None:
    long = "banodori" * 500
    for tokenizer in MADE.values():
        (row,) = tokenizer.encode_sampled([long], 0.3, 1)
        assert tokenizer.decode(row) == long
        assert 1000 < len(row) < len(long)
    crossing = made("bpe", ranked(["o▁", "o▁d", "▁", *"bandori"]))
    assert crossing.encode_sampled(["bano dori"], 0.0, 1) == [crossing.encode("bano dori")]
    assert FIRST + 1 in crossing.encode("bano dori")


SCRIPT = """
import sys
from pathlib import Path
from malmoi.text.subwords import load_subwords
kind, path = sys.argv[1:3]
tokenizer = load_subwords(kind, {"pieces.model": Path(path).read_bytes()}, "stored")
print(tokenizer.encode_sampled(sys.argv[3:] * 10, 0.3, 1))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_processes_draw_the_same(kind: Kind, tmp_path: Path) -> None:
    """google/sentencepiece: one seed gave other ids in each process, so that no run could be resumed bit for bit."""
    path = tmp_path / "pieces.model"
    path.write_bytes(model_of(kind, SCORES[kind]))
    command = [sys.executable, "-c", SCRIPT, kind, str(path), *LINES]
    outputs = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONUTF8": "1"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert outputs == [str(MADE[kind].encode_sampled(LINES * 10, 0.3, 1))] * 2


STORED: dict[Kind, list[list[int]]] = {
    "bpe": [
        [260, 277, 278, 279, 275, 276, 259, 281],
        [258, 259, 281, 275, 265, 275, 272],
        [275, 273, 273, 275, 242, 161, 166, 153, 260, 277, 278, 279],
        [275, 258, 259, 281],
        [275, 278, 277, 276, 281, 280, 260, 261, 276, 279, 280, 281],
    ],
    "unigram": [
        [258, 259],
        [259, 266, 258, 266, 197, 171],
        [266, 268, 268, 268, 268, 266, 242, 161, 166, 153, 258],
        [266, 259],
        [266, 269, 268, 267, 272, 271, 260, 262, 267, 263, 272],
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_all_versions(kind: Kind) -> None:
    assert MADE[kind].encode_sampled(LINES, 0.3, 1) == STORED[kind]
