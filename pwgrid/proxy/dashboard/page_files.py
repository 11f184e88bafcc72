"""Reads the dashboard's files from this package, once, at the first request."""

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
    # The page loads only its own files, and no other site may frame it, to have its buttons clicked.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers ask each time, and mostly get a 304
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    return {path.name: _read(path) for path in STATIC.iterdir() if path.suffix in _TYPES}


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
