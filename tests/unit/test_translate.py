"""From text to text, with a scorer that copies its source and with small random networks."""

import json
import math
from collections.abc import Iterator

import pytest

from copying import LINES, CopyScorer, copier, make_tokenizers, texts_of
from malmoi.config.decoding import DecodingConfig
from malmoi.config.model import TransformerConfig
from malmoi.config.text import TextConfig
from malmoi.decoding.scorer import ModelScorer
from malmoi.errors import ConfigError, DataError
from malmoi.models.build import build_model
from malmoi.text.ids import END_ID
from malmoi.text.tokenizer import train_tokenizers
from malmoi.translate import Translation, Translator


@pytest.fixture(scope="module")
def network_translator() -> Translator:
    """A random network, whose outputs are nonsense but depend on everything."""
    tokenizers = make_tokenizers("bpe")
    size = tokenizers.target.size
    config = TransformerConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=32)
    network = build_model(config, size, size, seed=3).eval()
    return Translator(ModelScorer(network), tokenizers, DecodingConfig(beam_size=3, max_length=12))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words"])
def test_text_comes_back_in_order(kind: str) -> None:
    translator = copier(kind)
    assert texts_of(translator.translate(LINES)) == LINES
    best = translator.translate(LINES[:1])[0]
    assert best.finished
    assert best.error is None
    assert len(best.tokens) == len(best.token_scores)
    assert best.tokens[-1] == "</s>"
    assert best.token_scores[-1] == pytest.approx(math.log(0.9), abs=1e-5)
    assert best.score is not None
    assert math.isfinite(best.score)


BLANK = ["bano dori", "", "   ", "\t", "\u00a0", "\u3000 \u00a0", "felu", "", "\u200b", "gasi hemo"]


@pytest.mark.parametrize("window", [1, 3, 64])
def test_blank_lines_stay_blank_and_in_place(network_translator: Translator, window: int) -> None:
    """OpenNMT/OpenNMT-py#252 and #1642; marian-nmt/marian#21; ufal/lindat-translation#61."""
    found = list(network_translator.translate_lines(BLANK, window=window))
    assert len(found) == len(BLANK)
    for line, translation in zip(BLANK, found, strict=True):
        if line in ("bano dori", "felu", "gasi hemo"):
            alone = network_translator.translate([line])[0]
            assert translation.text == alone.text
            assert translation.score == pytest.approx(alone.score, abs=1e-4)
        else:
            assert translation == Translation("")


def test_the_precision_that_a_model_stores_is_for_those_who_can_choose(network_translator: Translator) -> None:
    """A scorer of one's own has no int8: what the model stores does not matter then, what a call asks for does."""
    stored = network_translator.decoding.model_copy(update={"precision": "int8"})
    alone = Translator(network_translator.scorer, network_translator.tokenizers, stored)
    assert alone.translate(["a b"])[0].text == network_translator.translate(["a b"])[0].text
    with pytest.raises(ConfigError, match="precision int8"):
        alone.translate(["a b"], options={"precision": "int8"})


def test_nothing_but_blank_lines_never_reaches_the_model() -> None:
    translator = copier()

    def refuse(*arguments: object) -> None:
        raise AssertionError("the model was asked")

    translator.scorer.encode = refuse  # type: ignore[method-assign, assignment]
    assert texts_of(translator.translate(["", " \u3000"])) == ["", ""]
    assert translator.translate([]) == []


def test_a_line_longer_than_training_saw_is_translated_whole_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """marian-nmt/marian#106; facebookresearch/fairseq#591 and #5082."""
    tokenizers = make_tokenizers("words")
    decoding = DecodingConfig(beam_size=1, max_length=5000)
    translator = Translator(CopyScorer(tokenizers.target.size), tokenizers, decoding, max_source_tokens=8)
    overlong = " ".join(["bano", "dori"] * 300)
    found = translator.translate(["bano", "dori", overlong, "felu"])
    assert texts_of(found) == ["bano", "dori", overlong, "felu"]
    assert [bool(one.notes) for one in found] == [False, False, True, False]
    assert "line 3: 601 tokens" in found[2].notes[0]
    assert "line 3: 601 tokens" in caplog.text


def test_an_output_that_was_cut_says_so() -> None:
    """argosopentech/argos-translate#444: the limit is a documented one, and follows the source."""
    translator = copier("words", DecodingConfig(beam_size=1, max_length_ratio=0.5, max_length_extra=1))
    whole, cut = translator.translate(["bano", "bano dori felu gasi hemo jipu"])
    assert whole.finished
    assert not whole.notes
    assert not cut.finished
    assert "cut after" in cut.notes[0]
    assert "bano dori felu gasi hemo jipu".startswith(cut.text)


