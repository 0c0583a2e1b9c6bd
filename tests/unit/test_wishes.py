"""Wishes go with texts line by line, and are spelt as a model may write them."""

from pathlib import Path
from typing import Literal

import pytest

from malmoi.decoding.constraints import spellings
from malmoi.errors import DataError
from malmoi.text.tokenizer import train_tokenizer
from malmoi.wishes import Window, check_counts, encode_phrase, read_windows

TEXTS = ["a", "b", "c"]


def taken(windows: list[Window]) -> list[tuple[str, str]]:
    return [(text, window.wishes(place)[0]) for window in windows for place, text in enumerate(window.texts)]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_wishes_go_with_their_texts(size: int) -> None:
    windows = list(read_windows(TEXTS, ["1", "2", "3"], [["x"], [], ["y"]], size))
    assert taken(windows) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert [window.first_line for window in windows] == list(range(1, 4, size))
    assert windows[0].wishes(0)[1] == ["x"]
    assert all(len(window.texts) <= size for window in windows)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_wishes_are_told_behind_all_that_can_be_answered(size: int, count: int) -> None:
    found: list[Window] = []
    with pytest.raises(DataError, match=rf"there are {count} prefixes for \d texts or more"):
        found.extend(read_windows(TEXTS, ["1", "2"][:count], [["x"], [], ["y"]], size))
    found = []
    windows = read_windows(TEXTS, ["1", "2"][:count], None, size)
    with pytest.raises(DataError):
        while True:
            found.append(next(windows))
    assert taken(found) == [("a", "1"), ("b", "2")][:count]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_too_many_wishes_are_told_at_the_end(size: int) -> None:
    windows, found = read_windows(TEXTS, None, [[], [], [], ["x"]], size), list[Window]()
    with pytest.raises(DataError, match=r"there are more than 3 constraints for 3 texts"):
        while True:
            found.append(next(windows))
    assert [text for window in found for text in window.texts] == TEXTS


def test_files_are_counted_before_any_work(tmp_path: Path) -> None:
    texts, wishes = tmp_path / "texts", tmp_path / "wishes"
    texts.write_bytes(b"a\nb\n\n")
    for content in (b"1\n2\n3", b"1\n2\n\n"):
        wishes.write_bytes(content)
        check_counts(texts, {"prefixes": wishes, "phrases": None})
    for content, count in ((b"1\n2\n", 2), (b"1\n2\n3\n\n", 4)):
        wishes.write_bytes(content)
        with pytest.raises(DataError, match=rf"wishes has {count} lines but .*texts has 3"):
            check_counts(texts, {"prefixes": None, "phrases": wishes})
        check_counts("-", {"prefixes": wishes})


def holds(ids: list[int], spelling: tuple[int, ...]) -> bool:
    return any(tuple(ids[place : place + len(spelling)]) == spelling for place in range(len(ids)))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_phrase_is_found_where_no_space_stands_before_it(kind: Literal["bpe", "unigram"]) -> None:
    """Scripts without spaces, and the second half of a compound, know no leading space.

    Pieces are single characters here, so that none goes on beyond a phrase.
    """
    texts = [
        "\u732b\u304c\u597d\u304d",
        "\u72ac\u304c\u597d\u304d",
        "\u732b\u3068\u72ac",
        "Baum Haus",
        "Baumhaus am haus",
    ] * 20
    tokenizer = train_tokenizer(kind, texts, vocabulary_size=1)
    for phrase, whole in (
        ("\u72ac", ["\u72ac\u304c\u597d\u304d", "\u732b\u3068\u72ac", "\u732b \u72ac"]),
        ("\u597d\u304d", ["x\u597d\u304d", "\u597d\u304d", "\u732b \u597d\u304d"]),
        ("haus", ["haus", "am haus", "Xhaus"]),
    ):
        found = spellings(encode_phrase(tokenizer, phrase, 1))
        for text in whole:
            assert any(holds(tokenizer.encode(text), spelling) for spelling in found), (phrase, text)
        assert all(tokenizer.decode(spelling).strip() == phrase for spelling in found)


@pytest.mark.parametrize("kind", ["characters", "bytes", "words"])
def test_a_phrase_without_subwords_has_one_spelling(kind: Literal["characters", "bytes", "words"]) -> None:
    tokenizer = train_tokenizer(kind, ["am haus"], vocabulary_size=300)
    assert spellings(encode_phrase(tokenizer, " haus ", 1)) == (tuple(tokenizer.encode("haus")),)


def test_a_window_of_very_long_texts_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malmoi.wishes.WINDOW_CHARACTERS", 5)
    texts = ["aaaaaaaaa", "b", "cc", "dd", "e", "f"]
    windows = list(read_windows(texts, None, [[text] for text in texts], 10))
    assert [list(window.texts) for window in windows] == [["aaaaaaaaa"], ["b", "cc", "dd"], ["e", "f"]]
    assert [window.first_line for window in windows] == [1, 2, 5]
    assert [list(phrases) for window in windows for phrases in window.constraints or ()] == [[text] for text in texts]
