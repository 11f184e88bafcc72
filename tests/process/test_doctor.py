"""`pwgrid doctor`: what it finds on this host, and on one where something is wrong."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pwgrid.common import confined_exec
from pwgrid.installed.driver import own_driver
from pwgrid.settings.model import Settings
from pwgrid.setup import doctor_checks as module
from pwgrid.setup.doctor_checks import _confinement as confinement_of
from pwgrid.setup.doctor_checks import _leftovers as leftovers_of
from pwgrid.setup.doctor_checks import _processors as processors_of
from pwgrid.setup.doctor_checks import _room as room_of
from pwgrid.setup.doctor_checks import _sandbox as sandbox_of
from tests.conftest import need
from tests.support.drivers import MIDDLE, cached_driver
from tests.support.grid import ROOT, free_port

NAMES = {
    "driver",
    "chromium",
    "video",
    "headed",
    "sandbox",
    "confinement",
    "processors",
    "memory",
    "/dev/shm",
    "descriptors",
    "pids",
    "disk",
    "redis",
    "port",
}


def doctor(
    *arguments: str, before: Callable[[], None] | None = None, **environment: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the worst finding of each name."""
    ours = ("PWGRID", "REDIS", "CHROMIUM", "OTEL_")
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "doctor", "--json", "--chromium", "1", *arguments],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if not name.startswith(ours)}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=before,
    )
    found = json.loads(done.stdout)
    assert found["good"] is (done.returncode == 0), done.stderr
    worst: dict[str, dict[str, Any]] = {}
    for each in sorted(found["findings"], key=lambda each: ("good", "warn", "bad").index(each["level"])):
        assert (each["to_do"] == "") is (each["level"] == "good"), each
        worst[each["name"]] = each
    return done.returncode, worst


def test_a_host_on_which_a_grid_runs_has_nothing_that_fails() -> None:
    need("chromium")
    code, found = doctor("--port", str(free_port()))
    assert [each for each in found.values() if each["level"] == "bad"] == []
    assert code == 0
    assert NAMES | {"leftovers"} == set(found)


def test_what_will_fail_is_named_with_what_to_do_and_the_exit_code_is_one(tmp_path: Path) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho 'error while loading shared libraries: libnss3.so: cannot open' >&2; exit 127\n")
    broken.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, found = doctor(
            "--port",
            str(taken.getsockname()[1]),
            CHROMIUM_EXECUTABLE=str(broken),
            REDIS_URL=f"redis://:hunter2@127.0.0.1:{free_port()}/0",
            MIN_HOST_AVAILABLE_MIB="100000000",
        )
    assert code == 1
    assert {name for name, each in found.items() if each["level"] == "bad"} == {"chromium", "redis", "port", "memory"}
    assert "libnss3.so is missing" in found["chromium"]["found"]
    assert "Connection refused" in found["redis"]["found"]
    assert "hunter2" not in json.dumps(found)
    assert "Address already in use" in found["port"]["found"]
    assert found["port"]["to_do"] == "choose another one with --host or --port"


def test_each_browser_is_tried_with_each_driver_that_a_pool_on_demand_would_have(tmp_path: Path) -> None:
    need("chromium")
    driver = cached_driver(MIDDLE)
    (tmp_path / driver.version).symlink_to(driver.node.parent)
    name = f"chromium-{MIDDLE}"
    _, found = doctor("--port", "0", DRIVERS_DIR=str(tmp_path))
    # The other finding of this name may be worse: that the browser is newer than the driver.
    assert f"with Playwright {driver.version} a page after" in found[name]["found"] or "major" in found[name]["found"]
    code, found = doctor("--port", "0", DRIVERS_DIR=str(tmp_path), ON_DEMAND="false")
    assert (code, name in found) == (0, False)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "1.60.0").mkdir()
    (broken / "1.60.0/node").symlink_to("/bin/false")
    (broken / "1.60.0/package").symlink_to(own_driver().core)
    code, found = doctor("--port", "0", DRIVERS_DIR=str(broken))
    assert (code, found["chromium-1.60"]["level"]) == (0, "warn")  # no pool names it