def test_a_table_of_positions_fails_its_own_line_alone(caplog: pytest.LogCaptureFixture) -> None:
    """OpenNMT/CTranslate2#1646; bentrevett/pytorch-seq2seq#69 and #32; facebookresearch/fairseq#1853."""
    tokenizers = make_tokenizers("characters")
    size = tokenizers.target.size
    config = TransformerConfig(
        width=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=32, positions="learned", max_positions=24
    )
    network = build_model(config, size, size, seed=3).eval()
    translator = Translator(ModelScorer(network), tokenizers, DecodingConfig(beam_size=2))
    lengths = [22, 23, 24, 25, 200]
    found = translator.translate(["bano", *("a" * length for length in lengths), "dori"])
    assert [one.error is not None for one in found] == [False, False, False, True, True, True, False]
    assert found[4].text == ""
    assert "line 5: 26 tokens" in str(found[4].error)
    assert "24 positions" in str(found[4].error)
    assert "line 6: 201 tokens" in caplog.text
    # Outputs end at the table too: `<s>` takes one of its rows, the token behind the last row none.
    assert all(len(one.tokens) <= 24 for one in found)
    after = translator.translate(["bano"])[0]
    assert after.text == found[0].text
    assert after.score == pytest.approx(found[0].score, abs=1e-4)
    scored = translator.score([("bano", "dori"), ("bano", "a" * 23), ("bano", "a" * 24), ("a" * 24, "b")])
    assert [one.error is not None for one in scored] == [False, False, True, True]


def test_emoji_that_training_never_saw_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """LibreTranslate/LibreTranslate#439 and #33; argosopentech/argos-translate#51: the text behind them is kept."""
    caplog.set_level("WARNING")
    translator = copier("bpe")
    family = "bano \U0001f468\u200d\U0001f469\u200d\U0001f467 dori"
    found = translator.translate(["bano dori. \U0001f606 felu", "\U0001f642", family, "hemo \u2764\ufe0f jipu"])
    assert texts_of(found) == ["bano dori.  felu", "", "bano  dori", "hemo  jipu"]
    assert "line 2" in found[1].notes[0]
    assert found[0].notes == ("line 1: never seen in training and left out: \U0001f606",)
    assert found[2].notes == ("line 3: never seen in training and left out: \U0001f468 U+200D \U0001f469 \U0001f467",)
    assert translator.translate(["bano dori"])[0].notes == ()
    assert caplog.messages == [found[0].notes[0], found[1].notes[0], found[2].notes[0], found[3].notes[0]]
    quiet = Translator(translator.scorer, translator.tokenizers, translator.decoding, tell=False)
    assert quiet.translate([family])[0].notes and len(caplog.messages) == 4
    scored = translator.score([("bano \u4e2d dori", "bano"), ("bano", "bano")])
    assert [one.notes for one in scored] == [("never seen in training and left out: \u4e2d",), ()]
    assert "<unk>" not in "".join(texts_of(found))


def test_bytes_of_an_emoji_become_the_emoji() -> None:
    """facebookresearch/fairseq#4603; argosopentech/argos-translate#411; huggingface/transformers#47473."""
    tokenizers = train_tokenizers(TextConfig(vocabulary_size=300), [*LINES, "\U0001f917"], LINES, seed=1)
    translator = Translator(CopyScorer(tokenizers.target.size), tokenizers, DecodingConfig(beam_size=1))
    texts = ["bano \U0001f917 dori", "type <0xF0> or </s> here"]
    kept = ["bano \U0001f917 dori"]
    assert texts_of(translator.translate(texts))[:1] == kept
    everything = train_tokenizers(TextConfig(vocabulary_size=400), [*LINES, *texts], LINES, seed=1)
    translator = Translator(CopyScorer(everything.target.size), everything, DecodingConfig(beam_size=1))
    assert texts_of(translator.translate(texts)) == texts


def test_an_n_best_list_that_is_short_says_so() -> None:
    """facebookresearch/fairseq#7 and #8, espnet/espnet#4981: there are no more outputs than the vocabulary allows."""
    translator = copier("words", DecodingConfig(beam_size=50, n_best=50, max_length=1))
    short, blank = translator.translate(["bano dori", ""])
    texts = [short.text, *texts_of(short.alternatives)]
    # One word of the vocabulary, or nothing at all.
    assert len(set(texts)) == len(texts) == translator.tokenizers.target.size - 1
    assert f"there are {len(texts)} translations, fewer than the 50 wanted" in short.notes
    assert blank == Translation("")
    (whole,) = translator.translate(["bano dori"], options={"n_best": 3})
    assert len(whole.alternatives) == 2
    assert not any("wanted" in note for note in whole.notes)


