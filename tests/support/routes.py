"""Every route of the API, and the least role that it takes. A new route stands here, or a test fails."""

from typing import Final

from fastapi.routing import iter_route_contexts

from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.policy.access import Access

OPEN, CLIENT, OPERATOR = "open", "client", "operator"

ROUTES: Final = {
    ("GET", "/"): OPEN,
    ("POST", "/"): OPEN,
    ("GET", "/playwright/{path:path}"): OPEN,
    ("GET", "/json"): OPEN,
    ("GET", "/json/version"): OPEN,
    ("GET", "/json/list"): OPEN,
    ("GET", "/json/protocol"): OPEN,
    ("GET", "/json/new"): OPEN,
    ("PUT", "/json/new"): OPEN,
    ("GET", "/json/activate/{target}"): OPEN,
    ("GET", "/json/close/{target}"): OPEN,
    ("GET", "/cdp"): OPEN,
    ("GET", "/devtools/{path:path}"): OPEN,
    ("POST", "/session"): OPEN,
    ("POST", "/wd/hub/session"): OPEN,
    ("GET", "/favicon.ico"): OPEN,
    ("GET", "/health"): OPEN,
    ("GET", "/health/ready"): OPEN,
    ("GET", "/dashboard"): OPEN,
    ("GET", "/dashboard/"): OPEN,
    ("GET", "/dashboard/{name}"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/docs"): OPEN,
    ("GET", "/docs/{name}"): OPEN,
    ("GET", "/metrics"): OPERATOR,
    ("GET", "/v1/status"): OPERATOR,
    ("GET", "/v1/workers"): OPERATOR,
    ("GET", "/v1/capacity"): OPERATOR,
    ("GET", "/v1/pools"): OPERATOR,
    ("GET", "/nodes"): OPERATOR,
    ("POST", "/v1/workers/{id}/drain"): OPERATOR,
    ("POST", "/v1/pools/{name}/scale"): OPERATOR,
    ("POST", "/v1/pools/{name}/drain"): OPERATOR,
    ("GET", "/v1/sessions"): CLIENT,
    ("GET", "/v1/sessions/{id}"): CLIENT,
    ("DELETE", "/v1/sessions/{id}"): CLIENT,
    ("GET", "/v1/sessions/{id}/files"): CLIENT,
    ("GET", "/v1/sessions/{id}/files/{name}"): CLIENT,
    ("GET", "/lease/{path:path}"): OPEN,
    ("POST", "/session/borrow"): CLIENT,
    ("POST", "/session/return"): CLIENT,
    ("GET", "/v1/leases"): CLIENT,
    ("GET", "/v1/leases/{id}"): CLIENT,
    ("PATCH", "/v1/leases/{id}"): CLIENT,
    ("GET", "/v1/hosts"): OPERATOR,
    ("POST", "/forwarded/{id}"): OPEN,
}


def in_app() -> set[tuple[str, str]]:
    """Method and path of each route that the API has."""
    app = create_app(None, Access())  # type: ignore[arg-type] # no route is called
    return {
        (method, context.path)
        for context in iter_route_contexts(app.routes)
        for method in getattr(context, "methods", None) or ()
    }
