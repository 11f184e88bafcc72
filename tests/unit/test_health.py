"""When a browser counts as sick. The browser server here is one that answers as it is told."""

from pwgrid.worker.browser.server import CanaryResult
from pwgrid.worker.health import wait_until_sick

WELL, SICK = CanaryResult(True, "", 20), CanaryResult(False, "no page", 30)


class Server:
    def __init__(self, *results: CanaryResult, ends_after: int = 100) -> None:
        self._results = list(results)
        self._ends_after = ends_after
        self.tries = 0

    @property
    def is_gone(self) -> bool:
        return self.tries >= self._ends_after

    async def canary(self, timeout_s: float) -> CanaryResult:
        self.tries += 1
        return self._results.pop(0)


async def found(server: Server) -> tuple[str | None, list[CanaryResult]]:
    tried: list[CanaryResult] = []
    return await wait_until_sick(server, lambda: True, 0.0, 1.0, tried.append), tried  # type: ignore[arg-type]


async def test_two_tries_in_vain_are_a_sickness_and_one_is_not() -> None:
    assert await found(Server(WELL, SICK, WELL, SICK, SICK)) == ("no page", [WELL, SICK, WELL, SICK, SICK])


async def test_a_browser_server_that_ends_while_its_browser_is_tried_is_not_sick_but_dead() -> None:
    assert await found(Server(WELL, SICK, SICK, ends_after=2)) == (None, [WELL])