def test_each_pool_is_looked_at_with_its_own_browser(tmp_path: Path) -> None:
    need("chromium")
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    file = tmp_path / "grid.toml"
    file.write_text(
        '[[pools]]\nname = "shop"\nbrowser = "chromium"\n'
        f'[[pools]]\nname = "old-shop"\nbrowser = "chromium"\nexecutable = "{broken}"\n'
    )
    code, found = doctor("--config", str(file), "--port", str(free_port()), "--chromium", "0")
    assert (code, found["old-shop"]["level"], found["old-shop"]["to_do"]) == (1, "bad", "pwgrid setup")
    assert found["shop"]["level"] != "bad"
    assert "a page after" in found["shop"]["found"] or "major versions" in found["shop"]["found"]
    assert "chromium" not in found


@pytest.mark.parametrize(
    ("version", "confine", "level", "says"),
    [
        (9, "auto", "good", "Landlock version 9; it is auto"),
        (4, "on", "good", "Landlock version 4, which does not know of devices, signals, Unix sockets; it is on"),
        (7, "off", "warn", "Landlock version 7, which does not know of Unix sockets; it is off"),
        (0, "auto", "warn", "this kernel has no Landlock, or a container forbids it; it is auto"),
        (0, "on", "bad", "this kernel has no Landlock, or a container forbids it; it is on"),
    ],
)
def test_what_the_kernel_can_do_against_readers_of_the_hosts_files(
    monkeypatch: pytest.MonkeyPatch, version: int, confine: str, level: str, says: str
) -> None:
    for each in (module, confined_exec):
        monkeypatch.setattr(each, "abi", lambda: version)
    found = confinement_of(Settings.model_validate({"confine": confine}))
    assert (found.level, found.found) == (level, says)
    assert (found.to_do == "") is (level == "good")


@pytest.mark.parametrize(
    ("switch", "membership", "weighed", "says"),
    [
        ("1", "0::/user.slice\n", (), None),
        ("1", "3:cpuset:/job\n2:cpu,cpuacct:/\n0::/user.slice\n", (), None),
        ("1", "0::/system.slice/pwgrid.service\n", ("system.slice",), "a cgroup for processors"),
        ("1", "0::/\n", ("",), "a cgroup for processors"),  # as a container sees it
        ("1", "2:cpu,cpuacct:/docker/a\n", (), "a cgroup for processors"),
        ("0", "0::/\n", (), "makes no groups"),
        ("", "0::/\n", (), "makes no groups"),
    ],
)
@pytest.mark.parametrize("processor_shares", ["auto", "off"])
def test_whether_the_kernel_shares_processors_by_browsers_or_the_grid_sees_to_it(
    tmp_path: Path, switch: str, membership: str, weighed: tuple[str, ...], says: str | None, processor_shares: str
) -> None:
    kernel, own = tmp_path / "proc/sys/kernel", tmp_path / "proc/self"
    for each in (kernel, own):
        each.mkdir(parents=True)
    (own / "cgroup").write_text(membership)
    (own / "schedstat").write_text("1 2 3\n")
    (own / "status").write_text("CapEff:\t0000000000800000\n")
    (own / "uid_map").write_text("         0          0 4294967295\n")
    if switch:
        (kernel / "sched_autogroup_enabled").write_text(f"{switch}\n")
    for group in weighed:
        (tmp_path / "sys/fs/cgroup" / group).mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup" / group / "cpu.weight").write_text("100\n")
    settings = Settings.model_validate({"processor_shares": processor_shares})
    found = processors_of(settings, tmp_path)
    assert (says or "shared by browsers") in found.found
    is_good = says is None or processor_shares == "auto"
    assert (found.level, found.to_do == "") == (("good", True) if is_good else ("warn", False))
    assert ("gets a lower priority while it does" in found.found) is (says is not None and processor_shares == "auto")
    assert ("PROCESSOR_SHARES is off" in found.found) is (says is not None and processor_shares == "off")
    assert ("sched_autogroup_enabled=1" in found.to_do) is (switch == "0" and processor_shares == "off")


