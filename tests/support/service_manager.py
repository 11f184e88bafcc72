"""A real systemd as pid 1 of namespaces of its own. It knows the units that a test gives it, and nothing of the host.

/opt/pwgrid is there an installation of pwgrid: this working copy with the virtual environment that runs the tests. The
disk and the kernel's settings are read-only; /etc is a copy without units, /run, /tmp, /var/lib and /var/log are new,
the cgroup is one below ours. A journal of its own has what services say. The network is the host's, so that clients
reach what runs there.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.grid import ROOT, eventually

INSTALLED = Path("/opt/pwgrid")
_SYSTEMD = ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")
_TOOLS = ("unshare", "nsenter", "mount", "systemctl", "journalctl")
_UNITS = "/run/units"
# What units without "DefaultDependencies=no" hang on. All are empty: nothing of the host is started.
_TARGETS = ("all-there-is", "sysinit", "basic", "network", "sockets", "multi-user", "shutdown")
_JOURNAL = ("systemd-journald.service", "systemd-journald.socket")
_UNIT_DIRECTORIES = ("/lib/systemd/system", "/usr/lib/systemd/system")
# Nothing of the kernel's log, and no change of the kernel's audit.
_JOURNAL_SETTINGS = "[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=\\nForwardToSyslog=no\\nForwardToWall=no\\n"
_SPACES = "--fork --pid --mount --mount-proc --uts --ipc --cgroup --kill-child=SIGKILL"
_STOP_S = 20

USER_ID = "4242"
USER_UNIT = f"user@{USER_ID}.service"
"""The systemd of the one user that `ServiceManager.user` makes, by the name that the journal knows it by."""

_BELOW_OUR_CGROUP = """
mount --make-rprivate /
mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/{name}
"""
_REMOVE_CGROUP = """
mount --make-rprivate /
mount -t cgroup2 none /sys/fs/cgroup
test ! -d /sys/fs/cgroup/{name} || find /sys/fs/cgroup/{name} -depth -type d -exec rmdir {{}} \\;
"""
_PROGRAM = f"""#!{INSTALLED}/.venv/bin/python
import sys
sys.path.insert(0, "{INSTALLED}/grid")
from pwgrid.cli.main import main
sys.exit(main())
"""


def why_not() -> str:
    """Why systemd cannot be run here; empty when it can."""
    if os.geteuid() != 0:
        return "only root can give systemd namespaces of its own"
    if not _systemd():
        return "systemd is not installed"
    if missing := [name for name in _JOURNAL if not _unit_of_the_host(name)]:
        return f"systemd has no {', '.join(missing)}"
    if missing := [tool for tool in _TOOLS if not shutil.which(tool)]:
        return f"not installed: {', '.join(missing)}"
    name = f"pwgrid-probe-{os.getpid()}"
    probe = _BELOW_OUR_CGROUP.format(name=name) + f"rmdir /sys/fs/cgroup/{name}\nunshare {_SPACES} true"
    done = _in_mounts_of_its_own(probe)
    return f"no namespaces for it: {done.stderr.strip()}" if done.returncode else ""


class ServiceManager:
    """The running systemd. `units` are the texts of its unit files (and drop-ins) by name; `visible` are the files of
    the host that its services use, wherever they are: a service's user is not root."""

    def __init__(self, units: Mapping[str, str] = {}, visible: Iterable[Path] = ()) -> None:
        self._name = f"pwgrid-{os.getpid()}"
        self._directory = tempfile.TemporaryDirectory(prefix="pg-sd-", dir="/tmp")
        self._log = Path(self._directory.name) / "systemd.log"
        sources = Path(self._directory.name) / "units"
        empty = {f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in _TARGETS}
        empty["all-there-is.target"] += "Wants=systemd-journald.socket\n"
        journal = {name: _unit_of_the_host(name) for name in _JOURNAL}
        for name, text in {**empty, **journal, **units}.items():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_text(text)
        inner = "\n".join(_inside(sources, [Path(sys.base_prefix), *visible]))
        outer = _BELOW_OUR_CGROUP.format(name=self._name) + (
            f"echo $$ > /sys/fs/cgroup/{self._name}/cgroup.procs\n"
            f"exec unshare {_SPACES} bash -euc {shlex.quote(inner)}\n"
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "bash", "-euc", outer], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.pid: int = eventually(self._find_pid, "systemd runs")
            eventually(
                lambda: self._process.poll() is not None or self.path("/run/systemd/private").exists(), "it listens"
            )
            self.systemctl("is-system-running", "--wait")
        except BaseException as error:
            error.add_note(self.output())
            self.close()
            raise

    @contextlib.contextmanager
    def user(self, name: str) -> Iterator[tuple[str, ...]]:
        """A new user with a systemd of its own for the length of the block: what goes before that user's commands."""
        home, runtime, units = f"/var/lib/{name}", f"/run/user/{name}", f"/run/units-of-{name}"
        self.command("useradd", "--uid", USER_ID, "--create-home", "--home-dir", home, name)
        self.command("install", "--directory", "--owner", name, "--mode", "0700", runtime, units)
        for target in ("basic", "sockets", "default", "shutdown"):
            self.path(f"{units}/{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        search = f"{home}/.config/systemd/user:{units}"
        environment = (f"XDG_RUNTIME_DIR={runtime}", f"HOME={home}", f"SYSTEMD_UNIT_PATH={search}")
        self.path(f"{_UNITS}/{USER_UNIT}").write_text(
            f"[Service]\nType=notify\nUser={name}\nDelegate=yes\nEnvironment={' '.join(environment)}\n"
            f"ExecStart={_systemd()} --user --unit=basic.target\n"
            "KillMode=mixed\nKillSignal=SIGKILL\n"  # its units have been stopped when it is
        )
        self.systemctl("daemon-reload")
        self.systemctl("start", f"{USER_UNIT}")
        try:
            yield ("setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", "env", *environment)
        finally:
            self.systemctl("stop", f"{USER_UNIT}")
            self.command("userdel", "--remove", name)

    def systemctl(self, *arguments: str) -> str:
        """`systemctl ARGUMENTS`: what it printed. Raises AssertionError when it failed."""
        return self.command("systemctl", *arguments)

    def command(self, *argv: str, expected: Collection[int] = (0,)) -> str:
        """Runs it as root beside the services: what it printed. Raises AssertionError for another exit code."""
        done = self._run(*argv)
        assert done.returncode in expected, f"{argv}: {done.stdout}{done.stderr}\n{self.output()}"
        return done.stdout

    def complaint(self, *argv: str) -> str:
        """What a command that fails says on stderr."""
        done = self._run(*argv)
        assert done.returncode != 0, f"{argv}: {done.stdout}"
        return done.stderr

    def show(self, unit: str) -> dict[str, str]:
        """The unit's properties, as `systemctl show` has them."""
        lines = self.systemctl("show", unit).splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def journal(self, unit: str) -> list[dict[str, Any]]:
        """What the unit has said, and what was said of it, as `journalctl --output json` has it."""
        lines = self.command("journalctl", "--unit", unit, "--output", "json", "--no-pager").splitlines()
        return [json.loads(line) for line in lines]

    def path(self, inside: str) -> Path:
        """A path of there, from here."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def processes(self, unit: str = "") -> dict[int, str]:
        """All that runs there, or in that unit, also in namespaces of its own, systemd and its journal excepted: pid
        (the host's) and command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    group = (entry / "cgroup").read_text().rpartition("0::/")[2].strip().split("/")
                    is_own = group[-1] in ("init.scope", "systemd-journald.service")
                    # unshare itself, outside, has no group below ours.
                    is_meant = group[0] == self._name and len(group) > 1 and (not unit or unit in group)
                    if is_meant and not is_own and (command := (entry / "cmdline").read_bytes()):
                        found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def output(self) -> str:
        """What systemd has said."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Ends it with all that runs there, and removes its cgroup."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid if "pid" in self.__dict__ else self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        eventually(self._cgroup_is_gone, "its cgroup is gone", _STOP_S)
        self._directory.cleanup()

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--all", *argv],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _find_pid(self) -> int:
        """unshare's child, once it has become systemd."""
        assert self._process.poll() is None, self.output()
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError):  # a `mount` of the script, which has ended meanwhile
                if os.path.basename(os.readlink(f"/proc/{child}/exe")) == "systemd":
                    return int(child)
        return 0

    def _cgroup_is_gone(self) -> bool:
        return _in_mounts_of_its_own(_REMOVE_CGROUP.format(name=self._name)).returncode == 0


def _systemd() -> str:
    return next((path for path in _SYSTEMD if os.access(path, os.X_OK)), "")


def _unit_of_the_host(name: str) -> str:
    """Its text, empty for none."""
    files = (Path(directory) / name for directory in _UNIT_DIRECTORIES)
    return next((file.read_text() for file in files if file.is_file()), "")


def _in_mounts_of_its_own(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False
    )


def _inside(units: Path, visible: Iterable[Path]) -> Iterator[str]:
    """The commands that make systemd's world; the last one becomes systemd."""
    yield "umount /sys/fs/cgroup"
    yield "mount -t cgroup2 none /sys/fs/cgroup"
    for setting in ("/proc/sys", "/sys"):
        yield f"mount --rbind {setting} {setting}; mount -o remount,bind,ro {setting}"
    yield "mount -t tmpfs -o mode=755 tmpfs /run"
    yield "cp -a /etc /run/etc; rm -rf /run/etc/systemd/system; mkdir /run/etc/systemd/system"
    yield "mkdir -p /run/systemd/journald.conf.d"
    yield f"printf '{_JOURNAL_SETTINGS}' > /run/systemd/journald.conf.d/test.conf"
    yield "mount --bind /run/etc /etc"
    yield from (f"mount -t tmpfs -o mode=755 tmpfs {directory}" for directory in ("/var/lib", "/var/log"))
    yield f"cp -r {units} {_UNITS}"
    yield f"mkdir /run/kept; cat > /run/program <<'END'\n{_PROGRAM}END\nchmod 755 /run/program"
    covers: dict[Path, list[Path]] = {INSTALLED.parent: []}
    for path in visible:
        for private in _private_parents(path):
            covers.setdefault(private, [])
        for cover in (each for each in covers if path.is_relative_to(each)):
            covers[cover].append(path)
    parts = {INSTALLED / name: ROOT / name for name in ("grid", "lua", "config", "systemd")}
    places = {**parts, INSTALLED / ".venv": Path(sys.prefix)}
    places |= {path: path for paths in covers.values() for path in paths}
    kept = {place: f"/run/kept/{number}" for number, place in enumerate(places)}
    for place, source in places.items():
        yield f"mkdir {kept[place]}; mount --rbind {shlex.quote(str(source))} {kept[place]}"
    for cover in covers:
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(cover))}"
    for place, keeper in kept.items():
        yield f"mkdir -p {shlex.quote(str(place))}; mount --rbind {keeper} {shlex.quote(str(place))}"
    yield f"mount --bind /run/program {INSTALLED}/.venv/bin/pwgrid"
    for directory in ("/tmp", "/var/tmp"):
        yield f"mount -t tmpfs -o mode=1777 tmpfs {directory}"
    yield "mount -o remount,bind,ro /"
    yield "mount --make-rshared /"  # as systemd finds it where it boots: credentials come to a service that way
    environment = (
        f"PATH=/usr/sbin:/usr/bin:/sbin:/bin container=pwgrid-test SYSTEMD_UNIT_PATH={_UNITS}:/etc/systemd/system"
    )
    yield f"exec env -i {environment} {_systemd()} --system --unit=all-there-is.target --log-target=console"


def _private_parents(path: Path) -> Iterator[Path]:
    """The topmost directory on the way to `path` that others may not pass, if there is one."""
    for parent in reversed(path.parents):
        if not parent.stat().st_mode & 0o001:
            yield parent
            return
