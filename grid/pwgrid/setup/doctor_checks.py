"""Checks what a grid needs of this host, with a real launch of each browser, and says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pwgrid.common import trace_settings
from pwgrid.common.certificate import server_context
from pwgrid.common.confined_exec import abi
from pwgrid.common.errors import AlreadyRunning, GridError, RegistryUnavailable
from pwgrid.common.kernel_tls import NoKernelTls, find_kernel_tls
from pwgrid.common.redis_faults import FaultKind
from pwgrid.common.redis_url import is_cluster, shown, user_of
from pwgrid.common.wording import listed
from pwgrid.installed.browsers import SearchPaths, find_for_pool, made_for
from pwgrid.installed.confine_setting import NO_LANDLOCK, is_confined
from pwgrid.installed.driver import drivers_directories, installed_drivers
from pwgrid.master.listener import why_no_listening
from pwgrid.master.memory_readings import BROWSER_MIB, MIB, SESSION_MIB, available_mib, own_cgroups, text_of
from pwgrid.master.processor_readings import is_autogroup_on, is_shared_by_sessions, may_restore_nice
from pwgrid.registry import embedded_redis_config
from pwgrid.runtime import descriptor_limit
from pwgrid.runtime.directory import base_dir, temporary_dir
from pwgrid.runtime.find_grids import find_without_master
from pwgrid.settings.load import Loaded, how_to_unset
from pwgrid.settings.model import Settings
from pwgrid.settings.own_playwright import own_minor
from pwgrid.settings.pools import PoolSettings
from pwgrid.setup.browsers import distance_of, launch_once, other_drivers, other_pairs
from pwgrid.setup.drivers import fault_of
from pwgrid.setup.ffmpeg import ffmpegs, find_ffmpeg
from pwgrid.setup.headed import why_not_headed
from pwgrid.setup.packages import output_of
from pwgrid.setup.redis import version_of

Level = Literal["good", "warn", "bad"]
"""`bad`: something that the settings ask for fails. `warn`: something that they do not ask for would."""

_WORKER_TASKS: Final = 150
_SHM_MIB: Final = 64
_TEMPORARY_MIB: Final = 1024
_INODES: Final = 10_000
_OLD_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found, and what to do about it (empty: nothing)."""

    name: str
    level: Level
    found: str
    to_do: str = ""


def examine(loaded: Loaded) -> Iterator[Finding]:
    """All findings, each as soon as it is known; the launches take seconds."""
    settings, places = loaded.settings, SearchPaths()
    yield from _drivers(settings)
    for pool in settings.pools_with_workers():
        yield from _browser(pool, settings, places)
    for pair, _ in other_pairs(settings.pools_with_workers(), settings, places) if settings.on_demand else ():
        on_demand = replace(pair, name=f"{pair.browser_type}-{pair.playwright}")
        yield from _browser(on_demand, settings, places, fails="warn")
    yield from _video(settings, places)
    yield _headed(settings, places)
    yield _sandbox(settings, places.root)
    yield _confinement(settings)
    yield _processors(settings, places.root)
    yield from _room(settings, places.root)
    yield _redis(loaded)
    yield _port(settings)
    if settings.tls_cert:
        yield from _tls(settings)
    yield from _hosts(settings)
    yield from _traces()
    yield from _leftovers(settings)


def _drivers(settings: Settings) -> Iterator[Finding]:
    """Each installed driver. Only pwgrid's own, and those of pools, have to be in order."""
    wanted = {pool.playwright for pool in settings.pools_with_workers()}
    for driver in installed_drivers(*drivers_directories(settings)):
        fault = fault_of(driver)
        if fault is None:
            node, _ = output_of([driver.node, "--version"])
            yield Finding("driver", "good", f"Playwright {driver.version}, Node {node.strip()}")
            continue
        is_own = driver.minor == own_minor()
        to_do = "pwgrid setup" if is_own else f"pwgrid setup --remove {driver.minor}"
        level: Level = "bad" if is_own or driver.minor in wanted else "warn"
        yield Finding("driver", level, f"Playwright {driver.version}: {fault}", to_do)


def _browser(pool: PoolSettings, settings: Settings, places: SearchPaths, fails: Level = "bad") -> Iterator[Finding]:
    """Launches the browser of a pool with its Playwright; `fails` is the level if that fails."""
    get = f"pwgrid setup --{pool.browser_type} 1" if pool.is_short_form else "pwgrid setup"
    try:
        browser = find_for_pool(pool, settings, places)
        trial = launch_once(browser, settings.of_pool(pool), pool)
    except GridError as error:
        yield Finding(pool.name, fails, error.sentence, get)
        return
    what = browser.executable or f"channel {browser.channel}"
    yield Finding(
        pool.name,
        "good",
        f"{what} ({browser.source}), version {trial.version}, with Playwright {browser.driver.version} a page after "
        f"{trial.seconds:.1f} s",
    )
    wanted = made_for(pool.browser_type, replace(places, driver=browser.driver))
    if distance := distance_of(trial.version, wanted, browser.driver):
        yield Finding(pool.name, "warn", distance, f"{get} --prefer playwright")


