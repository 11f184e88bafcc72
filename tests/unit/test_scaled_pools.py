"""Which number of workers a pool has that was scaled before its master executed itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from pwgrid.master import main
from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.main import Master
from pwgrid.master.workers.pool import Pool
from pwgrid.settings.model import Settings
from tests.support.master_config import SameParts


def master_with(in_file: int) -> Any:
    """What `Master` needs for this, where the configuration wants so many workers of Chromium."""
    settings = Settings(chromium_workers=in_file, on_demand=False)
    pools = {name: Pool(each, 0.0, {}) for name, each in settings.pools_wanted().items()}
    return SimpleNamespace(
        _config=SimpleNamespace(
            settings=settings,
            parts=SameParts(settings),
            runtime=SimpleNamespace(lock_fd=0),
            lifeline_fd=None,
            argv=(),
        ),
        _workers=SimpleNamespace(pools=pools, by_id={}),
        _proxies=SimpleNamespace(current=SimpleNamespace(listeners=())),
        _control=SimpleNamespace(fd=0),
        _reports=SimpleNamespace(started_at=0.0, is_ready=False),
        _reload=SimpleNamespace(answer_all=lambda: None),
        _signals=None,
        _is_nohup=False,
        _watchdog_s=None,
    )


def kept_by(master: Any, monkeypatch: pytest.MonkeyPatch) -> KeptOpen:
    kept: list[KeptOpen] = []
    monkeypatch.setattr(main, "execute", lambda _argv, keeps, _signals: kept.append(keeps))
    Master._execute(master)
    return kept[0]


@pytest.mark.parametrize(
    ("was", "scaled", "now", "wanted"),
    [
        (2, 3, 2, 3),  # kept
        (2, 3, 4, 4),  # the file has changed
        (2, 2, 4, 4),  # it was never scaled
        (2, 3, 3, 3),
    ],
)
def test_what_it_was_scaled_to_counts_unless_its_number_in_the_file_has_changed(
    was: int, scaled: int, now: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = master_with(was), master_with(now)
    before._workers.pools["chromium"].scale(scaled)
    Master._scale_again(after, kept_by(before, monkeypatch))
    assert after._workers.pools["chromium"].workers == wanted


def test_what_a_version_kept_that_did_not_know_the_number_in_the_file_counts() -> None:
    after = master_with(4)
    Master._scale_again(after, KeptOpen((), 0, 0, {}, None, {"chromium": 3}, 1, 0.0))
    assert after._workers.pools["chromium"].workers == 3
