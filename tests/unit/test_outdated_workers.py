"""Which workers a reload, or a new master, marks to be replaced, and for what."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.worker_state_machine import Purpose, WorkerLife
from pwgrid.master.reload import CONFIGURATION, UPGRADE, Reload

MEMORY = Reason(WorkerEnd.MEMORY, "9 MiB, the limit is 8 MiB")


def marked(
    settings: str, code: str, recycle: Reason | None, status: WorkerStatus = WorkerStatus.AVAILABLE
) -> Reason | None:
    """The mark of a worker that was forked with these settings and this code, where both should be `new`."""
    life = WorkerLife(Purpose.SERVE, status)
    pool = SimpleNamespace(is_removed=False, settings=None)
    worker = SimpleNamespace(worker_id="w", pool=pool, settings=settings, code=code, recycle=recycle, life=life)
    worker.mark = partial(setattr, worker, "recycle")
    stand_in: Any = SimpleNamespace(
        timer=lambda _callback: None,
        parts=SimpleNamespace(code="new"),
        settings_of_pool=lambda _settings: "new",
        by_id={"w": worker},
        **dict.fromkeys(("proxies", "forwarder", "tls")),
    )
    found = Reload(*[stand_in] * 5).recycle_outdated()
    assert found == (["w"] if life.is_capacity and (settings, code) != ("new", "new") else [])
    return worker.recycle


@pytest.mark.parametrize(
    ("settings", "code", "before", "after"),
    [
        ("new", "new", None, None),
        ("old", "new", None, CONFIGURATION),
        ("new", "old", None, UPGRADE),
        ("old", "old", None, CONFIGURATION),
        ("new", "new", CONFIGURATION, None),  # changed back before its turn came
        ("new", "old", CONFIGURATION, UPGRADE),  # changed back, but it is of the code before
        ("old", "new", MEMORY, MEMORY),
        ("new", "new", UPGRADE, UPGRADE),  # by force, or for another browser
    ],
)
def test_a_worker_is_marked_for_what_is_outdated_of_it_now(
    settings: str, code: str, before: Reason | None, after: Reason | None
) -> None:
    assert marked(settings, code, before) == after


def test_a_worker_that_drains_already_is_not_marked() -> None:
    assert marked("old", "old", None, WorkerStatus.DRAINING) is None
