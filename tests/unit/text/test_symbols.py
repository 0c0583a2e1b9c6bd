"""Characters, words and bytes: what gets into the list, and files that were changed by hand."""

import pytest

from malmoi.errors import CheckpointError, DataError
from malmoi.text.symbols import ByteTokenizer, format_symbols, load_symbols, train_symbols


def test_frequent_symbols_come_first(messages: list[str]) -> None:
    texts = ["b a b", "c a b", "d"]
    assert train_symbols("words", texts, vocabulary_size=100, minimum_count=1).symbols == ("b", "a", "c", "d")
    assert train_symbols("words", texts, vocabulary_size=100, minimum_count=2).symbols == ("b", "a")
    limited = train_symbols("characters", texts, vocabulary_size=5, minimum_count=1)
    assert limited.symbols == (" ", "b", "a")
    assert limited.size == 5
    assert limited.encode("abd") == [4, 3, 0]
    assert limited.pieces([2, 3, 0, 1, 5]) == ["▁", "b", "<unk>", "</s>", "<s>"]
    assert "3 of 5 characters" in "".join(messages)
    with pytest.raises(DataError, match="occurs 9 times"):
        train_symbols("words", texts, vocabulary_size=5, minimum_count=9)


def test_words_are_cut_at_any_white_space() -> None:
    words = train_symbols("words", ["HH AH\u3000L\xa0OW"], vocabulary_size=100, minimum_count=1)
    assert words.decode(words.encode("  L\tOW  HH ")) == "L OW HH"


def test_text_is_composed_before_it_is_cut() -> None:
    characters = train_symbols("characters", ["u\u0308"], vocabulary_size=100, minimum_count=1)
    assert characters.symbols == ("ü",)
    assert characters.encode("ü") == characters.encode("u\u0308") == [2]


def test_files_that_were_changed_by_hand_are_refused_with_their_line() -> None:
    """OpenNMT/OpenNMT-py#723 and #758, facebookresearch/fairseq#4660."""
    good = format_symbols(["bano", "dori", "\u2028x"])
    assert good == b'[\n"bano",\n"dori",\n"\\u2028x"\n]\n'

    def refused(content: bytes, fault: str) -> None:
        with pytest.raises(CheckpointError, match=fault):
            load_symbols("words", {"symbols.json": content}, "there")

    refused(b'[\n"bano",\n\n"dori"\n]\n', r"there-symbols\.json:3: expected one symbol")
    refused(b'[\n"bano",\n" ",\n"dori"\n]\n', r"there-symbols\.json:3: \" \" cannot be one of words")
    refused(b'[\n"bano",\n"dori",\n"bano"\n]\n', r'there-symbols\.json:4: "bano" stands on line 2 already')
    refused(b'[\n"bano",\n"",\n"dori"\n]\n', "symbols.json:3: ")
    refused(b'[\n"bano",\n7\n]\n', "symbols.json:3: ")
    refused(b'[\n"u\\u0308"\n]\n', "symbols.json:2: ")
    refused(b'[\n"\\ud800"\n]\n', "symbols.json:2: ")
    refused(b'[\n"a b"\n]\n', "symbols.json:2: ")
    refused(b'[\n"\xff"\n]\n', "symbols.json:2: ")
    refused(b"", "expected a list")
    refused(b"bano\ndori\n", "expected a list")
    with pytest.raises(CheckpointError, match="missing"):
        load_symbols("words", {}, "there")
    with pytest.raises(CheckpointError, match=r"symbols\.json:2: .* cannot be one of characters"):
        load_symbols("characters", {"symbols.json": good}, "there")


def test_line_ends_of_other_systems_do_no_harm() -> None:
    content = format_symbols(["a", "b"]).replace(b"\n", b"\r\n")
    assert load_symbols("words", {"symbols.json": content}, "there").symbols == ("a", "b")


def test_bytes() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.size == 258
    assert tokenizer.encode("é a") == [0xC3 + 2, 0xA9 + 2, 0x20 + 2, 0x61 + 2]
    assert tokenizer.pieces(tokenizer.encode("é a")) == ["<0xC3>", "<0xA9>", "▁", "a"]
    assert tokenizer.forbidden_ids() == (0, 2, 12, 15)


def test_a_vocabulary_without_room_for_a_symbol_is_refused() -> None:
    with pytest.raises(DataError, match="raise it"):
        train_symbols("words", ["a b"], vocabulary_size=2, minimum_count=1)
