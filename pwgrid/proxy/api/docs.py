"""The API's documentation at /docs, with all files from fastapi-offline, so that browsers ask no other host."""

from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import Refusal

ASSETS: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}

_POLICY: Final = {
    # The page's own first script is inline, and so are Swagger's styles and icons.
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'self'",
            "script-src 'self' 'unsafe-inline'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def docs_routes() -> APIRouter:
    """Makes the routes of /docs and its files. They ask for no token: they describe the API, not this grid."""
    router = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)

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
        return Response(page.body, headers=_POLICY, media_type="text/html")

    @router.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise Refusal(404, f"there is nothing at /docs/{name[:100]}")
        headers = {**_POLICY, "Cache-Control": "max-age=86400"}
        return Response(_content(name), headers=headers, media_type=ASSETS[name])

    return router


@cache
def _content(name: str) -> bytes:
    """Reads a file of fastapi-offline without importing it, which would make an application of its own."""
    return Path(str(distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}"))).read_bytes()
