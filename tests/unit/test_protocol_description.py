"""The description of the DevTools protocol: which worker is asked, and what a client hears where there is none."""

from pathlib import Path
from typing import Any

import pytest

from pwgrid.common.types import Protocol
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.protocol_description import ProtocolDescription
from pwgrid.proxy.roster import Roster
from pwgrid.runtime.directory import protocol_file

VERSION = "156.0.7000.1"


class Workers:
    """Stands in for the links to workers."""

    def __init__(self, runtime: Path, refused: str | None = None, *, is_gone: bool = False) -> None:
        self.runtime, self.refused, self.is_gone = runtime, refused, is_gone
        self.asked: list[str] = []

    async def ask(self, worker_id: str, question: dict[str, Any], until: float) -> dict[str, Any]:
        self.asked.append(worker_id)
        if self.is_gone:
            raise HandoffFailure("the worker is gone")
        if self.refused is None:
            path = protocol_file(self.runtime, question["id"])
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"{}")
        return {"refused": self.refused}


def description(tmp_path: Path, workers: Workers, version: str = VERSION) -> ProtocolDescription:
    roster = Roster()
    told = {"browserType": "chromium", "status": "available", "browserVersion": version}
    old = {**told, "id": "0a1b", "protocols": [Protocol.PLAYWRIGHT]}
    roster.replace({"workers": [old, {**told, "id": "2c3d", "protocols": [*Protocol]}] if version else []})
    return ProtocolDescription(tmp_path, roster, workers)  # type: ignore[arg-type]


async def refusal(description: ProtocolDescription) -> tuple[int, str]:
    with pytest.raises(Refusal, match="local: true") as caught:
        await description.file()
    return caught.value.status, caught.value.error


async def test_a_worker_that_speaks_cdp_is_asked_once(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    of_grid = description(tmp_path, workers)
    assert await of_grid.file() == await of_grid.file() == tmp_path / "devtools" / f"{VERSION}.json"
    assert workers.asked == ["2c3d"]


async def test_who_asks_after_a_failure_starts_no_browser(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "it did not start")
    of_grid = description(tmp_path, workers)
    assert [await refusal(of_grid) for _ in range(3)][2][0] == 404
    assert len(workers.asked) == 1


async def test_a_worker_that_is_gone_is_no_lasting_failure(tmp_path: Path) -> None:
    workers = Workers(tmp_path, is_gone=True)
    of_grid = description(tmp_path, workers)
    assert (await refusal(of_grid))[0] == 503
    workers.is_gone = False
    assert (await of_grid.file()).exists()


@pytest.mark.parametrize(("version", "status"), [("", 503), ("../../etc", 404), ("1.2\n", 404)])
async def test_no_worker_and_no_version_are_refused(tmp_path: Path, version: str, status: int) -> None:
    workers = Workers(tmp_path)
    assert (await refusal(description(tmp_path, workers, version)))[0] == status
    assert workers.asked == []
