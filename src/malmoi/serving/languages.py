"""Names of languages, and which code of a client means which language of a model.

In: codes as clients and operators write them. Out: the code of a served model, or a name that people read.
"""

from collections.abc import Collection

TABLE = """
af Afrikaans | am Amharic | ar Arabic | as Assamese | ast Asturian | az Azerbaijani | ba Bashkir | be Belarusian
bg Bulgarian | bn Bengali | bo Tibetan | br Breton | bs Bosnian | ca Catalan | ceb Cebuano | ckb Central Kurdish
cs Czech | cv Chuvash | cy Welsh | da Danish | de German | dv Divehi | dz Dzongkha | el Greek | en English
eo Esperanto | es Spanish | et Estonian | eu Basque | fa Persian | fi Finnish | fil Filipino | fo Faroese
fr French | fy Western Frisian | ga Irish | gd Scottish Gaelic | gl Galician | gn Guarani | gu Gujarati | ha Hausa
he Hebrew | hi Hindi | hr Croatian | hsb Upper Sorbian | ht Haitian Creole | hu Hungarian | hy Armenian
id Indonesian | ig Igbo | is Icelandic | it Italian | ja Japanese | jv Javanese | ka Georgian | kab Kabyle
kk Kazakh | km Khmer | kn Kannada | ko Korean | ku Kurdish | ky Kyrgyz | la Latin | lb Luxembourgish | lo Lao
lt Lithuanian | lv Latvian | mai Maithili | mg Malagasy | mi Maori | mk Macedonian | ml Malayalam | mn Mongolian
mr Marathi | ms Malay | mt Maltese | my Burmese | nb Norwegian Bokmål | ne Nepali | nl Dutch | nn Norwegian Nynorsk
no Norwegian | nso Northern Sotho | ny Nyanja | oc Occitan | om Oromo | or Odia | os Ossetian | pa Punjabi
pb Portuguese (Brazil) | pl Polish | ps Pashto | pt Portuguese | qu Quechua | rm Romansh | ro Romanian | ru Russian
rw Kinyarwanda | sa Sanskrit | sah Yakut | sd Sindhi | se Northern Sami | si Sinhala | sk Slovak | sl Slovenian
so Somali | sq Albanian | sr Serbian | st Southern Sotho | su Sundanese | sv Swedish | sw Swahili | ta Tamil
te Telugu | tg Tajik | th Thai | ti Tigrinya | tk Turkmen | tl Tagalog | tn Tswana | tr Turkish | ts Tsonga
tt Tatar | ug Uyghur | uk Ukrainian | ur Urdu | uz Uzbek | vi Vietnamese | vo Volapük | wa Walloon | wo Wolof
xh Xhosa | yi Yiddish | yo Yoruba | zh Chinese | zt Chinese (traditional) | zu Zulu

"""
"""English names of ISO 639 codes; `pb` and `zt` are codes of LibreTranslate."""

ENTRIES = [entry.split(maxsplit=1) for line in TABLE.strip().split("\n") for entry in line.split("|")]
NAMES: dict[str, str] = {code: name.strip() for code, name in ENTRIES}

SAME = ({"pb", "pt-br"}, {"zh", "zh-hans", "zh-cn"}, {"zt", "zh-hant", "zh-tw"}, {"no", "nb"}, {"tl", "fil"})
"""Codes that mean the same; lower case."""


def name_of(code: str) -> str:
    """What people call a language; the code itself where we do not know."""
    plain = code.lower()
    primary = plain.partition("-")[0]
    known = NAMES.get(plain) or NAMES.get(primary)
    if known is None:
        return code
    return known if plain in NAMES else f"{known} ({code.partition('-')[2]})"


def maybe_match(wanted: str, served: Collection[str]) -> str | None:
    """The served code that a client's code means: the same but for case, another name of it, or its language without a
    region (`EN-US` for `en`); None where there is none."""
    plain = wanted.strip().lower().replace("_", "-")
    by_code = {code.lower(): code for code in served}
    same = next((codes for codes in SAME if plain in codes), {plain})
    found = plain if plain in by_code else next((code for code in sorted(same) if code in by_code), None)
    if found is None:
        # A script is another way of writing and no region, so that `zh-Hant` is not served by `zh`.
        primary, _, rest = plain.partition("-")
        if len(rest) != 4 and plain == next(iter(same)):
            found = primary if primary in by_code else None
    return None if found is None else by_code[found]
