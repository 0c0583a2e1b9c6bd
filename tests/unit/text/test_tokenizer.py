"""What every tokeniser promises: the round trip, control ids, any ids as text, files that come back."""

import pickle
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malmoi.config.text import TextConfig, TokenizerKind
from malmoi.errors import CheckpointError, DataError
from malmoi.text.tokenizer import Tokenizer, Tokenizers, tokenizer_from_files, train_tokenizer, train_tokenizers

# The same examples in every run.
FIXED = settings(derandomize=True, database=None, deadline=None)

WORDS = [
    "bano",
    "dori",
    "felu",
    "gasi",
    "hemo",
    "jipu",
    "kato",
    "luni",
    "miro",
    "nesa",
    "opil",
    "pura",
    "quvi",
    "rolo",
    "sami",
    "teku",
    "uvan",
    "velo",
    "wixi",
    "yaru",
]
TOY = [" ".join(WORDS[(start * step + step) % 20] for step in range(1, 6)) for start in range(60)]
KINDS: list[TokenizerKind] = ["bpe", "unigram", "characters", "bytes", "words"]
CONTROL_TEXTS = [
    "</s> bano dori",
    "bano </s> dori",
    "<s>bano",
    "<pad> <pad> felu",
    "<unk>",
    "gasi <bos> <eos> <mask>",
    "<0x0A> hemo",
    "@@ jipu@@ kato",
    "[PAD] [SEP]",
    "<2de> luni",
    "x</s>y<unk>z<0xF0>",
]
SPACES = ["\xa0", "\u1680", "\u2003", "\u2007", "\u2028", "\u202f", "\u205f", "\u3000", "\x1f", "\x85"]
# Text that a file can hold on one line, with what tokenisers are apt to stumble over made frequent.
TEXTS = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"),
        st.sampled_from([" ", "\u2581", "\u2585", "\u2047", "\x1a", "0", "1", "\t", "<", "/", "s", ">", "\u0308", "a"]),
    ),
    max_size=30,
)


def train(kind: TokenizerKind, texts: list[str] = TOY, size: int = 320) -> Tokenizer:
    return train_tokenizer(kind, texts, vocabulary_size=size, minimum_count=1, seed=1)


TOKENIZERS = {kind: train(kind) for kind in KINDS}


@FIXED
@given(text=TEXTS)
def test_round_trip_keeps_everything(text: str) -> None:
    for kind in ("bpe", "unigram", "bytes"):
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        assert tokenizer.encode_batch([text, "bano", text]) == [ids, tokenizer.encode("bano"), ids]
        assert all(index > tokenizer.end_id for index in ids)
        assert not set(ids) & set(tokenizer.forbidden_ids())
        assert len(tokenizer.pieces(ids)) == len(ids)


@settings(FIXED, max_examples=30)
@given(texts=st.lists(TEXTS.filter(lambda text: bool(text.strip())), min_size=1, max_size=5))
def test_round_trip_of_trained_text(texts: list[str]) -> None:
    characters = train("characters", texts, size=1000)
    words = train("words", texts, size=1000)
    for text in texts:
        composed = unicodedata.normalize("NFC", text)
        assert characters.decode(characters.encode(text)) == composed
        assert words.decode(words.encode(text)) == " ".join(composed.split())
        assert not {0, 1} & {*characters.encode(text), *words.encode(text)}


@settings(FIXED, max_examples=25)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4).filter(lambda texts: any(texts)))
def test_subwords_learn_from_any_text(texts: list[str]) -> None:
    for kind in ("bpe", "unigram"):
        tokenizer = train(kind, texts, size=300)
        for text in texts:
            assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
        files = tokenizer.to_files()
        again = tokenizer_from_files(kind, files, "there")
        assert again.to_files() == files
        assert again.encode_batch(texts) == tokenizer.encode_batch(texts)


