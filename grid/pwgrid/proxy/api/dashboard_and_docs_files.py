"""The files of the dashboard's page, and of the API's documentation at /docs. None of it takes a token: it is code and
words, and no data of this grid. All files come from here, so that browsers ask no other host."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from pwgrid.proxy import dashboard
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import nothing_at

_DASHBOARD: Final = Path(dashboard.__file__).with_name("static")
_SWAGGER: Final = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")

_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain",
}

_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

_OF_DASHBOARD: Final = {
    # The page loads only its own files, and no other site may frame it, to have its buttons clicked.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    **_HEADERS,
    "Cache-Control": "no-cache",  # browsers ask each time, and mostly get a 304
}

_OF_DOCS: Final = {
    # The page's own first script is inline, and so are Swagger's styles and icons.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    **_HEADERS,
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


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@router.get("/docs")
async def docs() -> Response:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="pwgrid API",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    return Response(page.body, headers=_OF_DOCS, media_type="text/html")


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    if name not in _SWAGGER:
        raise nothing_at(f"/docs/{name}")
    headers = {**_OF_DOCS, "Cache-Control": "max-age=86400"}
    return Response(_swagger_file(name), headers=headers, media_type=_TYPES[Path(name).suffix])


def file_of_dashboard(name: str, request: Request) -> Response:
    """Raises Refusal(404) if there is none of that name."""
    if (content := _dashboard_files().get(name)) is None:
        raise nothing_at(f"/dashboard/{name}")
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_OF_DASHBOARD, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(None, 304, headers)
    return Response(content, 200, headers, _TYPES[Path(name).suffix])


@cache
def _dashboard_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _DASHBOARD.iterdir() if path.suffix in _TYPES}


@cache
def _swagger_file(name: str) -> bytes:
    """Reads a file of fastapi-offline without importing it, which would make an application of its own."""
    return Path(str(distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}"))).read_bytes()
