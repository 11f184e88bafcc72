"""Decides which pool a client gets. How a label key is matched: label_match.py."""

from collections.abc import Iterable, Mapping

from websockets.datastructures import Headers

from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason
from pwgrid.proxy.roster import PoolView


def choose_pool(
    pools: Mapping[str, PoolView],
    default: BrowserType,
    identity: Identity,
    browser_type: str | None,
    named: str | None,
    labelled: str | None,
) -> str:
    """Returns the pool that the client's label key or `?pool=` names, else the one named like the browser type, else
    the first of that type. Unless the client names a pool, prefers those that the token may use. Raises Refusal.

    `browser_type` (else `default`) and `named` are what the client asks for, `labelled` is the pool whose label key
    serves it.
    """
    if labelled is not None:
        if named not in (None, labelled):
            raise Refusal(
                400, f"the label key is of pool {labelled}, and the URL asks for pool {named}: make them agree"
            )
        named = labelled
    if named is not None:
        has = pools[named].browser_type
        if browser_type not in (None, has):
            raise Refusal(400, f"pool {named} has {has} browsers, and {browser_type} is asked for: make them agree")
        return named
    chosen = browser_type or default
    fit = [name for name, offered in pools.items() if offered.browser_type == chosen]
    if fit := [name for name in fit if identity.may_use(name)] or fit:
        return chosen if chosen in fit else fit[0]
    there = ", ".join(sorted({offered.browser_type for offered in pools.values()})) or "none"
    raise _no_such_browser(f"this grid runs no {chosen} workers (it has: {there}): start it with --{chosen} 1 or more")


def asked_pool(parameters: Iterable[tuple[str, str]], pools: Mapping[str, PoolView]) -> str | None:
    """Returns the pool that `?pool=` names, or None. Raises Refusal if there is none of that name."""
    named = {value.lower() for name, value in parameters if name == "pool"}
    if len(named) > 1:
        raise Refusal(400, f"the URL asks for the pools {' and '.join(sorted(named))}: name one")
    for name in named - pools.keys():
        there = ", ".join(pools) or "none"
        raise Refusal(404, f"there is no pool {name[:63]!r}; pools are: {there}", details={"pools": [*pools]})
    return min(named, default=None)


def asked_browser_type(headers: Headers, parameters: Iterable[tuple[str, str]], from_path: str | None) -> str | None:
    """Returns the type from `?browser=` or the path, else the client's own, else None. Raises Refusal if they
    differ."""
    url = {value.lower() for name, value in parameters if name == "browser"}
    if from_path is not None:
        url.add(from_path)
    client = {value.lower() for value in headers.get_all("x-playwright-browser")}
    for given in sorted(url | client):
        if given not in BROWSER_TYPES:
            raise _no_such_browser(f"unknown browser {given[:40]!r}: use one of {', '.join(BROWSER_TYPES)}")
    if len(url) > 1:
        raise _no_such_browser(f"the URL asks for {' and '.join(sorted(url))}: name one browser")
    if len(client) > 1 or (url and client and url != client):
        asked = f"the URL asks for {min(url)}" if url else "no browser is named in the URL"
        raise _no_such_browser(f"{asked}, but the client is {' and '.join(sorted(client))}: make them agree")
    return min(url or client, default=None)


def _no_such_browser(error: str) -> Refusal:
    return Refusal(400, error, reason=RefusalReason.NO_SUCH_BROWSER)
