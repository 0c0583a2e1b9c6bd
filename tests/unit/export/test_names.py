"""Every id has a name of its own, whatever the words of a vocabulary spell."""

import pytest

from malmoi.config.text import TextConfig
from malmoi.export.names import Names
from malmoi.text.tokenizer import train_tokenizers


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words"])
@pytest.mark.parametrize("shared", [True, False])
def test_names_are_different(kind: str, shared: bool) -> None:
    lines = ["</s> <s> <unk> <s>_ </s>_ a b", "\u2581 \u2581a <s> <0x0A>"]
    config = TextConfig(tokenizer=kind, shared_vocabulary=shared, vocabulary_size=320)  # type: ignore[arg-type]
    tokenizers = train_tokenizers(config, lines, lines[::-1], seed=1)
    names = Names.of(tokenizers)
    assert len(set(names.source)) == len(names.source) == tokenizers.source.size
    assert len(set(names.target)) == len(names.target) == tokenizers.target.size + 1
    assert names.start not in names.source
    assert (names.source[0], names.source[1]) == (names.unknown, names.end) == ("<unk>", "</s>")
    assert names.target[-1] == names.start
    if kind in ("bpe", "unigram"):
        assert list(names.source) == tokenizers.source.pieces(range(tokenizers.source.size))
