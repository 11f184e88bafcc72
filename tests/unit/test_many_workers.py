"""What is told of pools and workers goes over the workers once, however many pools there are."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from pwgrid.cli.status import status_text
from pwgrid.common.types import Protocol
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.policy.page_content import changes
from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.selectable_workers import Verdict, why_cannot_serve
from pwgrid.settings.model import Settings
from tests.support.lone_host import LoneHost
from tests.support.state_frames import told_of_pool
from tests.unit.test_api import get
from tests.unit.test_top import status

POOLS = [f"pool{number}" for number in range(20)]


class Workers(dict[str, WorkerRecord]):
    """Counts how often somebody goes over them."""

    passes = 0

    def items(self) -> Any:
        self.passes += 1
        return super().items()

    def values(self) -> Any:
        self.passes += 1
        return super().values()


def worker(worker_id: str, pool: str, **other: Any) -> WorkerRecord:
    known: dict[str, Any] = {"slots": 3, "last_heartbeat": 100.0, **other}
    return WorkerRecord("chromium", worker_id, "ws://x", pool=pool, **known)


def found() -> RegistrySnapshot:
    workers = Workers({f"chromium:{name}": worker(name, name) for name in POOLS[1:]})
    workers["chromium:spare"] = worker("spare", POOLS[1], status="spare")
    return RegistrySnapshot({f"chromium:{POOLS[1]}": 2, "chromium:spare": 1}, {}, workers, {}, 0)


def roster(*workers: dict[str, Any]) -> Roster:
    made = Roster()
    made.replace({"pools": {name: told_of_pool() for name in POOLS}, "workers": [*workers]})
    return made


def test_why_pools_cannot_serve_is_told_in_one_pass() -> None:
    registered = found()
    pools = [PoolView(1, 1, None, name, "chromium") for name in POOLS]
    why = why_cannot_serve(registered, pools, 100.0, 30.0)
    assert why == {POOLS[0]: f"no {POOLS[0]} worker can be chosen: in Redis none is registered"}
    assert cast(Workers, registered.workers).passes == 1


async def test_the_capacity_of_all_pools_is_told_in_one_pass() -> None:
    registered = found()

    async def snapshot() -> RegistrySnapshot:
        return registered

    queue = SimpleNamespace(pools=lambda: [])
    registry = SimpleNamespace(snapshot=snapshot)
    told_of = roster()
    grid: Any = SimpleNamespace(
        registry=registry, roster=told_of, queue=queue, settings=Settings(), feed=None, hosts=LoneHost(told_of)
    )
    _, told = await get(create_app(grid, Access()), "/v1/capacity")
    assert told["pools"][POOLS[0]] == {"slots": 0, "busy": 0, "waiting": 0, "spare": 0}
    assert told["pools"][POOLS[1]] == {"slots": 3, "busy": 3, "waiting": 0, "spare": 1}
    assert told["total"]["slots"] == 3 * (len(POOLS) - 1)
    assert cast(Workers, registered.workers).passes == 1


def test_the_page_of_a_status_goes_over_its_workers_as_often_for_one_pool_as_for_many() -> None:
    class Counted(list[Any]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return super().__iter__()

    def passes(pools: Sequence[Any]) -> int:
        workers = Counted(shown["workers"])
        status_text({**shown, "pools": pools, "workers": workers})
        return workers.passes

    shown = status(runs=[])
    shown["workers"] = [{"drainLeftS": None, "kept": 0, **each} for each in shown["workers"]]
    pool = {"labels": [], "removed": False, "drainTimeouts": 0, **shown["pools"][0]}
    assert passes([pool]) == passes([{**pool, "name": name} for name in POOLS])


def test_a_row_that_is_the_same_object_as_before_is_not_compared_field_by_field() -> None:
    compared: list[str] = []

    class Row(dict[str, Any]):
        def __ne__(self, other: object) -> bool:
            compared.append(self["id"])
            return super().__ne__(other)

    rows = [Row(id=f"s{number}") for number in range(4)]
    before = {"sessions": {row["id"]: row for row in rows}}
    after = {"sessions": before["sessions"] | {"s1": Row(id="s1"), "s2": Row(id="s2", status="failed")}}
    assert changes(before, after) == {"sessions": {"s2": rows[2] | {"status": "failed"}}}
    assert compared == ["s1", "s2"]


def test_who_serves_no_client_of_a_protocol_is_found_once_for_each_roster() -> None:
    asked: list[str] = []

    class Noting(frozenset[Any]):
        def __contains__(self, protocol: object) -> bool:
            asked.append(str(protocol))
            return super().__contains__(protocol)

    told = {"browserType": "chromium", "status": "available", "playwrightVersion": "1.65.1"}
    made = roster({"id": "a", **told}, {"id": "b", **told, "protocols": ["playwright", "cdp"]})
    for each in made.workers.values():
        object.__setattr__(each, "protocols", Noting(each.protocols))
    for _ in range(3):
        assert made.without(Protocol.CDP) == {"a"}
    assert len(asked) == 2
    made.replace({"pools": {}, "workers": [{"id": "c", **told}]})
    assert made.without(Protocol.CDP) == {"c"}


@pytest.mark.parametrize("asks", ["verdict", "shortage", "status"])
async def test_readiness_looks_at_its_own_workers_first_and_no_further_than_one_for_each_pool(asks: str) -> None:
    own = [{"id": name, "pool": name, "browserType": "chromium", "status": "available"} for name in POOLS]
    read: list[str] = []

    class OneRegistry:
        def now(self) -> float:
            return 100.0

        async def look(self, first: Sequence[str], is_enough: Any) -> RegistrySnapshot:
            assert [*first] == [f"chromium:{name}" for name in POOLS]
            assert not is_enough(RegistrySnapshot({}, {}, {}, {}, 0))
            workers: dict[str, WorkerRecord] = {}
            for name in POOLS:  # a part of them at a time
                workers[f"chromium:{name}"] = worker(name, name)
                read.append(name)
                some = {f"chromium:{name}": workers[f"chromium:{name}"]}
                assert is_enough(RegistrySnapshot({}, {}, some, {}, 0)) is (name == POOLS[-1])
            return RegistrySnapshot({}, {}, workers, {}, 0)

    readiness = Readiness(Settings(), roster(*own), cast(Registry, OneRegistry()))
    if asks == "verdict":
        assert await readiness.verdict() == Verdict(None)
    elif asks == "status":
        gateway = SimpleNamespace(figures=ConnectFigures())
        line = SimpleNamespace(waiting=lambda: 0, waiting_by_run=list)
        grid: Any = SimpleNamespace(readiness=readiness, gateway=gateway, queue=line, settings=Settings(), feed=None)
        _, told = await get(create_app(grid, Access()), "/v1/status")
        assert (told["ready"], told["activeConnections"]) == (True, 0)
    else:
        assert await readiness.shortage(POOLS[3]) is None
    assert read == POOLS


async def test_a_page_of_workers_is_what_the_registry_gives_for_its_limit_and_cursor() -> None:
    asked: list[tuple[int, str | None]] = []

    async def worker_page(*, limit: int, cursor: str | None) -> tuple[RegistrySnapshot, str | None]:
        asked.append((limit, cursor))
        return found(), "chromium:next" if limit == 7 else None

    registry = SimpleNamespace(worker_page=worker_page)
    grid: Any = SimpleNamespace(registry=registry, roster=roster(), settings=Settings(), feed=None)
    api = create_app(grid, Access())
    _, told = await get(api, "/v1/workers?limit=7&cursor=chromium:a")
    assert (told["cursor"], len(told["workers"])) == ("chromium:next", len(POOLS))
    _, told = await get(api, "/v1/workers?limit=&cursor=")
    assert told["cursor"] is None
    assert asked[0] == (7, "chromium:a")
    assert (asked[1][0] > 1_000_000, asked[1][1]) == (True, None)
    for wrong in ("0.5", "-1", "1001"):
        status_code, told = await get(api, f"/v1/workers?limit={wrong}")
        assert (status_code, [*told]) == (400, ["error"]), orjson.dumps(told)
