"""What the bench of large grids writes into docs/scaling.md."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import fleet_page
from bench.fleet import BUSY, InGrid, InRedis, Measured, curves, rows_of
from bench.harness import MachineMeter, sizes

SCRIPTS = InRedis(
    beat_us=60.0, select_us=80.0, select_p50_ms=0.1, select_p99_ms=0.2, reap_ms=1.0, reap_dead_ms=2.0, dead=1
)
GRID = InGrid(
    connects_per_s=1000.0,
    connect_p50_ms=4.0,
    connect_p99_ms=9.0,
    redis_us=150.0,
    workers_ms=10.0,
    workers_kib=99.0,
    ready_ms=1.0,
    status_ms=2.0,
    page=0.5,
)
FOUND = [Measured(10, SCRIPTS, GRID), Measured(5000, SCRIPTS, GRID)]


def test_a_second_redis_is_due_at_the_rate_that_leaves_it_as_busy_as_it_may_be() -> None:
    small, large = FOUND
    assert small.busy(small.full_at) == pytest.approx(BUSY)
    assert large.busy(large.full_at) == pytest.approx(BUSY)
    assert large.beats == pytest.approx(0.06)  # 1,000 heartbeats per second
    assert large.full_at == pytest.approx((BUSY - 0.06) / 150e-6)
    full = Measured(1_000_000, SCRIPTS, GRID)  # heartbeats alone are too much
    assert full.full_at == 0
    assert "<circle" in fleet_page.as_svg(curves([*FOUND, full]))


def test_the_page_gets_table_curve_and_command_and_keeps_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, picture = tmp_path / "scaling.md", tmp_path / "scaling.svg"
    monkeypatch.setattr(fleet_page, "PAGE", page)
    monkeypatch.setattr(fleet_page, "PICTURE", picture)
    monkeypatch.setattr(fleet_page, "versions", lambda: {"uvloop": "0.23", "chromium": "156"})
    monkeypatch.setattr(fleet_page, "redis_version", lambda: "7.0.15")
    page.write_text("# Before\n<!-- measured -->\nold\n<!-- end -->\nbehind\n")
    for _ in range(2):
        fleet_page.write_page(rows_of(FOUND), curves(FOUND), MachineMeter())
        text = page.read_text()
        assert text.startswith("# Before\n<!-- measured -->\n\n`python -m bench.fleet")
        assert text.endswith("\n<!-- end -->\nbehind\n")
        assert "; redis-server 7.0.15, uvloop 0.23. Other programs kept " in text
        assert "old" not in text
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == ["workers", "10", "5,000"]
        assert {line.count("|") for line in lines} == {4}
    drawn = ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{*}polyline")) == 2
    assert len(drawn.findall("{*}circle")) == 4
    page.write_text("# A page without a place for it\n")
    with pytest.raises(ValueError, match="no place"):
        fleet_page.write_page(rows_of(FOUND), curves(FOUND), MachineMeter())


def test_numbers_of_workers_are_read_from_the_command_line() -> None:
    assert sizes("10,100") == (10, 100)
    for wrong in ("", "ten", "10,0", "-5"):
        with pytest.raises(ValueError, match=r"number|invalid"):
            sizes(wrong)
