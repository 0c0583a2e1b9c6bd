"""Which served language a client's code means."""

import pytest

from malmoi.serving.languages import NAMES, maybe_match, name_of


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("EN-US", "en"),
        ("en_GB", "en"),
        ("pt-BR", "pb"),
        ("PB", "pb"),
        ("zh-Hans", "zh"),
        ("zh-Hant", None),
        ("zt", None),
        ("de", None),
        ("", None),
        ("e", None),
    ],
)
def test_codes(wanted: str, found: str | None) -> None:
    assert maybe_match(wanted, ["en", "pb", "zh"]) == found


def test_a_served_region_is_found_by_its_own_code_alone() -> None:
    assert maybe_match("pt-br", ["pt-BR"]) == "pt-BR"
    assert maybe_match("pb", ["pt-BR"]) == "pt-BR"
    assert maybe_match("pt", ["pt-BR"]) is None


def test_names() -> None:
    assert (name_of("ko"), name_of("pt-BR"), name_of("tlh")) == ("Korean", "Portuguese (BR)", "tlh")
    assert len(NAMES) > 120 and all(code == code.lower() and name for code, name in NAMES.items())
