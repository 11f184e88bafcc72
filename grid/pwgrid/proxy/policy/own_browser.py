"""Decides what a client shares with others: whether it gets a browser of its own, and which pool can give it what it
asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from websockets.datastructures import Headers

from pwgrid.common.profile_names import Profile
from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.types import Isolation, Protocol
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.choose_pool import may_use
from pwgrid.proxy.policy.launch_options import LaunchOptions
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import PoolView


@dataclass(frozen=True, slots=True)
class OwnBrowser:
    """A browser for one session alone. `options` are the launch options in which it differs from its pool's, by
    Playwright's names: without any a warm one will do. `network` is the pattern of hosts that it reaches by its client
    (exposeNetwork); empty: none. `timeout_s` is how long its client allows for a launch with its options.
    `profile` is the one that it starts with, and that is saved at its end."""

    options: Mapping[str, object] = field(default_factory=dict)
    network: str = ""
    timeout_s: float = math.inf
    profile: Profile | None = None

    def for_worker(self, since: float, until: float) -> dict[str, Any]:
        """Returns what the worker gets. `until`: until when it may serve the client that is offered `since` then
        (time.monotonic())."""
        if self.options:
            until = min(until, since + self.timeout_s)
        more = {} if self.profile is None else {"profile": asdict(self.profile)}
        return {"options": dict(self.options), "network": self.network, "until": until, **more}

    def fails_everywhere(self, reason: str, launch_timeout_s: float) -> bool:
        """Whether another worker would fail as this one, for the options. One that was only late may be sooner, unless
        its client allows less time than the grid."""
        is_short = self.timeout_s < launch_timeout_s
        return bool(self.options) and (
            reason == OfferRefusal.NOT_LAUNCHED or (reason == OfferRefusal.NOT_IN_TIME and is_short)
        )


def asked_isolation(text: str) -> Isolation | None:
    """Returns what `?isolation=` or the header says; None where neither says anything. Raises Refusal."""
    if not text:
        return None
    found = next((each for each in Isolation if each == text.lower()), None)
    if found is None:
        raise Refusal(400, f"isolation: there is no {text[:40]!r}: use one of {', '.join(Isolation)}, or leave it out")
    return found


def pool_with(
    pools: Mapping[str, PoolView], chosen: str, asked: Isolation | None, identity: Identity, *, is_named: bool
) -> str:
    """Returns the pool for a client that asks for this isolation: `chosen`, which it would get otherwise, or one of the
    same browser type if only that has isolation `process`. Raises Refusal if `chosen` cannot give it, and is the one
    that the client names, or there is no other."""
    if asked is Isolation.PROCESS and not is_named:
        offered = pools[chosen]
        fit = [name for name, each in pools.items() if _is_process_of(each, offered.browser_type)]
        if fit := [name for name in fit if may_use(identity, pools[name])] or fit:
            return chosen if chosen in fit else fit[0]
    check(pools[chosen], asked)
    return chosen


def check(pool: PoolView, asked: Isolation | None) -> None:
    """Raises Refusal where this pool cannot give what is asked for."""
    if asked is Isolation.PROCESS and pool.isolation != Isolation.PROCESS:
        raise Refusal(
            400,
            f"pool {pool.name} gives no session a process of its own: ask for isolation browser, or have the grid's "
            f'operator make a pool of {pool.browser_type} with isolation = "process" in [[pools]]',
        )
    if asked is Isolation.CONTEXT and pool.isolation != Isolation.CONTEXT:
        raise Refusal(
            400,
            f"pool {pool.name} has no shared browsers (its isolation is {pool.isolation}): leave the isolation out, or "
            "ask for another pool (?pool=)",
        )


def own_browser(
    pool: PoolView,
    asked: Isolation | None,
    launch: LaunchOptions,
    network: str,
    protocol: Protocol = Protocol.PLAYWRIGHT,
) -> OwnBrowser | None:
    """Returns the browser that the client gets for itself; None if it gets the one of its worker. That one is its own,
    too, in a pool of isolation `process`, and launched as the pool's are. In CDP a client sees all of its browser, so
    that one is never Playwright's."""
    by_itself = bool(launch.heeded or network) or protocol is Protocol.CDP
    is_wanted = pool.isolation == Isolation.BROWSER or (
        asked is Isolation.BROWSER and pool.isolation != Isolation.PROCESS
    )
    return OwnBrowser(launch.heeded, network, launch.timeout_s) if by_itself or is_wanted else None


def isolation_of(pool: PoolView, own: OwnBrowser | None) -> Isolation:
    """Returns what the session's record says."""
    if pool.isolation == Isolation.PROCESS:
        return Isolation.PROCESS
    return Isolation.CONTEXT if own is None else Isolation.BROWSER


def takes_lifetime(pool: PoolView, own: OwnBrowser | None) -> bool:
    """Whether a session, or a lease, counts towards the lifetime of its worker: for so many sessions its browser is
    shared, so one that has its own does not. Where every session has its own, the lifetime is a number of these.

    This is the only place that decides it. The record says it (LIFETIME_TAKEN); scripts and workers go by that. What a
    lease takes its worker changes when the client comes that it is for (pwgrid/worker/leases.py).
    """
    return own is None or pool.isolation != Isolation.CONTEXT


def asked_network(headers: Headers) -> str:
    """Returns the client's exposeNetwork, which Playwright sends in a header of its own, empty for none."""
    return next(filter(None, (each.strip() for each in headers.get_all("x-playwright-proxy"))), "")


def _is_process_of(pool: PoolView, browser_type: str) -> bool:
    return pool.browser_type == browser_type and pool.isolation == Isolation.PROCESS
