"""The demo's page: complete, self-contained, and safe whatever the data says."""

from html.parser import HTMLParser

from malmoi.report.page import AnsweredWord, DemoReport, ScoreRow, demo_page

VOID = {"meta", "br"}


class Balance(HTMLParser):
    """Fails on an end tag that does not close the last open one, and gathers addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(word: str) -> DemoReport:
    return DemoReport(
        title=f"About {word}",
        paragraphs=[f"What {word} is."],
        facts={word: word},
        curves_svg='<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        rows=[AnsweredWord(word, "AH", ("AH", word)), AnsweredWord("cat", "K AE", ("K AE T",))],
        scores=[ScoreRow("word error", "33.0 %", f"case:mixed|{word}")],
        commands=[(f"echo {word} | malmoi translate demo", f"Say {word}.")],
    )


def test_page_is_well_formed_and_loads_nothing() -> None:
    page = demo_page(report("hello"))
    balance = Balance()
    balance.feed(page)
    assert balance.open == [] and balance.addresses == []
    assert "url(" not in page and "@import" not in page
    assert page.startswith("<!doctype html>") and '<meta charset="utf-8">' in page


def test_right_and_wrong_are_said_in_words() -> None:
    page = demo_page(report("hello"))
    assert page.count(">right</span>") == 1
    assert page.count(">wrong</span>") == 1
    assert "K AE T" in page and "case:mixed|hello" in page


def test_all_text_is_escaped() -> None:
    page = demo_page(report("<script>alert('x')</script>&"))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 9