def _video(settings: Settings, places: SearchPaths) -> Iterator[Finding]:
    """Each driver looks for an ffmpeg of its own."""
    for of_others, each in ffmpegs(places, other_drivers(settings, places)):
        fault, of = find_ffmpeg(each), f"{of_others}: " if of_others else ""
        to_do = "pwgrid setup --video" if fault else ""
        yield Finding("video", "warn" if fault else "good", f"{of}{fault or 'ffmpeg works'}", to_do)


def _headed(settings: Settings, places: SearchPaths) -> Finding:
    """Whether clients may ask for browsers with a display in pools without."""
    pools = [pool for pool in settings.pools_with_workers() if pool.headless]
    fault = why_not_headed(pools, settings, places)
    if fault is None:
        return Finding("headed", "good", "clients may ask for a display")
    return Finding("headed", "warn", f"{fault.partition(':')[0]}, so headless: false fails", "pwgrid setup --headed")


def _sandbox(settings: Settings, root: Path) -> Finding:
    """Whether Chromium's sandbox can work. Debian, Ubuntu and containers restrict it by different switches."""
    kernel = root / "proc/sys"
    faults = [
        (
            text_of(kernel / "kernel/apparmor_restrict_unprivileged_userns") == "1",
            "AppArmor restricts user namespaces",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile for the browser",
        ),
        (
            text_of(kernel / "kernel/unprivileged_userns_clone") == "0",
            "user namespaces are for root alone",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            text_of(kernel / "user/max_user_namespaces") == "0",
            "there are no user namespaces",
            "sysctl -w user.max_user_namespaces=10000",
        ),
        (os.geteuid() == 0, "the grid runs as root", "run it as an ordinary user"),
    ]
    wrong = [(what, to_do) for is_so, what, to_do in faults if is_so]
    state = "on" if settings.chromium_sandbox else "off (CHROMIUM_SANDBOX)"
    if not wrong:
        return Finding("sandbox", "good", f"possible, and {state}")
    level: Level = "bad" if settings.chromium_sandbox else "warn"
    found = f"{' and '.join(what for what, _ in wrong)}, so Chromium can have none; it is {state}"
    return Finding("sandbox", level, found, "; ".join(to_do for _, to_do in wrong))


_SINCE: Final = {2: "moving files", 3: "truncation", 4: "TCP ports", 5: "devices", 6: "signals", 9: "Unix sockets"}
"""What Landlock can restrict beside files, by the version in which it began."""


def _confinement(settings: Settings) -> Finding:
    """Whether the kernel keeps the host's files from browsers."""
    version = abi()
    kernel = "a Linux of 5.13 or later with landlock among its security modules (lsm=), and a container that allows it"
    if version == 0:
        level: Level = "bad" if settings.confine == "on" else "warn"
        return Finding("confinement", level, f"{NO_LANDLOCK}; it is {settings.confine}", kernel)
    lacking = ", ".join(what for since, what in _SINCE.items() if since > version)
    found = f"Landlock version {version}" + (f", which does not know of {lacking}" if lacking else "")
    if not is_confined(settings):
        return Finding("confinement", "warn", f"{found}; it is off", "unset CONFINE")
    return Finding("confinement", "good", f"{found}; it is {settings.confine}")


def _processors(settings: Settings, root: Path) -> Finding:
    """What keeps a browser with many threads from slowing the others: the kernel, or the grid (docs/isolation.md)."""
    if is_shared_by_sessions(root):
        return Finding("processors", "good", "shared by browsers, however many threads each has (autogroup)")
    why, to_do = "the kernel makes no groups of processes (autogroup)", "a kernel with CONFIG_SCHED_AUTOGROUP"
    if is_autogroup_on(root):
        why = "a cgroup for processors is here, in which it makes no groups (autogroup)"
        to_do = "a host of their own for clients that must not be slowed, or a grid outside of such a cgroup"
    elif (root / "proc/sys/kernel/sched_autogroup_enabled").exists():
        to_do = "sysctl -w kernel.sched_autogroup_enabled=1"
    by_threads = f"shared by threads: {why}"
    if settings.processor_shares == "off" or not (root / "proc/self/schedstat").exists():
        because = "PROCESSOR_SHARES is off" if settings.processor_shares == "off" else "/proc/self/schedstat is missing"
        return Finding("processors", "warn", f"{by_threads}; a browser with many slows others, as {because}", to_do)
    lowers = f"{by_threads}; a browser that takes more than its share gets a lower priority"
    if may_restore_nice(root):
        return Finding("processors", "good", f"{lowers} while it does")
    restore = "ulimit -e 20 (docker run --ulimit nice=20, LimitNICE=+0) lets it have that back"
    return Finding("processors", "warn", f"{lowers} until it ends, unless sessions share it", restore)


