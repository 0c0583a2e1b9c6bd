"""What a person does on the web page, for tests in a real browser."""

from browser import Browser

TEXT = "two small dogs sleep"
OUTPUT = "document.querySelector('#output').innerText"
WHOLE = "document.querySelectorAll('#output .word').length"
MARKUP = "<img/src=x/onerror=alert(1)> <b>two</b>"


def write(page: Browser, text: str) -> None:
    page.run("document.querySelector('#source').focus()")
    page.type(text)


def translate(page: Browser, text: str = TEXT) -> None:
    write(page, text)
    page.wait(WHOLE)


def focused(page: Browser) -> str:
    return page.run("document.activeElement.textContent")


def rest(page: Browser, milliseconds: int) -> None:
    """Longer than the page waits before it acts by itself."""
    page.run(f"new Promise((done) => setTimeout(done, {milliseconds}))")
