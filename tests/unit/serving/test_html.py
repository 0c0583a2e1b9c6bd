"""Tags of a translated document: never lost, never doubled, in an order that closes what was opened."""

import random
import re
import time
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.html_tags import Reader, is_well_formed, paths

from malmoi.serving.html import Pairing, render
from malmoi.serving.markup import Run, read_markup, read_parts

WORD = re.compile(r"\S+")


def pairing(source: str, target: str, draw: random.Random, *, share: float = 0.8) -> Pairing:
    """Words paired by chance, some with nothing."""
    sources = tuple(one.span() for one in WORD.finditer(source))
    targets = tuple(one.span() for one in WORD.finditer(target))
    pairs = tuple(
        (draw.randrange(len(sources)), number) for number in range(len(targets)) if sources and draw.random() < share
    )
    return Pairing(sources, targets, pairs, ())


def translated(text: str, seed: int) -> str:
    """A document whose words are turned round and paired by chance, as a model of no sense would have them."""
    draw = random.Random(seed)
    parts: list[str] = []
    for part in read_parts(text):
        if isinstance(part, str):
            parts.append(part)
            continue
        words = part.text.split()
        draw.shuffle(words)
        core = " ".join(words[: draw.randint(0, len(words))] + ["<&>"] * draw.randint(0, 2))
        space = (part.text[: len(part.text) - len(part.text.lstrip())], part.text[len(part.text.rstrip()) :])
        target = f"{space[0]}{core}{space[1]}"
        parts.append(render(part, target, pairing(part.text, target, draw)))
    return "".join(parts)


TEXTS = st.sampled_from(["one", " two ", "three. ", "&lt;", "a&amp;b", " ", "\n", "é&nbsp;ü", ""])
INLINE = st.sampled_from(["b", "i", "a", "span", "em"])
BLOCKS = st.sampled_from(["div", "ul", "blockquote", "section"])
SINGLES = st.sampled_from(
    ["<img src='x>y'>", "<br>", "<wbr/>", "<!-- <b> -->", "<code>x <i>y</i></code>", "<script>a<b</script>", "<hr>"]
)


def element(name: str, inside: str, number: int) -> str:
    return f'<{name} id="{number}">{inside}</{name}>'


INLINES = st.recursive(
    TEXTS | SINGLES.filter(lambda one: one not in ("<hr>", "<br>")),
    lambda inner: st.builds(element, INLINE, inner, st.integers(0, 99)) | st.lists(inner, max_size=4).map("".join),
    max_leaves=12,
)
DOCUMENTS = st.recursive(
    INLINES | SINGLES,
    lambda inner: st.builds(element, BLOCKS, inner, st.integers(0, 99)) | st.lists(inner, max_size=4).map("".join),
    max_leaves=6,
)
PARTS = ("<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "<br>", "<a href=x>", "</a>", "<!--", "-->", "x", " y ", "<", ">")
BROKEN = st.lists(st.sampled_from((*PARTS, '"', "'", "=", "&lt", "</", "<!", "<b ", "translate=no>")), max_size=14)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(DOCUMENTS, st.integers(0, 5))
def test_every_tag_is_there_once_and_inside_of_what_it_was_in(document: str, seed: int) -> None:
    before, after = Reader(document), Reader(translated(document, seed))
    assert is_well_formed(before.tags)
    assert is_well_formed(after.tags)
    assert paths(after.tags) == paths(before.tags)
    assert sorted(after.comments) == sorted(before.comments)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(BROKEN.map("".join), st.integers(0, 3))
def test_broken_documents_lose_nothing_either(document: str, seed: int) -> None:
    assert "".join(piece.raw for piece in read_markup(document)) == document
    tags = sorted(piece.raw for piece in read_markup(document) if piece.kind != "text")
    again = translated(document, seed)
    assert sorted(piece.raw for piece in read_markup(again) if piece.kind != "text") == tags


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="ab<>/!-=\"' &;p\n", max_size=60))
def test_pieces_are_the_document(document: str) -> None:
    assert "".join(piece.raw for piece in read_markup(document)) == document
    texts = "".join(part.text if isinstance(part, Run) else "" for part in read_parts(document))
    assert len(texts) <= len(document)


def translate(text: str, target: str, pairs: tuple[tuple[int, int], ...] = ()) -> str:
    """One run with words that are paired as given."""
    (run,) = (part for part in read_parts(text) if isinstance(part, Run))
    sources = tuple(one.span() for one in WORD.finditer(run.text))
    targets = tuple(one.span() for one in WORD.finditer(target))
    whole = (len(run.text) - len(run.text.lstrip()), len(run.text.rstrip())), (0, len(target))
    rendered = render(run, target, Pairing(sources, targets, pairs, (whole,)))
    return "".join(rendered if isinstance(part, Run) else part for part in read_parts(text))


