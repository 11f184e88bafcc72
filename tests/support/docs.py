"""The documentation as its tests see it: pages, blocks of code with what is said about them, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.grid import ROOT

INDEX = ROOT / "docs/index.md"

_MARK = re.compile(r"<!-- (not run|run by|checked by): (.+?) -->", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A block of code. `mark` is what the comment before it says: "not run", "run by", "checked by" or nothing, with
    `about`: the reason, or the test."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    about: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def _tokens(page: Path) -> list[Token]:
    return _MARKDOWN.parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    """Those of a page, in their order."""
    before: Token | None = None
    for token in _tokens(page):
        if token.type == "fence":
            assert token.map is not None
            mark = _MARK.fullmatch(before.content.strip()) if before is not None else None
            about = " ".join(mark[2].split()) if mark else ""
            yield Block(page, token.map[0] + 1, token.info, token.content, mark[1] if mark else "", about)
        before = token if token.type == "html_block" else None


def links(page: Path) -> Iterator[str]:
    """Where a page leads to."""
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrs.get("href" if child.type == "link_open" else "src")
            if child.type in ("link_open", "image") and isinstance(target, str):
                yield target


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them, and those that it sets itself."""
    tokens = _tokens(page)
    found = set(re.findall(r'<a id="([^"]+)">', page.read_text()))
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(slug if slug not in found else f"{slug}-1")
    return found


def listed() -> list[Path]:
    """The pages of docs/ that the index names, in its order."""
    return [INDEX.parent / target for target in links(INDEX) if re.fullmatch(r"[\w-]+\.md", target)]


PAGES = [*sorted(ROOT.glob("*.md")), INDEX, *listed()]
"""What is held to all of the rules; a page comes to them by way of the index."""
