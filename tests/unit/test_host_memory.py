"""What /proc and cgroups say, read from real processes and literal files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest

from pwgrid.master.memory import host as host_memory
from pwgrid.master.memory.host import MIB, available_mib, memory_bytes
from pwgrid.runtime.process_tree import process_table

HERE = os.getpid()
NO_SUCH_PID = 1 << 30


@pytest.mark.parametrize("metric", ["pss", "uss"])
def test_memory_that_is_touched_is_counted(metric: str) -> None:
    before = memory_bytes(HERE, metric)
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ballast:
        for offset in range(0, len(ballast), mmap.PAGESIZE):
            ballast[offset] = 1
        assert 60 * MIB < memory_bytes(HERE, metric) - before < 70 * MIB


def test_the_metrics_agree_with_psutil() -> None:
    full = psutil.Process().memory_full_info()
    assert memory_bytes(HERE, "uss") == pytest.approx(full.uss, abs=8 * MIB)
    assert memory_bytes(HERE, "pss") == pytest.approx(full.pss, abs=8 * MIB)
    assert process_table()[HERE].rss_pages * mmap.PAGESIZE == pytest.approx(full.rss, abs=8 * MIB)


def test_a_process_that_is_gone_takes_no_memory() -> None:
    assert memory_bytes(NO_SUCH_PID, "pss") == 0


def test_where_the_maps_may_not_be_read_what_is_anonymous_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = host_memory.read_small

    def refuse(path: str) -> bytes:
        if path.endswith("smaps_rollup"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(host_memory, "read_small", refuse)
    resident, shared = (int(part) for part in Path("/proc/self/statm").read_text().split()[1:3])
    assert memory_bytes(HERE, "pss") == pytest.approx((resident - shared) * mmap.PAGESIZE, abs=8 * MIB)
    assert memory_bytes(NO_SUCH_PID, "pss") == 0


def cgroup(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text + "\n")


def test_the_host_has_what_meminfo_says(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/x\n0::/\n")
    assert available_mib(tmp_path, tmp_path / "cgroup") == pytest.approx(psutil.virtual_memory().available / MIB, 0.2)


def test_the_tightest_cgroup_above_us_counts(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/system.slice/grid.service\n")
    stat = f"anon 5\ninactive_file {8 * MIB}\nactive_file 7"
    cgroup(tmp_path / "system.slice", memory_max=f"{900 * MIB}", memory_current=f"{890 * MIB}", memory_stat=stat)
    inner = tmp_path / "system.slice" / "grid.service"
    cgroup(inner, memory_max="max", memory_high=f"{500 * MIB}", memory_current=f"{480 * MIB}", memory_stat=stat)
    assert available_mib(tmp_path, tmp_path / "membership") == 18
    cgroup(inner, memory_current=f"{485 * MIB}")
    assert available_mib(tmp_path, tmp_path / "membership") == 18
    cgroup(inner, memory_current=f"{700 * MIB}")
    assert available_mib(tmp_path, tmp_path / "membership") == 0
