"""What the proxy makes of the master's state frames."""

from typing import Any

from pwgrid.common.types import Protocol
from pwgrid.proxy.roster import Hosts, Roster
from tests.support.state_frames import told_of_pool


def state(**changes: Any) -> dict[str, Any]:
    return {
        "stopping": False,
        "hostGuard": None,
        "pools": {
            "chromium": told_of_pool(wanted=2),
            "firefox": told_of_pool(browserType="firefox", available=0, reason="firefox did not start: no display"),
            "webkit": told_of_pool(browserType="webkit", wanted=0, available=0),
        },
        "workers": [
            {"id": "a", "browserType": "chromium", "status": "available", "playwrightVersion": "1.65.1"},
            {"id": "b", "browserType": "chromium", "status": "starting", "playwrightVersion": None},
            {"id": "c", "browserType": "chromium", "status": "draining", "playwrightVersion": "1.64.0"},
        ],
        **changes,
    }


def roster(**changes: Any) -> Roster:
    made = Roster()
    made.replace(state(**changes))
    return made


def test_only_pools_that_want_workers_are_offered() -> None:
    assert [*roster().offered()] == ["chromium", "firefox"]


def test_a_pool_is_what_the_master_tells_of_it_in_the_order_of_the_configuration() -> None:
    told = told_of_pool(browserType="firefox", wanted=2, slots=3, lifetime=9)
    more = {"labels": ["A:Firefox"], "headless": False, "args": ["-x"], "starting": 1, "spare": 2, "draining": 3}
    worker = {"id": "a", "pool": "foxes", "browserType": "firefox", "status": "available"}
    made = roster(pools={"foxes": told | more, "appa": told}, workers=[worker])
    assert [*made.offered()] == ["foxes", "appa"]
    pool = made.pools["foxes"]
    assert (pool.browser_type, pool.slots, pool.lifetime, pool.labels) == ("firefox", 3, 9, ("A:Firefox",))
    assert (pool.starting, pool.spare, pool.draining) == (1, 2, 3)
    assert pool.options == {"headless": False, "args": ["-x"]}
    assert (pool.isolation, pool.channel) == ("context", "")  # of an earlier version's master
    isolated = roster(pools={"own": told | {"isolation": "browser", "channel": "chrome"}}).pools["own"]
    assert (isolated.isolation, isolated.channel) == ("browser", "chrome")
    assert (made.pool_of("a"), made.pool_of("b"), made.pool_of(None)) == ("foxes", None, None)
    assert made.shortage("webkit") == "there is no pool webkit any more"


def test_a_later_version_s_master_may_tell_more_of_a_pool() -> None:
    told = told_of_pool(browserType="safari", name="tv", options={"headless": 1}, isNew=True)
    assert (pool := roster(pools={"foxes": told}).pools["foxes"]).name == "foxes"
    assert (pool.browser_type, pool.options) == ("safari", {"headless": told["headless"], "args": told["args"]})


def test_a_pool_serves_its_own_version_and_that_of_its_workers_that_serve() -> None:
    assert roster().pools["chromium"].versions == {"1.65"}  # an earlier version's master does not name its own
    told = told_of_pool(playwright="1.66", onDemand=True, like="chromium")
    pool = roster(pools={"chromium": told}).pools["chromium"]
    assert (pool.versions, pool.playwright, pool.like) == ({"1.65", "1.66"}, "1.66", "chromium")
    assert [pool.serves(version) for version in ("1.64", "1.65", "1.66", None)] == [False, True, True, True]
    assert roster().pools["webkit"].serves("1.64")  # nothing is known of it


def test_a_pool_that_starts_on_demand_is_offered_without_workers_and_the_grid_is_ready_without_it() -> None:
    old = told_of_pool(wanted=0, available=0, onDemand=True, labels=["A:Chromium:UAT"])
    made = roster(pools={"chromium": told_of_pool(labels=["A:Chromium:UAT"]), "old": old})
    assert [*made.offered()] == ["chromium", "old"]
    assert [*made.label_keys().values()] == [("chromium", "old")]
    assert made.not_ready() is None
    started = roster(pools={"chromium": told_of_pool(), "old": old | {"wanted": 1, "reason": "no memory"}})
    assert started.not_ready() is None
    assert [*roster(pools={"chromium": told_of_pool(), "old": old | {"removed": True}}).offered()] == ["chromium"]


def test_a_pool_without_an_available_worker_makes_the_grid_not_ready_and_says_why() -> None:
    assert roster().not_ready() == "no firefox worker is available: firefox did not start: no display"


def test_a_shortage_is_that_of_the_type_that_is_asked_for() -> None:
    assert roster().shortage("chromium") is None
    assert roster().shortage("firefox") == "no firefox worker is available: firefox did not start: no display"


def test_every_pool_available_is_ready() -> None:
    assert roster(pools={"chromium": told_of_pool()}).not_ready() is None


def test_before_the_master_has_spoken_nothing_is_ready() -> None:
    assert Roster().not_ready() == "the master has not reported its pools yet"


def test_a_stopping_grid_and_a_host_without_memory_are_not_ready() -> None:
    assert roster(stopping=True).not_ready() == "the grid is shutting down"
    assert roster(hostGuard="memory is short").not_ready() == "memory is short"


# Other hosts


def of_two_hosts() -> Roster:
    made = roster()
    pool = told_of_pool(playwright="1.58", available=2)
    workers = [
        {"id": "x", "browserType": "chromium", "status": "available", "playwrightVersion": "1.58.0"},
        {"id": "y", "pool": "only", "browserType": "firefox", "status": "available", "playwrightVersion": "1.58.0"},
    ]
    only = told_of_pool(browserType="firefox", labels=["AppB:Firefox"], available=1)
    made.others = (roster(pools={"chromium": pool, "only": only, "unwanted": told_of_pool(wanted=0)}, workers=workers),)
    return made


def test_a_pool_of_several_hosts_serves_the_versions_of_all_of_them() -> None:
    found = of_two_hosts().offered_anywhere()
    assert [*found] == ["chromium", "firefox", "only"]
    assert found["chromium"].versions == {"1.65", "1.58"}
    assert (found["chromium"].available, found["only"].browser_type) == (3, "firefox")
    assert [*of_two_hosts().offered()] == ["chromium", "firefox"]  # readiness is of this host alone


def test_a_pool_or_worker_of_another_host_is_found_behind_our_own() -> None:
    made = of_two_hosts()
    own, only = made.pool("chromium"), made.pool("only")
    assert own is made.pools["chromium"]
    assert only is made.others[0].pools["only"]
    assert (made.pool("unwanted"), made.pool("nowhere")) == (None, None)
    webkit = made.pool("webkit")
    assert webkit is not None  # nobody offers it, but ours is there
    assert (made.pool_of("y"), made.pool_of("a"), made.worker("z")) == ("only", "chromium", None)
    assert [each.worker_id for each in made.all_workers()] == ["a", "b", "c", "x", "y"]
    assert [*made.label_keys().values()] == [("only",)]


def test_a_pool_is_available_elsewhere_or_not() -> None:
    made = of_two_hosts()
    made.hosts = Hosts("here", available=frozenset({"chromium", "only"}))
    assert [made.is_available_elsewhere(name) for name in ("chromium", "only", "firefox", "webkit")] == [
        True,
        True,
        False,
        False,
    ]


def test_workers_of_other_hosts_without_a_protocol_are_known() -> None:
    made = of_two_hosts()
    assert made.without(Protocol.CDP) == {"a", "c", "x", "y"}
    made.others = ()
    assert made.without(Protocol.CDP) == {"a", "c"}
