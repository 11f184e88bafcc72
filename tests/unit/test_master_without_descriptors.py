"""What a master does in each of its turns, while it can open no file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest
from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.main import Master
from pwgrid.master.workers import workers as module
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings, PoolTable
from tests.support.descriptors import no_descriptor_is_free
from tests.support.master_config import SameParts, master_config

SETTINGS = Settings(pools=(PoolTable(name="rare", browser="chromium", workers=1, on_demand=True),))


class NoFile(SameParts):
    """Stands in for parts that cannot be looked at: psutil and others may have a file open from before."""

    def _fails(self, *_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    look_for_versions: Callable[..., bool] = _fails
    prepare_pool: Callable[..., None] = _fails


def workers_in(directory: Path, loop: Loop) -> Workers:
    config = master_config(RuntimeDir(directory, 1, owns_base=False), settings=SETTINGS, parts=NoFile(SETTINGS))
    proxies: Any = SimpleNamespace(send=lambda _name, _data: None)
    return Workers(loop, config, ChildFileWriter(loop, config), proxies)


def test_a_browser_with_a_lower_priority_is_counted_as_before() -> None:
    workers: dict[str, Any] = {}
    pool = Pool(PoolSettings("chromium", "chromium", workers=1, slots=5, lifetime=50), 0.0, workers)
    memory = SimpleNamespace(memory_mib=1, rss_mib=1)
    lowered = frozenset({psutil.Process()})
    workers["a"] = SimpleNamespace(pool=pool, memory=memory, kept=0, own_browsers=0, lowered_browsers=lowered)
    with no_descriptor_is_free():
        assert pool.metrics()["lowered"] == 1


def test_a_pool_that_starts_on_demand_does_not_start_and_says_why(tmp_path: Path) -> None:
    loop = Loop()
    workers = workers_in(tmp_path, loop)
    workers.follow_demand(loop.now(), {"rare": 1}, room=1, no_room=None)
    pool = workers.pools["rare"]
    assert pool.workers == 0
    assert pool.refusal is not None
    assert "Too many open files" in pool.refusal


def test_it_looks_for_versions_of_playwright_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKS_FOR_VERSIONS_S", 0.01)
    loop = Loop()
    workers_in(tmp_path, loop)
    with capture_logs() as logs:
        while len(logs) < 2:
            loop.wait()
    assert {each["event"] for each in logs} == {"playwright_versions_not_looked_for"}


def test_a_scaled_pool_whose_browser_cannot_be_looked_for_ends_no_new_master(tmp_path: Path) -> None:
    workers = workers_in(tmp_path, Loop())
    config: Any = SimpleNamespace(settings=SETTINGS, parts=NoFile(SETTINGS))
    master: Any = SimpleNamespace(_config=config, _workers=workers)
    with capture_logs() as logs:
        Master._scale_again(master, KeptOpen((), 0, 0, {}, None, {"rare": 1}, 1, 0.0))
    assert [(each["event"], each["pool"]) for each in logs] == [("pool_not_scaled", "rare")]
