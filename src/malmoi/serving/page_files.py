"""The files of the web page, and the policy that it is served under.

In: the package's own folder `page/`. Out: contents with their media types and tags, by the path that a browser
asks for.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from malmoi.report.explanation import inline_elements

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
FRONT = "index.html"


@dataclass(frozen=True)
class PageFile:
    """One answer: `etag` is quoted and changes with the content."""

    content: bytes
    media_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """All files by path, as `main.js` or `vendor/preact.js`; the page itself also stands under the empty path."""
    found = {path: page_file(path, content) for path, content in walk(files("malmoi.serving") / "page", "")}
    return {"": found[FRONT], **found}


def walk(folder: Traversable, above: str) -> Iterator[tuple[str, bytes]]:
    """Paths and contents, folder by folder; what has no media type of its own is no file of the page."""
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from walk(entry, f"{above}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield above + entry.name, entry.read_bytes()


def page_file(path: str, content: bytes) -> PageFile:
    """A file with what its headers say."""
    return PageFile(content, MEDIA_TYPES[path.rpartition(".")[2]], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def page_policy() -> str:
    """The value of Content-Security-Policy: nothing from elsewhere, and no inline script or style but those of an
    explanation, by their hashes: a frame that is given its document as text stands under the policy of the page.
    """
    hashes = {name: inline_hash(text) for name, text in inline_elements().items()}
    rules = {
        "default-src": "'self'",
        "script-src": f"'self' {hashes['script']}",
        "style-src": f"'self' {hashes['style']}",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def inline_hash(text: str) -> str:
    """The source expression that lets an inline element of exactly this text through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
