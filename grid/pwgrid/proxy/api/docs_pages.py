"""The API's description at /openapi.json, and its documentation at /docs.

Neither takes a token: they have no data of this grid. All files come from here, so that browsers ask no other host.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pwgrid.proxy.api.dashboard_files import HEADERS, TYPES
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import nothing_at

router: Final = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)
_SWAGGER: Final = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")

_OF_DOCS: Final = {
    # The page's own first script is inline, and so are Swagger's styles and icons.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    **HEADERS,
}


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
    return Response(_swagger_file(name), headers=headers, media_type=TYPES[Path(name).suffix])


@cache
def _swagger_file(name: str) -> bytes:
    """Reads a file of fastapi-offline without importing it, which would make an application of its own."""
    return Path(str(distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}"))).read_bytes()