def test_a_cut_run_of_bytes_gives_one_mark() -> None:
    """google/sentencepiece#906 and #852."""
    tokenizers = make_tokenizers("bytes")
    cut = [byte + 2 for byte in "\U0001f680".encode()[:3]]
    scorer = CopyScorer(tokenizers.target.size, says=[*cut, END_ID])
    translator = Translator(scorer, tokenizers, DecodingConfig(beam_size=1))
    assert translator.translate(["bano dori"])[0].text == "\ufffd"


def test_half_a_surrogate_pair_becomes_a_mark() -> None:
    """huggingface/transformers#8886 and #43459; openai/tiktoken#82."""
    tokenizers = train_tokenizers(TextConfig(tokenizer="characters"), [*LINES, "\ufffd\U0001f600"], LINES, seed=1)
    translator = Translator(CopyScorer(tokenizers.target.size), tokenizers, DecodingConfig(beam_size=1))
    lone, pair = json.loads('["bano \\ud83d dori", "bano \\ud83d\\ude00 dori"]')
    found = translator.translate([lone, pair, "bano " + "\ud83d" + "\ude00"])
    assert texts_of(found) == ["bano \ufffd dori", "bano \U0001f600 dori", "bano \U0001f600"]


def test_outputs_stay_on_their_line() -> None:
    tokenizers = make_tokenizers("bytes")
    breaking = [byte + 2 for byte in b"\n\r\0"]
    translator = Translator(
        CopyScorer(tokenizers.target.size, says=breaking), tokenizers, DecodingConfig(beam_size=4, n_best=4)
    )
    (found,) = translator.translate(["bano\ndori\r\nfelu\0"])
    for one in (found, *found.alternatives):
        assert not set(one.text) & set("\n\r\0")


def test_neighbours_windows_and_order_change_nothing(network_translator: Translator) -> None:
    """OpenNMT/OpenNMT-py#2208; facebookresearch/fairseq#3078; OpenNMT/OpenNMT-py#137 and #994; joeynmt/joeynmt#50."""
    lines = [*LINES, "bano " * 40 + "dori"]
    together = network_translator.translate(lines)
    backwards = network_translator.translate(lines[::-1])[::-1]
    alone = [network_translator.translate([line])[0] for line in lines]
    windows = list(network_translator.translate_lines(lines, window=2))
    small = network_translator.translate(lines, options={"batch_tokens": 1})
    for other in (backwards, alone, windows, small):
        assert texts_of(other) == texts_of(together)
        for one, two in zip(other, together, strict=True):
            assert one.score == pytest.approx(two.score, abs=1e-4)


def test_one_line_is_answered_before_the_next_is_read() -> None:
    """marian-nmt/marian-dev#274; neulab/xnmt#530; awslabs/sockeye#175."""
    translator = copier()
    asked: list[str] = []

    def lines() -> Iterator[str]:
        for line in LINES:
            asked.append(line)
            yield line

    for number, translation in enumerate(translator.translate_lines(lines(), window=1), start=1):
        assert translation.text == LINES[number - 1]
        assert len(asked) == number


def test_repetition_ends_at_a_limit_that_follows_the_source() -> None:
    """argosopentech/argos-translate#444; LibreTranslate/LibreTranslate#168."""
    tokenizers = make_tokenizers("words")
    bano = tokenizers.target.encode("bano")
    scorer = CopyScorer(tokenizers.target.size, certainty=0.99, says=bano * 5000)
    translator = Translator(scorer, tokenizers, DecodingConfig(beam_size=1))
    loop, other = translator.translate(["dori felu", "felu"])
    assert len(loop.tokens) <= 2 * 3 + 20
    assert not loop.finished
    assert not other.finished
    broken = translator.translate(["dori felu"], options={"no_repeat_ngram": 2})[0]
    assert "bano bano bano" not in broken.text


@pytest.mark.parametrize("kind", ["bpe", "characters", "words"])
def test_a_prefix_stands_first(kind: str) -> None:
    translator = copier(kind)
    found = translator.translate(["bano dori", "felu gasi"], prefixes=["hemo ", ""])
    assert found[0].text.startswith("hemo")
    assert found[1].text == "felu gasi"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "words"])
def test_phrases_appear(kind: str) -> None:
    translator = copier(kind, DecodingConfig(beam_size=4))
    found = translator.translate(["bano dori", "felu gasi"], constraints=[["kato", "luni bano"], []])
    assert "kato" in found[0].text
    assert "luni bano" in found[0].text
    assert not found[0].notes
    assert found[1].text == "felu gasi"


