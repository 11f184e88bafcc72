"""What psutil and cgroups say, read from this process and from literal files."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pwgrid.master.memory_readings import (
    MIB,
    available_mib,
    cgroup_problem,
    memory_bytes,
    own_cgroups,
    rss_bytes,
)

HERE = psutil.Process()


@pytest.fixture
def gone() -> psutil.Process:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as popen:
        process = psutil.Process(popen.pid)
    return process


@pytest.mark.parametrize("metric", ["pss", "uss"])
def test_memory_that_is_touched_is_counted(metric: str) -> None:
    before, rss_before = memory_bytes(HERE, metric), rss_bytes(HERE)
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ballast:
        for offset in range(0, len(ballast), mmap.PAGESIZE):
            ballast[offset] = 1
        assert 60 * MIB < memory_bytes(HERE, metric) - before < 70 * MIB
        assert 60 * MIB < rss_bytes(HERE) - rss_before < 70 * MIB


def test_a_process_that_is_gone_takes_no_memory(gone: psutil.Process) -> None:
    assert (rss_bytes(gone), memory_bytes(gone, "pss")) == (0, 0)


def test_a_zombie_takes_no_memory() -> None:
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(popen.pid)
    assert popen.stdin is not None
    popen.stdin.close()
    while process.status() != psutil.STATUS_ZOMBIE:
        continue
    assert (rss_bytes(process), memory_bytes(process, "pss"), memory_bytes(process, "uss")) == (0, 0, 0)
    popen.wait()


def test_where_the_maps_may_not_be_read_what_is_anonymous_counts(
    monkeypatch: pytest.MonkeyPatch, gone: psutil.Process
) -> None:
    def refuse(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    resident, shared = (int(part) for part in Path("/proc/self/statm").read_text().split()[1:3])
    assert memory_bytes(HERE, "pss") == pytest.approx((resident - shared) * mmap.PAGESIZE, abs=8 * MIB)
    assert memory_bytes(gone, "pss") == 0


def cgroup(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text + "\n")


def test_the_host_has_what_meminfo_says(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/x\n0::/\n")
    meminfo = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    available = available_mib(tmp_path, tmp_path / "cgroup")
    assert available == pytest.approx(int(meminfo["MemAvailable:"]) >> 10, 0.2)


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


def test_where_our_cgroup_cannot_be_read_the_host_s_memory_counts(tmp_path: Path) -> None:
    missing = tmp_path / "cgroup"
    assert list(own_cgroups(tmp_path, missing)) == []
    assert available_mib(tmp_path, missing) > 0
    assert cgroup_problem(missing) == f"{missing} cannot be read: No such file or directory"


def test_a_cgroup_s_name_may_hold_bytes_that_are_no_text(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_bytes(b"0::/\xff\n")
    assert cgroup_problem(membership) is None
    assert list(own_cgroups(tmp_path, membership)) == [tmp_path / "\udcff", tmp_path]