def _room(settings: Settings, root: Path) -> Iterator[Finding]:
    """Memory, shared memory, descriptors, processes, and the disk below the runtime directory."""
    pools = settings.pools_wanted().values()
    workers, sessions = sum(pool.workers for pool in pools), sum(pool.workers * pool.slots for pool in pools)
    memory = available_mib()
    least = settings.min_host_available_mib + BROWSER_MIB
    most = settings.min_host_available_mib + BROWSER_MIB * workers + SESSION_MIB * sessions
    found = f"{memory} MiB available; all slots taken may need {most} MiB"
    fewer = "fewer workers or slots (--chromium, --slots), or more memory"
    yield _graded("memory", found, fewer, fails=memory < least, is_short=memory < most)

    shm = root / "dev/shm"
    free = shutil.disk_usage(shm).free // MIB if shm.is_dir() else 0
    larger = "docker run --shm-size=1g, or mount a tmpfs there"
    yield _graded("/dev/shm", f"{free} MiB free", larger, is_short=free < _SHM_MIB)

    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptor_limit.wanted(settings)
    found = f"{files} at most for a process; {wanted} are wanted"
    yield _graded("descriptors", found, descriptor_limit.RAISE_IT, is_short=files < wanted)

    tasks = min(_tasks_left())
    wanted = _WORKER_TASKS * workers
    found = f"{tasks} more processes and threads may be started; {wanted} are wanted"
    more = "raise pids.max of the cgroup (docker run --pids-limit, TasksMax=) or ulimit -u"
    yield _graded("pids", found, more, fails=tasks < _WORKER_TASKS, is_short=tasks < wanted)

    path = base_dir(settings.runtime_dir)
    base = next(each for each in (path, *path.parents) if os.path.isdir(each))  # not is_dir(): we may not look there
    disk = os.statvfs(base)
    free, inodes = disk.f_bavail * disk.f_frsize // MIB, disk.f_favail
    has_inodes = disk.f_files == 0 or inodes >= _INODES  # btrfs does not count inodes
    found = f"{free} MiB and {inodes} inodes free below {base}"
    elsewhere = "make room there, or set PWGRID_RUNTIME_DIR to another place"
    is_short = free < _TEMPORARY_MIB or not has_inodes
    yield _graded("disk", found, elsewhere, fails=free < _TEMPORARY_MIB // 10, is_short=is_short)


def _graded(name: str, found: str, to_do: str, *, is_short: bool, fails: bool = False) -> Finding:
    level: Level = "bad" if fails else "warn" if is_short else "good"
    return Finding(name, level, found, "" if level == "good" else to_do)


def _tasks_left() -> Iterator[int]:
    """How many more processes each limit allows: the kernel's, the user's, and those of this process's cgroups."""
    running = sum(name.isdigit() for name in os.listdir("/proc"))
    yield int(text_of(Path("/proc/sys/kernel/pid_max")) or 32768) - running
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield soft - running
    for group in own_cgroups():
        if (limit := text_of(group / "pids.max")).isdigit():
            yield int(limit) - int(text_of(group / "pids.current") or 0)


def _redis(loaded: Loaded) -> Finding:
    settings = loaded.settings
    if not settings.redis_url:
        try:
            server = embedded_redis_config.find_redis_server()
        except GridError as error:
            return Finding("redis", "bad", f"no redis-server that runs: {error}", "pwgrid setup")
        version, fault = version_of(server)
        if fault is not None:
            return Finding("redis", "bad", fault, "pwgrid setup")
        return Finding("redis", "good", f"a private one: {server}, {version}")
    from pwgrid.registry.rights import acl_line
    from pwgrid.registry.try_redis import try_redis

    url, prefix = settings.redis_url.get_secret_value(), settings.redis_key_prefix
    tried = asyncio.run(try_redis(url, timeout_s=settings.redis_timeout, prefix=prefix))
    if tried.fault is None:
        return Finding("redis", "good", f"{shown(url)}, version {tried.version}")
    to_do = tried.fault.to_do
    if tried.fault.kind is FaultKind.RIGHTS:
        of_cluster = is_cluster(url)
        line = shlex.join(["redis-cli", *acl_line(user_of(url), prefix, of_cluster=of_cluster)])
        to_do = f"as its administrator{', on each node' if of_cluster else ''}: {line}"
    private = how_to_unset(*loaded.redis_named_by)
    return Finding("redis", "bad", f"{shown(url)}: {tried.fault.what}", f"{to_do}; or {private} for a private one")


def _tls(settings: Settings) -> Iterator[Finding]:
    """The certificate, and whether TLS sessions outlive the TLS process."""
    try:
        server_context(settings.tls_cert, settings.tls_key)
    except GridError as error:
        yield Finding("tls", "bad", error.sentence)
        return
    yield Finding("tls", "good", f"{settings.tls_cert} and its key")
    if settings.tls_kernel == "off":
        yield Finding("tls", "good", "TLS_KERNEL is off: TLS sessions end with the TLS process")
        return
    try:
        kernel = find_kernel_tls(lambda: server_context(settings.tls_cert, settings.tls_key))
    except NoKernelTls as error:
        yield Finding("tls", "warn", f"{error.why}: TLS sessions end with the TLS process", error.to_do)
    else:
        yield Finding("tls", "good", f"in the kernel, up to {kernel.named}")


def _port(settings: Settings) -> Finding:
    if settings.port == 0:
        return Finding("port", "good", "any free one")
    fault = why_no_listening(settings.host, settings.port, settings.runtime_dir)
    if fault is None:
        return Finding("port", "good", f"{settings.host}:{settings.port} is free")
    if isinstance(fault, AlreadyRunning):
        return Finding("port", "good", f"a grid of yours is on port {settings.port}")
    found, _, to_do = fault.sentence.partition("; ")
    return Finding("port", "bad", found, to_do)


def _hosts(settings: Settings) -> Iterator[Finding]:
    """Whether this host's name among several hosts is its own."""
    if not (name := settings.host_name()):
        return
    from pwgrid.registry import blocking_reads
    from pwgrid.registry.host_records import NAME_TAKEN

    try:
        found = blocking_reads.hosts(settings.redis_url.get_secret_value(), settings.redis_key_prefix)
    except RegistryUnavailable:
        return  # what is wrong with Redis is said already
    record, states = found.records.get(name), found.states(time.time())
    is_here = why_no_listening(settings.host, settings.port, settings.runtime_dir) is not None
    if record is not None and record.is_name_taken:
        yield Finding("hosts", "bad", f"{name}: {NAME_TAKEN}", "another ADVERTISED_HOST on one of them")
    elif states.get(name, "silent") != "silent" and not is_here:
        yield Finding(
            "hosts",
            "bad",
            f"another host tells of itself as {name}, and nothing listens on port {settings.port} here",
            "another ADVERTISED_HOST for this one",
        )
    else:
        others = [each for each in states if each != name]
        yield Finding("hosts", "good", f"{name}, with {listed(others) or 'no other one'}")


def _traces() -> Iterator[Finding]:
    """Whether traces can be exported, if anybody asks for them."""
    if (variable := trace_settings.asked_by(os.environ)) is None:
        return
    fault = trace_settings.fault(os.environ)
    good = f"they go where {variable} says"
    yield Finding("traces", "warn", *fault) if fault else Finding("traces", "good", good)


def _leftovers(settings: Settings) -> Iterator[Finding]:
    left = find_without_master(settings.runtime_dir or None)
    for grid in left:
        found = f"{len(grid.children)} processes of a grid without a master, on port {grid.port}"
        yield Finding(
            "leftovers", "warn", found, f"pwgrid serve --port {grid.port} takes them over; else they end soon"
        )
    # Not below the runtime directory, where the grid's own browsers keep theirs: those go with their worker.
    place = str(temporary_dir())
    old = list(_old_directories(place))
    if old:
        found = f"{len(old)} directories of browsers, older than a day, in {place}"
        remove = f"find {shlex.quote(place)} -maxdepth 1 -name 'playwright*' -type d -mtime +0 -exec rm -r {{}} +"
        yield Finding("leftovers", "warn", found, f"{remove}, when no other program uses them")
    if not left and not old:
        yield Finding("leftovers", "good", "none of former runs")


def _old_directories(place: str) -> Iterator[str]:
    """The directories that browsers of Playwright have left there: those that find's `-mtime +0` finds."""
    for entry in os.scandir(place):
        with contextlib.suppress(FileNotFoundError):  # its browser removes it in this moment
            is_one = entry.name.startswith("playwright") and entry.is_dir(follow_symlinks=False)
            if is_one and time.time() - entry.stat(follow_symlinks=False).st_mtime >= _OLD_S:
                yield entry.path