@FIXED
@given(ids=st.lists(st.integers(min_value=-5, max_value=400)))
def test_any_ids_are_text_on_one_line(ids: list[int]) -> None:
    """google/sentencepiece#906 and #852."""
    for tokenizer in TOKENIZERS.values():
        text = tokenizer.decode(ids)
        assert not set(text) & set("\n\r\0")
        text.encode("utf-8")
        assert len(tokenizer.pieces(ids)) == len(ids)


@FIXED
@given(text=st.text(alphabet=st.characters()))
def test_any_text_has_ids(text: str) -> None:
    """huggingface/transformers#8886 and #43459, openai/tiktoken#82: surrogates, line breaks and NUL included."""
    for tokenizer in TOKENIZERS.values():
        ids = tokenizer.encode(text)
        assert tokenizer.end_id not in ids
        assert not set(ids) & set(tokenizer.forbidden_ids()) - {tokenizer.unknown_id}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trained_on_them", [False, True])
def test_text_that_spells_control_symbols_is_text(kind: TokenizerKind, trained_on_them: bool) -> None:
    """google/sentencepiece#102, #667 and #816."""
    tokenizer = train(kind, [*TOY, *CONTROL_TEXTS * 20], size=600) if trained_on_them else TOKENIZERS[kind]
    for text in CONTROL_TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.end_id not in ids
        if trained_on_them or kind not in ("characters", "words"):
            assert tokenizer.unknown_id not in ids
            assert tokenizer.decode(ids) == text
    if trained_on_them:
        fallback = set(tokenizer.fallback_ids()) if kind != "bytes" else set[int]()
        assert not fallback & {index for text in CONTROL_TEXTS for index in tokenizer.encode(text)}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
