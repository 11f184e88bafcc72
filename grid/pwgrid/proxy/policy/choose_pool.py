"""Decides which pool a client gets, before it is put in a line: by browser type, protocol, Playwright version, label
key, named pool and token. How a label key is matched: label_match.py."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from websockets.datastructures import Headers

from pwgrid.common.label_keys import LabelKey
from pwgrid.common.playwright_version import order_of
from pwgrid.common.types import BROWSER_TYPES, BrowserType, Protocol
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.devtools_request import check_browser_type
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.refusal import Refusal, RefusalReason, no_capacity, other_version
from pwgrid.proxy.roster import PoolView


class Offer(NamedTuple):
    """What there is: the pools by name, in the order of the configuration, and the label keys of some."""

    pools: Mapping[str, PoolView]
    default: BrowserType
    labels: OfferedLabels


class Wanted(NamedTuple):
    """What a client asks for. `version` is its Playwright, as major.minor; None where any will do. `pool` is the one
    that `?pool=` names. `own_type` is the browser type that the client itself has, which counts where its label key
    names none."""

    browser_type: str | None = None
    version: str | None = None
    pool: str | None = None
    labels: str = ""
    own_type: BrowserType | None = None
    protocol: Protocol = Protocol.PLAYWRIGHT


class Choice(NamedTuple):
    """The pool, and its label key that serves the one that was asked for."""

    pool: str
    label_key: LabelKey | None


def choose_pool(offer: Offer, wanted: Wanted, identity: Identity) -> Choice:
    """Returns the pool that the client's label key or `?pool=` names, else of those of its browser type and version the
    one named like the type, else the first. Unless the client names a pool, prefers those that the token may use.
    Raises Refusal.

    While the workers of a pool are replaced by those of another version, it serves both; a pool that has the client's
    version for good comes first.
    """
    key, labelled = _labelled(offer, wanted)
    named = wanted.pool
    if named is not None or labelled is not None:
        if named is not None and labelled not in (None, named):
            raise Refusal(
                400, f"the label key is of pool {labelled}, and the URL asks for pool {named}: make them agree"
            )
        return Choice(_named(offer, wanted, str(labelled or named), key), key)
    return Choice(_of_type(offer, wanted, identity), None)


def pool_of_label(
    labels: OfferedLabels, pools: Mapping[str, PoolView], text: str, version: str | None
) -> tuple[str, LabelKey]:
    """Returns the pool of this label key for a borrow that names a Playwright version, or none, and the pool's key.
    Raises Refusal."""
    fit = {name for name, pool in pools.items() if pool.serves(version)}
    key = labels.serving(text, None, fit)
    of_key = labels.keys[key]
    name = next((each for each in of_key if each in fit), of_key[0])
    if not pools[name].serves(version):
        versions = sorted(frozenset[str]().union(*(pools[each].versions for each in of_key)), key=order_of)
        what = f"the pools of the label key {key} are for"
        raise other_version(str(version), what, versions, named="the label key", asks=True)
    return name, key


def serving_pools(offer: Offer, wanted: Wanted, browser_type: str) -> list[str]:
    """Returns the pools of this type that serve the client's version."""
    of_type = ((name, pool) for name, pool in offer.pools.items() if pool.browser_type == browser_type)
    return [name for name, pool in of_type if pool.serves(wanted.version)]


def versions_of(pools: Mapping[str, PoolView], browser_type: str) -> list[str]:
    """Returns the Playwright versions that the pools of this type serve, the oldest first."""
    there = (pool.versions for pool in pools.values() if pool.browser_type == browser_type)
    return sorted(frozenset[str]().union(*there), key=order_of)


def _labelled(offer: Offer, wanted: Wanted) -> tuple[LabelKey | None, str | None]:
    """The key that serves the client's label key, and its pool: if there is one, a pool of the client's version."""
    if not wanted.labels:
        return None, None
    fit = {name for name, pool in offer.pools.items() if pool.serves(wanted.version)}
    key = offer.labels.serving(wanted.labels, wanted.own_type, fit)
    pools = offer.labels.keys[key]
    asked = wanted.pool if wanted.pool in pools else None
    return key, asked or next((name for name in pools if name in fit), pools[0])