def test_wishes_that_cannot_be_met_are_refused() -> None:
    translator = copier("words")
    with pytest.raises(DataError, match="1 prefixes for 2 texts"):
        translator.translate(["bano", "dori"], prefixes=["a"])
    with pytest.raises(DataError, match=r"line 2: the phrase 'nix' cannot be spelt"):
        translator.translate(["bano", "dori"], constraints=[[], ["nix"]])
    with pytest.raises(DataError, match=r"line 1: the prefix 'bano nix' cannot be spelt"):
        translator.translate(["bano"], prefixes=["bano nix"])
    longest = copier("words", max_steps=5)
    found = longest.translate(["bano", "bano"], prefixes=["bano " * 5, "bano " * 4])
    assert "line 1, forced prefix: 6 tokens" in str(found[0].error)
    assert found[1].error is None
    with pytest.raises(DataError, match="phrase that the translation must hold is empty"):
        translator.translate(["bano"], constraints=[[" "]])
    with pytest.raises(DataError, match="1 constraints for 2 texts"):
        list(translator.translate_lines(["bano", "dori"], constraints=[["kato"]]))


def test_options_are_checked_by_name_and_change_one_call_only() -> None:
    translator = copier("words")
    before = translator.decoding
    with pytest.raises(ConfigError, match="did you mean beam_size"):
        translator.translate(["bano"], options={"beam_sise": 3})
    with pytest.raises(ConfigError, match="n_best 9 needs a beam_size of at least 9"):
        translator.translate(["bano"], options={"n_best": 9})
    (found,) = translator.translate(["bano"], options={"n_best": 3, "beam_size": 3})
    assert len(found.alternatives) == 2
    assert translator.decoding is before
    assert not translator.translate(["bano"])[0].alternatives
    with pytest.raises(ConfigError, match="replace_unknown needs a model whose tokenisers are `words`, not bytes"):
        copier("bytes").translate(["bano"], options={"replace_unknown": True})


def test_alternatives_are_distinct_and_ordered(network_translator: Translator) -> None:
    (found,) = network_translator.translate(["bano dori"], options={"n_best": 6, "beam_size": 6})
    everything = [found, *found.alternatives]
    scores = [one.score for one in everything if one.score is not None]
    assert len(scores) == 6
    assert scores == sorted(scores, reverse=True)
    assert len({one.tokens for one in everything}) == 6


def test_equal_texts_are_merged_on_request() -> None:
    """Several ways to cut one text into pieces are one answer, with the score of the best."""
    translator = copier("bpe", certainty=0.4)
    options = {"n_best": 12, "beam_size": 12}
    (spelt,) = translator.translate(["ba"], options=options)
    (merged,) = translator.translate(["ba"], options={**options, "merge_equal_texts": True})
    texts = [merged.text, *texts_of(merged.alternatives)]
    assert len(set(texts)) == len(texts)
    assert merged.text == spelt.text
    assert merged.score == spelt.score
    assert set(texts) == {spelt.text, *texts_of(spelt.alternatives)}


def test_unknown_words_become_the_words_looked_at() -> None:
    lines = ["bano dori", "bano dori", "rare"]
    config = TextConfig(tokenizer="words", minimum_count=3)
    tokenizers = train_tokenizers(config, lines, lines, seed=1)
    translator = Translator(CopyScorer(tokenizers.target.size), tokenizers, DecodingConfig(beam_size=1))
    options = {"replace_unknown": True}
    assert translator.translate(["bano Zoltan dori"], options=options)[0].text == "bano Zoltan dori"
    assert "<unk>" not in translator.translate(["bano Zoltan dori"])[0].text
    assert "Zoltan" not in translator.translate(["bano Zoltan dori"])[0].text


def test_forced_scores_are_those_of_the_search(network_translator: Translator) -> None:
    translations = network_translator.translate(LINES, options={"max_length": 200})
    for line, one in zip(LINES, translations, strict=True):
        (scored,) = network_translator.score([(line, one.text)])
        if not one.finished or scored.tokens != one.tokens:
            continue
        assert scored.score == pytest.approx(one.score, abs=1e-4)
        assert scored.token_scores == pytest.approx(one.token_scores, abs=1e-4)
        assert scored.log_probability == pytest.approx(sum(one.token_scores), abs=1e-4)
    scores = network_translator.score([("bano dori", "felu"), ("", ""), ("bano", "\ud83d")])
    assert all(math.isfinite(one.log_probability) and one.error is None for one in scores)
    assert scores[1].tokens == ("</s>",)


def test_sampling_does_not_depend_on_neighbours(network_translator: Translator) -> None:
    options = {"method": "sample", "seed": 5}
    lines = [LINES[0], "", *LINES[1:], LINES[0]]
    together = texts_of(network_translator.translate(lines, options=options))
    assert texts_of(network_translator.translate(lines, options=options)) == together
    for window in (1, 2):
        assert texts_of(list(network_translator.translate_lines(lines, window=window, options=options))) == together
    assert texts_of(network_translator.translate(lines, options={**options, "seed": 6})) != together
    later = network_translator.translate(lines[2:], options=options, first_line=3)
    assert texts_of(later) == together[2:]
    assert together[0] != together[-1]