@pytest.mark.parametrize(
    ("lacks", "level", "says", "to_do"),
    [
        ("", "good", "while it does", ""),
        ("status", "warn", "until it ends, unless sessions share it", "ulimit -e 20"),
        ("uid_map", "warn", "until it ends, unless sessions share it", "ulimit -e 20"),  # root of a namespace
        ("schedstat", "warn", "schedstat is missing", "a grid outside of such a cgroup"),
    ],
)
def test_what_the_grid_can_do_where_the_kernel_shares_processors_by_threads(
    tmp_path: Path, lacks: str, level: str, says: str, to_do: str
) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if limit >= 20:
        pytest.skip("this process may have its priority back by its limit")
    files = {
        "sys/kernel/sched_autogroup_enabled": "1\n",
        "self/cgroup": "2:cpu:/docker/a\n",
        "self/schedstat": "1 2 3\n",
        "self/status": "Name:\tpython\nCapEff:\t0000000000800000\n",
        "self/uid_map": "         0          0 4294967295\n",
    }
    for name, text in files.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (lacks and name.endswith(lacks)):
            path.write_text(text)
    found = processors_of(Settings(), tmp_path)
    assert found.level == level
    assert says in found.found
    assert to_do in found.to_do


def test_too_few_descriptors_are_a_warning() -> None:
    need("chromium")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    _, found = doctor("--port", "0", before=few)
    assert found["descriptors"]["level"] == "warn"
    assert found["descriptors"]["found"].startswith("256 at most for a process; ")


@pytest.mark.parametrize(
    ("switch", "value", "what"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "user namespaces are for root alone"),
        ("user/max_user_namespaces", "0", "there are no user namespaces"),
    ],
)
def test_each_switch_that_keeps_chromium_from_its_sandbox_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, value: str, what: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    on = Settings(chromium_sandbox=True)
    assert sandbox_of(on, tmp_path).level == "good"
    file = tmp_path / "proc/sys" / switch
    file.parent.mkdir(parents=True)
    file.write_text(f"{value}\n")
    assert (sandbox_of(on, tmp_path).level, sandbox_of(Settings(), tmp_path).level) == ("bad", "warn")
    assert what in sandbox_of(on, tmp_path).found
    assert sandbox_of(on, tmp_path).to_do
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # root, who asks in place of the service's user, is told, too
    found = sandbox_of(on, tmp_path)
    assert found.found.startswith(what), found
    assert "and the grid runs as root, so Chromium" in found.found


def test_only_old_directories_of_browsers_are_named_and_the_command_removes_exactly_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a place"
    for name in ("playwright-artifacts-old", "playwright_chromiumdev_profile-old", "playwright-new", "other-old"):
        (place / name).mkdir(parents=True)
        (place / name / "file").touch()
    (place / "playwright-file-old").touch()
    (place / "playwright-link-old").symlink_to(tmp_path)
    for path in place.glob("*-old"):
        os.utime(path, (0, 0), follow_symlinks=False)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "managed/pwgrid"))
    settings = Settings(runtime_dir="/nonexistent/pwgrid")
    (found,) = leftovers_of(settings)
    assert found.found == f"2 directories of browsers, older than a day, in {place}"
    command, _, condition = found.to_do.partition(", ")
    assert condition == "when no other program uses them"
    subprocess.run(command, shell=True, check=True)
    assert {path.name for path in place.iterdir()} == {
        *("playwright-new", "other-old", "playwright-file-old", "playwright-link-old")
    }
    assert [each.level for each in leftovers_of(settings)] == ["good"]


def test_a_runtime_directory_in_which_we_may_not_look_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("/hidden/"):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *arguments, **options)

    really = os.stat
    monkeypatch.setattr(os, "stat", stat)
    found = {each.name: each for each in room_of(Settings(runtime_dir="/hidden/pwgrid"), Path("/"))}
    assert found["disk"].found.endswith(" free below /")


def test_a_directory_that_its_browser_removes_in_the_same_moment_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("playwright-one", "playwright-two"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))

    def scan(place: str) -> list[os.DirEntry[str]]:
        entries = list(scandir(place))
        Path(entries[0].path).rmdir()
        return entries

    scandir = os.scandir
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "scandir", scan)
    (found,) = leftovers_of(Settings(runtime_dir="/nonexistent/pwgrid"))
    assert found.found.startswith("1 directories of browsers")


def test_a_person_gets_a_line_for_each_finding() -> None:
    need("chromium")
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "doctor", "--chromium", "1", "--port", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line.split()[:2] for line in done.stdout.splitlines() if not line.lstrip().startswith("->")]
    assert {name for _, name in lines} == NAMES | {"leftovers"}
    assert {level for level, _ in lines} <= {"good", "warn", "bad"}
