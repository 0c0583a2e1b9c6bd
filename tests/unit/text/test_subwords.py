"""Learning subwords: sizes that do not fit, long lines, many lines, silence, and models made elsewhere."""

import io
import subprocess
import sys
from typing import Any, Literal

import pytest
import sentencepiece

from malmoi.errors import CheckpointError, DataError
from malmoi.text import subwords
from malmoi.text.subwords import draw_lines, load_subwords, prepare, train_subwords

KINDS: list[Literal["bpe", "unigram"]] = ["bpe", "unigram"]
TEXTS = ["bano dori felu", "gasi hemo jipu", "kato luni miro bano", "dori dori bano"] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_does_not_fit_is_changed_and_told(kind: Literal["bpe", "unigram"], messages: list[str]) -> None:
    small = train_subwords(kind, TEXTS, vocabulary_size=10, seed=1)
    assert "instead of 10, since the text has 20 different characters" in messages[-1]
    large = train_subwords(kind, TEXTS, vocabulary_size=50_000, seed=1)
    assert "the text does not fill 50,000" in messages[-1]
    num_messages = len(messages)
    fitting = train_subwords(kind, TEXTS, vocabulary_size=279, seed=1)
    assert small.size == 2 + 256 + 20
    assert small.size < fitting.size == 279 < large.size
    assert len(messages) == num_messages
    for tokenizer in (small, fitting, large):
        assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(TEXTS)] == TEXTS


@pytest.mark.parametrize("kind", KINDS)
def test_long_lines_are_left_out_and_counted(kind: Literal["bpe", "unigram"], messages: list[str]) -> None:
    """google/sentencepiece#340 and #517."""
    long_lines = ["b" * 70_000, "bano " * 20_000]
    tokenizer = train_subwords(kind, [*TEXTS, *long_lines], vocabulary_size=300, seed=1)
    assert "2 line(s) longer than 20,000 bytes were left out" in "".join(messages)
    for line in long_lines:
        assert tokenizer.decode(tokenizer.encode(line)) == line
    with pytest.raises(DataError, match="every line is longer than 20,000 bytes"):
        train_subwords(kind, long_lines, vocabulary_size=300, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_at_the_limit_is_learned_from(kind: Literal["bpe", "unigram"]) -> None:
    line = ("bano zu " * 2500)[:-1] + "q"
    assert len(line) == subwords.MAX_LINE_BYTES
    tokenizer = train_subwords(kind, [line], vocabulary_size=270, seed=1)
    assert not set(tokenizer.encode("q")) & set(tokenizer.fallback_ids())


def test_many_lines_are_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch, messages: list[str]) -> None:
    texts = [f"line {number}" for number in range(2000)]
    assert draw_lines(texts, seed=1) == texts
    assert not messages
    for limit, value in [("MAX_LINES", 100), ("MAX_BYTES", 900)]:
        with monkeypatch.context() as patch:
            patch.setattr(subwords, limit, value)
            first = draw_lines(iter(texts), seed=1)
            assert first == draw_lines(texts, seed=1) != draw_lines(texts, seed=2)
        assert 40 <= len(set(first)) == len(first) <= 100
        numbers = [int(line.split()[1]) for line in first]
        assert 600 < sum(numbers) / len(numbers) < 1400
    assert f"learned from {len(first)} lines" in "".join(messages)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_model(kind: Literal["bpe", "unigram"]) -> None:
    first, second = (train_subwords(kind, TEXTS, vocabulary_size=290, seed=1).to_files() for _ in range(2))
    assert first == second


def test_learning_says_nothing_on_its_own() -> None:
    code = (
        "from malmoi.text.subwords import train_subwords\n"
        "for kind in ('bpe', 'unigram'):\n"
        "    train_subwords(kind, ['bano dori', 'felu'], vocabulary_size=300, seed=1).encode('x')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_alone_costs_no_look_at_the_whole_vocabulary(kind: Literal["bpe", "unigram"]) -> None:
    """Whoever translates one by one asks for the same ids each time; and one text is cut as it is in a list."""
    tokenizer = train_subwords(kind, TEXTS, vocabulary_size=290, seed=1)
    assert tokenizer.forbidden_ids() is tokenizer.forbidden_ids()
    texts = ["bano dori", "caf\u00e9 \u2581\x1a", "", " a  b "]
    assert [tokenizer.encode_batch([text])[0] for text in texts] == tokenizer.encode_batch(texts)


def test_escapes_are_one_to_one() -> None:
    texts = ["a\u2581b", "a b", "a\x1a1b", "a\x1a\u2581b", "a\x1a01b", "\u2585", "\x1a2", "\x1a", "\x1a0"]
    assert len({prepare(text) for text in texts}) == len(texts)
    assert not any("\u2581" in prepare(text) or "\u2585" in prepare(text) for text in texts)


def model_made_elsewhere(**options: Any) -> dict[str, bytes]:
    output = io.BytesIO()
    settings: dict[str, Any] = {"vocab_size": 280, "byte_fallback": True, "unk_id": 0, "eos_id": 1, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore
        sentence_iterator=iter(TEXTS),
        model_writer=output,
        hard_vocab_limit=False,
        minloglevel=2,
        **{**settings, **options},
    )
    return {"pieces.model": output.getvalue()}


def test_models_that_break_the_contract_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"there-pieces\.model: ids 0 and 1 must be"):
        load_subwords("unigram", model_made_elsewhere(unk_id=1, eos_id=0), "there")
    with pytest.raises(CheckpointError, match="a piece for each of the 256 bytes"):
        load_subwords("unigram", model_made_elsewhere(byte_fallback=False), "there")
    with pytest.raises(CheckpointError, match="not a SentencePiece model"):
        load_subwords("bpe", {"pieces.model": b"no model at all"}, "there")
    with pytest.raises(CheckpointError, match="missing or empty"):
        load_subwords("bpe", {}, "there")