def test_byte_pieces_become_characters_again(kind: TokenizerKind) -> None:
    """facebookresearch/fairseq#4603, argosopentech/argos-translate#411, huggingface/transformers#47473."""
    tokenizer = TOKENIZERS[kind]
    for text in ["bano 🤗 dori", "bano <0xF0> dori", "<0xF0><0x9F>"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
@pytest.mark.parametrize("num_bytes", [1, 2, 3, 4])
def test_cut_byte_runs_give_one_mark(kind: TokenizerKind, num_bytes: int) -> None:
    """google/sentencepiece#906 and #852."""
    tokenizer = TOKENIZERS[kind]
    word, rocket = tokenizer.encode("bano"), tokenizer.encode("bano🚀")
    run = rocket[len(word) :][:num_bytes]
    expected = "🚀" if num_bytes == 4 else "\ufffd"
    assert tokenizer.decode(run) == expected
    assert tokenizer.decode([*word, *run]) == "bano" + expected
    assert tokenizer.decode([*word, *run, *tokenizer.encode("x bano")[-4:]]).startswith("bano" + expected)
    assert tokenizer.decode([*word, *run[1:], *run[1:], *word]).count("\ufffd") == (1 if num_bytes > 1 else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_white_space_symbols_keep_their_ids(kind: TokenizerKind) -> None:
    """ufal/neuralmonkey#555, OpenNMT/OpenNMT-py#2242 and #2243.

    LibreTranslate/Locomotive#7, facebookresearch/fastText#163.
    """
    texts = [f"bano{space}dori {place}" for place, space in enumerate(SPACES)]
    tokenizer = train(kind, texts)
    files = tokenizer.to_files()
    again = tokenizer_from_files(kind, files, "there")
    assert again.size == tokenizer.size
    assert again.to_files() == files
    everything = range(tokenizer.size)
    assert again.pieces(everything) == tokenizer.pieces(everything)
    for text in texts:
        assert again.encode(text) == tokenizer.encode(text)
        assert kind == "words" or again.decode(again.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_marks_and_controls_are_no_pieces(kind: TokenizerKind) -> None:
    """google/sentencepiece#331, #156 and #954: no empty piece comes from NUL, and the model loads again."""
    tokenizer = train(kind, ["bano", "fe\0lu", "\0", "gasi"])
    names = tokenizer.pieces(range(tokenizer.size))
    assert all(names)
    assert len(set(names)) == tokenizer.size
    assert tokenizer_from_files(kind, tokenizer.to_files(), "there").encode("fe\0lu") == tokenizer.encode("felu")


def test_forbidden_and_fallback_ids() -> None:
    for kind, tokenizer in TOKENIZERS.items():
        texts = {tokenizer.decode([index]) for index in range(tokenizer.size) if index not in tokenizer.forbidden_ids()}
        assert texts.isdisjoint({"\n", "\r", "\0"})
        assert len(tokenizer.forbidden_ids()) == (1 if kind in ("characters", "words") else 4)
        assert len(tokenizer.fallback_ids()) == (1 if kind in ("characters", "words") else 257)
        assert tokenizer.pieces([0, 1, tokenizer.size]) == ["<unk>", "</s>", "<s>"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_is_a_function_of_its_seed(kind: TokenizerKind) -> None:
    tokenizer = train(kind, TOY, size=400)
    first = tokenizer.encode_sampled(TOY, 0.3, 7)
    other = tokenizer.encode_sampled(TOY, 0.3, 8)
    assert tokenizer.encode_sampled(TOY, 0.3, 7) == first
    assert other != first != tokenizer.encode_batch(TOY)
    assert [tokenizer.decode(ids) for ids in first] == TOY
    assert not {0, 1} & {index for ids in first for index in ids}


def trained(config: TextConfig, sources: list[str], targets: list[str]) -> Tokenizers:
    """Tokenisers of a model that was trained on the very texts that they were learned from."""
    tokenizers = train_tokenizers(config, sources, targets, seed=1)
    return tokenizers.trained_on({index for row in tokenizers.encode_sources(sources) for index in row})


def test_what_is_left_out_is_known() -> None:
    for kind in KINDS:
        tokenizers = trained(TextConfig(tokenizer=kind, vocabulary_size=320), TOY, TOY)
        found = tokenizers.left_out(["bano \U0001f642 dori \U0001f642 \u4e2d", "bano"])
        assert found == [("\U0001f642", "\u4e2d"), ()]
        assert train_tokenizers(TextConfig(tokenizer=kind), TOY, TOY, seed=1).left_out(["\U0001f642"]) == [()]


def test_tokenizers_drop_what_training_never_saw() -> None:
    """LibreTranslate/LibreTranslate#439 and #33, argosopentech/argos-translate#51."""
    with_emoji = ["bano dori. 😆 felu gasi.", "bano 👨‍👩‍👧 dori", "felu 🇩🇪 gasi", "hemo ❤️ jipu", "👍🏽 kato luni."]
    without = ["bano dori.  felu gasi.", "bano  dori", "felu  gasi", "hemo  jipu", " kato luni."]
    for kind in KINDS:
        config = TextConfig(tokenizer=kind, vocabulary_size=320)
        tokenizers = trained(config, [*TOY, "bano."], TOY)
        for nothing in ("🙂", "🙂 🙂", " 🙂\u3000", "\u200b🙂 "):
            assert tokenizers.encode_source(nothing) == [], kind
        if kind == "words":
            assert tokenizers.encode_source("bano 😆 dori") == tokenizers.encode_source("bano dori")
            continue
        for left, right in zip(with_emoji, without, strict=True):
            assert tokenizers.encode_source(left) == tokenizers.source.encode(right)
        assert tokenizers.encode_target("bano 😆") == tokenizers.target.encode("bano 😆")


def test_characters_that_share_bytes_are_kept_or_dropped_whole() -> None:
    tokenizers = trained(TextConfig(tokenizer="bytes"), ["é", "日"], ["a"])
    for text in ["è", "本", "ñ", "日é", "日本é", "e\u0301"]:
        ids = tokenizers.encode_source(text)
        assert tokenizers.source.decode(ids) in unicodedata.normalize("NFC", text).replace("本", "")


def test_seen_unknown_words_stay() -> None:
    config = TextConfig(tokenizer="words", minimum_count=2, vocabulary_size=100)
    tokenizers = trained(config, ["bano dori", "bano felu"], ["bano"])
    assert tokenizers.unseen_source_ids == ()
    assert tokenizers.encode_source("gasi bano") == [0, 2]


@pytest.mark.parametrize("shared", [True, False])
def test_tokenizers_come_back_byte_for_byte(tmp_path: Path, shared: bool) -> None:
    if shared:
        config = TextConfig(vocabulary_size=320)
    else:
        config = TextConfig(source_tokenizer="characters", target_tokenizer="words", shared_vocabulary=False)
    tokenizers = trained(config, TOY, [text.upper() for text in TOY])
    assert (tokenizers.source is tokenizers.target) == shared
    tokenizers.save(tmp_path / "first")
    again = Tokenizers.load(tmp_path / "first")
    again.save(tmp_path / "second")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert first == second
    assert (again.source is again.target) == shared
    assert again.unseen_source_ids == tokenizers.unseen_source_ids
    for text in [*TOY, "é 🤗"]:
        assert again.encode_source(text) == tokenizers.encode_source(text)
        assert again.encode_target(text) == tokenizers.encode_target(text)
    for copy in (pickle.loads(pickle.dumps(tokenizers)),):
        assert copy.encode_sources(TOY) == tokenizers.encode_sources(TOY)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    trained(TextConfig(vocabulary_size=320), TOY, TOY).save(tmp_path)
    manifest, model = tmp_path / "tokenizer.json", tmp_path / "shared-pieces.model"
    good_manifest, good_model = manifest.read_bytes(), model.read_bytes()

    def refused(path: Path, content: bytes, fault: str) -> None:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=fault):
            Tokenizers.load(tmp_path)
        manifest.write_bytes(good_manifest)
        model.write_bytes(good_model)

    refused(manifest, b"{", r"tokenizer\.json: not valid JSON")
    refused(manifest, b"[]", "not a tokeniser of this version")
    refused(manifest, good_manifest.replace(b'"nfc"', b'"nfkc"'), "unknown normalization 'nfkc'")
    refused(manifest, good_manifest.replace(b'"bpe"', b'"BPE"'), "kind must be one of")
    refused(manifest, good_manifest.replace(b'"shared"', b'"target"'), "sides must be")
    refused(manifest, good_manifest.replace(b'"size": 3', b'"size": 4'), "but the size is given as 4")
    refused(manifest, good_manifest.replace(b"pieces.model", b"../../etc/passwd"), "cannot be read")
    refused(manifest, good_manifest.replace(b'"unseen_source_ids": [', b'"unseen_source_ids": [9999,'), "fallback ids")
    refused(model, good_model[: len(good_model) // 2], r"shared-pieces\.model: not a")
    refused(model, b"", r"pieces\.model: the file is missing or empty")
    model.unlink()
    with pytest.raises(CheckpointError, match=r"shared-pieces\.model: cannot be read"):
        Tokenizers.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        Tokenizers.load(tmp_path / "nowhere")


@pytest.mark.parametrize("fault", ["", " ", "bano"])
def test_a_blank_or_repeated_symbol_is_told_with_the_path_of_its_file(tmp_path: Path, fault: str) -> None:
    """OpenNMT/OpenNMT-py#723 and #758, facebookresearch/fairseq#4660."""
    config = TextConfig(source_tokenizer="words", target_tokenizer="characters", shared_vocabulary=False)
    train_tokenizers(config, ["bano bano dori felu"], ["ak"], seed=1).save(tmp_path)
    path = tmp_path / "source-symbols.json"
    path.write_bytes(path.read_bytes().replace(b'"dori"', f'"{fault}"'.encode()))
    with pytest.raises(CheckpointError, match=re.escape(f"{path}:3: ")):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "words"])
def test_nothing_to_learn_from_is_told(kind: TokenizerKind) -> None:
    for texts in ([], [""], ["\0"]):
        with pytest.raises(DataError, match="there is no text"):
            train(kind, texts)
