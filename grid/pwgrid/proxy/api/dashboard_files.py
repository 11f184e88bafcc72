"""The files of the dashboard's page. They take no token: they are code and words, and no data of this grid."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pwgrid.proxy import dashboard
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import nothing_at

_DASHBOARD: Final = Path(dashboard.__file__).with_name("static")

TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain",
}

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

_OF_DASHBOARD: Final = {
    # The page loads only its own files, and no other site may frame it, to have its buttons clicked.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    **HEADERS,
    "Cache-Control": "no-cache",  # browsers ask each time, and mostly get a 304
}

router: Final = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)


@router.get("/favicon.ico", status_code=204)
async def icon() -> None:
    """Answers browsers, which always ask for an icon, with nothing."""


@router.get("/dashboard")
async def page(request: Request) -> Response:
    return file_of_dashboard("index.html", request)


@router.get("/dashboard/")
async def page_with_slash(request: Request) -> Response:
    """Redirects to the path without the slash, where the page's relative links are right."""
    return RedirectResponse(f"../dashboard?{request.url.query}" if request.url.query else "../dashboard")


@router.get("/dashboard/{name}")
async def file(name: str, request: Request) -> Response:
    return file_of_dashboard(name, request)


def file_of_dashboard(name: str, request: Request) -> Response:
    """Raises Refusal(404) if there is none of that name."""
    if (content := _dashboard_files().get(name)) is None:
        raise nothing_at(f"/dashboard/{name}")
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_OF_DASHBOARD, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(None, 304, headers)
    return Response(content, 200, headers, TYPES[Path(name).suffix])


@cache
def _dashboard_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _DASHBOARD.iterdir() if path.suffix in TYPES}