@pytest.mark.parametrize(
    ("source", "target", "pairs", "result"),
    [
        ("<b>small</b> horse", "cheval petit", ((1, 0), (0, 1)), "cheval <b>petit</b>"),
        ("<b>small horse</b>", "cheval petit", (), "<b>cheval petit</b>"),
        ("a <b>b <i>c</i></b>", "C B A", ((2, 0), (1, 1), (0, 2)), "<b><i>C</i> B</b> A"),
        # What has no word of its own in the translation is around the one at the like place.
        ("a <a href='x'>b</a> c", "A C", ((0, 0), (2, 1)), "A <a href='x'>C</a>"),
        # Mixed words: the earlier element ends where the next begins.
        ("<b>a b</b> <i>c</i>", "A C B", ((0, 0), (2, 1), (1, 2)), "<b>A</b> <i>C</i> B"),
        ("<b>a</b><i>b</i>", "X", ((0, 0),), "<b>X</b><i></i>"),
        ("press <kbd>Enter</kbd> now", "jetzt drücken", ((1, 0), (0, 1)), "jetzt drücken <kbd>Enter</kbd>"),
        ("x <img> y", "X Y", ((0, 0), (1, 1)), "X <img> Y"),
        ("<b>Hello </b>you", "Hallo du", ((0, 0), (1, 1)), "<b>Hallo</b> du"),
        ("a < b & c", "A < B & C", (), "A &lt; B &amp; C"),
        ("a < <b>b</b>", "A < B", ((0, 0), (1, 1), (2, 2)), "A &lt; <b>B</b>"),
        ("<b>a</b>", "", (), "<b></b>"),
    ],
)
def test_marks_go_where_their_words_went(
    source: str, target: str, pairs: tuple[tuple[int, int], ...], result: str
) -> None:
    assert translate(source, target, pairs) == result


@pytest.mark.parametrize(
    ("document", "texts"),
    [
        ("<p>a</p> <p>b<br>c</p>", ["a", "b", "c"]),
        ('<p translate="no">a<b>b</b></p>c', ["c"]),
        ('<p class="x notranslate">a <i translate=yes>b</i> c</p>d', ["b", "d"]),
        ("<span translate='no'>a</span> b <code>c</code>", [" b "]),
        ("<code translate=yes>a</code>", ["a"]),
        ("<script>if (a<b) </b>x</script>y<style>p{}</style>", ["y"]),
        ("<title>a &lt;b></title>", ["a <b>"]),
        ("<textarea>a <b>b</textarea>c", ["c"]),
        ("a <b and c", ["a <b and c"]),
        ("<a href=\"x>y\" title='a>b' c=d>e</a>", ["e"]),
        ("<p title=it's>a</p><p title=it's>b</p>", ["a", "b"]),
        ("<!-->a<!--->b<!-- x --!>c", ["abc"]),
        ("<ul><li translate=no>a<li>b</ul>", ["b"]),
        ("1 < 2 &amp; 3 > 2", ["1 < 2 & 3 > 2"]),
        ("<?php a > b ?>", [" b ?>"]),
        ("&#x1F917;&nbsp;x", ["🤗\u00a0x"]),
    ],
)
def test_what_is_translated_and_what_is_not(document: str, texts: list[str]) -> None:
    assert [part.text for part in read_parts(document) if isinstance(part, Run)] == texts


def test_text_outside_of_tags_is_the_translation() -> None:
    rendered = translate("<i>a</i> b", "<script>alert(1)</script> &amp;")
    assert rendered == "<i>&lt;script&gt;alert(1)&lt;/script&gt;</i> &amp;amp;"
    assert "".join(Reader(rendered).texts) == "<script>alert(1)</script> &amp;"


@pytest.mark.parametrize(
    "unit", ["<a ", "<b>", "</b>", "<!--", '<a b="', "<p>a", "<b>a</i>", "<script>", "<", "&lt", "<a b=c "]
)
def test_large_and_broken_documents_take_no_more_than_their_length(unit: str) -> None:
    """Each of these costs the square of its length where a scan begins anew at every tag."""
    document = unit * (100_000 // len(unit))
    parts = read_parts(document)
    assert sum(len(part.text) if isinstance(part, Run) else len(part) for part in parts) <= len(document)
    for part in parts:
        if isinstance(part, Run):
            assert unescape(part.text)
            break


def test_marks_cost_no_more_than_their_number() -> None:
    """Each mark once looked at all words: 11,000 of them took 24 seconds."""
    count = 11_000
    for unit in ("<b>a</b> ", "a <img> ", "<b> </b>a ", " <i></i>"):
        (run,) = (part for part in read_parts(f"x {unit * count} x") if isinstance(part, Run))
        draw = random.Random(1)
        made = pairing(run.text, run.text, draw)
        began_at = time.process_time()
        rendered = render(run, run.text, made)
        assert time.process_time() - began_at < 3.0
        assert rendered.count("<") == unit.count("<") * count


@pytest.mark.parametrize("seed", range(30))
def test_ranges_are_those_of_the_words(seed: int) -> None:
    """Against the definition, word by word."""
    draw = random.Random(seed)
    source, target = (" ".join("a" * draw.randint(1, 3) for _ in range(draw.randint(0, 9))) for _ in range(2))
    made = pairing(source, target, draw, share=0.6)
    for start in range(len(source) + 1):
        for end in range(start + 1, len(source) + 1):
            inside = [number for number, (begin, behind) in enumerate(made.source) if behind > start and begin < end]
            ranges = [made.target[other] for one, other in made.pairs if one in inside]
            if ranges:
                assert made.wanted(start, end) == (min(ranges)[0], max(behind for _, behind in ranges))
            elif inside and target:
                assert made.wanted(start, end) in made.target
            else:
                assert made.wanted(start, end) == (made.place_of(start),) * 2
        before = [number for number, (_, behind) in enumerate(made.source) if behind <= start]
        others = [other for one, other in made.pairs if before and one == before[-1]]
        others = others or [other for one, other in made.pairs if one in before]
        if before and len(before) < len(made.source) and others:
            assert made.place_of(start) == made.target[max(others)][1]