def _named(offer: Offer, wanted: Wanted, name: str, key: LabelKey | None) -> str:
    pool = offer.pools[name]
    if wanted.protocol is Protocol.CDP:
        check_browser_type(pool.browser_type)
    if wanted.browser_type not in (None, pool.browser_type):
        raise Refusal(
            400,
            f"pool {name} has {pool.browser_type} browsers, and {wanted.browser_type} is asked for: make them agree",
        )
    if not pool.serves(wanted.version):
        what = f"pool {name}" if key is None else f"the label key {key} is served by pool {name}, which"
        raise other_version(
            str(wanted.version),
            f"{what} is for",
            sorted(pool.versions, key=order_of),
            is_elsewhere=bool(serving_pools(offer, wanted, pool.browser_type)),
            named="the label key" if key is not None else "?pool=",
        )
    return name


def _of_type(offer: Offer, wanted: Wanted, identity: Identity) -> str:
    chosen = wanted.browser_type or ("chromium" if wanted.protocol is Protocol.CDP else offer.default)
    fit = serving_pools(offer, wanted, chosen)
    if not fit and (versions := versions_of(offer.pools, chosen)):
        raise _other_version_of(chosen, str(wanted.version), versions)
    if not fit:
        there = ", ".join(sorted({offered.browser_type for offered in offer.pools.values()})) or "none"
        raise _no_such_browser(
            f"this grid runs no {chosen} workers (it has: {there}): start it with --{chosen} 1, or run "
            f"`pwgrid scale {chosen}=1`"
        )
    if len(fit) == 1:
        return fit[0]
    for_good = [name for name in fit if wanted.version == offer.pools[name].playwright] or fit
    allowed = [name for name in for_good if may_use(identity, offer.pools[name])] or for_good
    return chosen if chosen in allowed else allowed[0]


def no_longer_for(pool: PoolView, version: str) -> Refusal:
    """428: the last worker of the client's version has been replaced in the pool in whose line it waits."""
    return other_version(version, f"pool {pool.name} is now for", sorted(pool.versions, key=order_of))


def no_pool_any_more(
    pools: Mapping[str, PoolView], name: str, browser_type: BrowserType, version: str | None
) -> Refusal:
    """Of the pool in whose line a client waits: 428 if no other one is for its version, else 503, since it may come
    again. `pools` are those that are offered now."""
    there = versions_of(pools, browser_type)
    if version is None or not there or version in there:
        return no_capacity(f"there is no pool {name} any more")
    return _other_version_of(browser_type, version, there)


def _other_version_of(browser_type: str, version: str, there: list[str]) -> Refusal:
    return other_version(version, f"the {browser_type} browsers of this grid are for", there)


def may_use(identity: Identity, pool: PoolView) -> bool:
    """Whether the token may use this pool, or the one that it is made after."""
    return identity.may_use(pool.name) or bool(pool.like and identity.may_use(pool.like))


def asked_pool(
    parameters: Iterable[tuple[str, str]], pools: Mapping[str, PoolView], draining: Mapping[str, PoolView]
) -> str | None:
    """Returns the pool that `?pool=` names, or None. Raises Refusal if there is none of that name, or it is one of
    `draining`, which are offered no more."""
    named = {value.lower() for name, value in parameters if name == "pool" and value}
    if not named:
        return None
    if len(named) > 1:
        raise Refusal(400, f"the URL asks for the pools {' and '.join(sorted(named))}: name one")
    for name in named - pools.keys():
        if name in draining and not draining[name].is_removed:
            raise no_capacity(f"pool {name} is to have no workers: `pwgrid scale {name}=1` has it serve")
        there = ", ".join(pools) or "none"
        raise Refusal(404, f"there is no pool {name[:63]!r}; pools are: {there}", details={"pools": [*pools]})
    return min(named)


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
