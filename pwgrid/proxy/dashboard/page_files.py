"""The files of the page, from the package itself: no build, nothing from elsewhere. Read once, at the first request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).with_name("static")

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

HEADERS: Final = {
    # Nothing but its own files, and nobody may put it into a frame and have its buttons clicked.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, and then mostly not sent again
}


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is served."""

    content: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """All of them by name."""
    return {path.name: _read(path) for path in STATIC.iterdir() if path.suffix in _TYPES}


def wants_page(accept: str) -> bool:
    """Whether this Accept header is of a browser that opens a page: fetch() and command line tools name no HTML."""
    return "text/html" in accept.lower()


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
