"""What lies beside the weights of an exported model, so that it can be used without malmoi.

In: a model. Out, in a folder: its tokenisers, `translate.py`, `decoding.json` (what may not come out, how outputs are
ranked and how long they may be) and a `README.md` that tells all of it.
"""

import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from malmoi.checkpoint import TOKENIZER_FOLDER, Model
from malmoi.config.decoding import DecodingConfig
from malmoi.export.names import Names

SETTINGS_FILE = "decoding.json"
README_FILE = "README.md"
SCRIPT_FILE = "translate.py"
SUBWORDS = ("bpe", "unigram")


def write_beside(model: Model, names: Names, maybe_positions: int | None, folder: Path) -> None:
    """Write all of it; `maybe_positions` is the size of the copy's table of positions, if it has one."""
    model.tokenizers.save(folder / TOKENIZER_FOLDER)
    settings = decoding_settings(model, names, maybe_positions)
    text = json.dumps(settings, ensure_ascii=False, indent=1) + "\n"
    (folder / SETTINGS_FILE).write_text(text, encoding="utf-8", newline="\n")
    (folder / SCRIPT_FILE).write_bytes(files("malmoi.export").joinpath("standalone.py").read_bytes())
    (folder / README_FILE).write_text(describe(model, settings), encoding="utf-8", newline="\n")


def decoding_settings(model: Model, names: Names, maybe_positions: int | None) -> dict[str, Any]:
    """The model's decoding defaults as far as they can be followed, and the tokens that may not come out."""
    decoding = model.config.decoding
    return {
        "suppress": [names.target[index] for index in model.tokenizers.target.forbidden_ids()],
        "beam_size": decoding.beam_size,
        "length_penalty": "none" if decoding.length_alpha == 0 else decoding.length_penalty,
        "length_alpha": decoding.length_alpha,
        "min_length": decoding.min_length,
        "max_length": decoding.max_length,
        "max_length_ratio": decoding.max_length_ratio,
        "max_length_extra": decoding.max_length_extra,
        "max_positions": maybe_positions,
    }


def describe(model: Model, settings: dict[str, Any]) -> str:
    """`README.md`."""
    code, rules = describe_tokenizer(model)
    return README.format(
        version=version("malmoi"),
        packages="ctranslate2 sentencepiece" if needs_sentencepiece(model) else "ctranslate2",
        code=code,
        rules=rules,
        suppress=len(settings["suppress"]),
        suppressed=" ".join(f"`{name}`" for name in settings["suppress"]),
        beam_size=settings["beam_size"],
        formula=describe_formula(model.config.decoding),
        positions="no table of positions, so that there is no longest sentence"
        if settings["max_positions"] is None
        else f"positions for {settings['max_positions']} tokens on each side, `</s>` and `<s>` included",
    )


def needs_sentencepiece(model: Model) -> bool:
    return bool({model.tokenizers.source.kind, model.tokenizers.target.kind} & set(SUBWORDS))


def describe_tokenizer(model: Model) -> tuple[str, str]:
    """How text becomes tokens, for those who do it themselves: code, and what is to be known of it."""
    source, target = model.tokenizers.source.kind, model.tokenizers.target.kind
    if source not in SUBWORDS:
        rules = (
            f"The source's tokeniser is of the kind `{source}`, the target's `{target}`: see `Side` in `translate.py`"
        )
        return OWN_TOKENIZER, rules
    side = "shared" if model.tokenizers.shared else "source"
    return SENTENCEPIECE.format(side=side), RULES.format(unseen=len(model.tokenizers.unseen_source_ids))


def describe_formula(decoding: DecodingConfig) -> str:
    """What becomes of the length formula, and of what CTranslate2 has no word for."""
    match "none" if decoding.length_alpha == 0 else decoding.length_penalty:
        case "divide":
            formula = f"`length_penalty={decoding.length_alpha:g}` with `return_end_token=True` is its formula"
        case "none":
            formula = "`length_penalty=0` is its formula, but lets CTranslate2 stop at the first output that ends"
        case "wu":
            formula = (
                f"its formula, a sum of log-probabilities over ((5 + n) / 6)^{decoding.length_alpha:g} (Wu et al., "
                "2016), has no counterpart: ask for as many outputs as the beam is wide and rank them by it, as "
                "`rank` in `translate.py` does"
            )
    lost = {
        "coverage_beta": decoding.coverage_beta > 0,
        "diverse_groups": decoding.diverse_groups > 1,
        "no_repeat_ngram (pass `no_repeat_ngram_size`)": decoding.no_repeat_ngram > 0,
        "min_length_ratio": decoding.min_length_ratio > 0,
        'method = "sample" (pass `sampling_topk` and its like)': decoding.method == "sample",
        "replace_unknown": decoding.replace_unknown,
        "merge_equal_texts": decoding.merge_equal_texts,
    }
    asked = [name for name, is_set in lost.items() if is_set]
    return formula + (f". Set in the model and not followed: {', '.join(asked)}" if asked else "")


README = """# A model for CTranslate2

Made by malmoi {version}. It computes what the model did: `verification.json` holds what was compared.

    pip install {packages}
    python translate.py < sentences > translations

`translate.py` needs nothing else, is short, and is yours to change; in Python, from this folder:

    from translate import Exported
    print(Exported(".").translate(["..."]))

## By hand

    import ctranslate2, json
    settings = json.load(open("decoding.json", encoding="utf-8"))
    translator = ctranslate2.Translator(".")
{code}
    results = translator.translate_batch(
        rows,
        beam_size={beam_size},
        suppress_sequences=[[token] for token in settings["suppress"]],
        min_decoding_length=settings["min_length"],
        max_decoding_length=200,
        max_input_length=0,
    )

* {rules}.
* The text of an output is `Exported(".").decode(results[0].hypotheses[0])`.
* `</s>` behind the source and the start of the target are added by CTranslate2 itself (`config.json`).
* {suppress} token(s) must be suppressed, or they may come out: {suppressed}.
* CTranslate2 cuts a source above `max_input_length` (1024) and an output above `max_decoding_length` (256) without a
  word. Here are {positions}; beyond that it fails.
* The shortest output is one token there, unless `min_decoding_length=0`.
* Ranking: CTranslate2 divides a sum of log-probabilities by n^`length_penalty`, and counts `</s>` in n only with
  `return_end_token=True`. The model was measured with beam {beam_size}; {formula}.
* CTranslate2's beam ends when as many outputs have ended as the beam is wide (times `patience`); malmoi's ends when no
  other can win. Suppressed tokens leave their share of probability to the others there, and none in malmoi. A beam may
  therefore choose another of two close outputs; greedy search (`beam_size=1`) chooses the same.
"""

SENTENCEPIECE = """    import sentencepiece, unicodedata
    processor = sentencepiece.SentencePieceProcessor(model_file="tokenizer/{side}-pieces.model")
    rows = [processor.encode(unicodedata.normalize("NFC", text), out_type=str) for text in texts]"""
OWN_TOKENIZER = """    from translate import Exported
    exported = Exported(".")
    rows = [exported.encode(text) for text in texts]"""
RULES = """Text must be in composed form (NFC). Two more rules, which `translate.py` follows: U+2581, U+2585 and U+001A
  in a text are written as U+001A and a digit, since SentencePiece has a use of its own for them; and characters that
  training never saw are left out ({unseen} ids, `unseen_source_ids` in `tokenizer/tokenizer.json`)"""
