"""A container engine as its user has it, podman or docker, with the documentation's commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.grid import ROOT

BASE = "docker.io/library/debian:12-slim"
STAND_IN = "localhost/pwgrid-check-base"
IMAGE = "localhost/pwgrid-check"
BUILD_S = 1200
_MIRROR = "http://deb.debian.org"
_SOURCES = f"""deb {_MIRROR}/debian bookworm main
deb {_MIRROR}/debian bookworm-updates main
deb {_MIRROR}/debian-security bookworm-security main
"""
# For a sandbox in which we are root without CAP_SYS_RESOURCE, no systemd is pid 1, and cgroups are of both versions
# (crun 1.8 refuses those).
_MODEST = """[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
"""


class Unavailable(Exception):
    """No engine, or no image to begin with: why."""


class Engine:
    """podman or docker. `directory` takes what it needs beside its own storage."""

    def __init__(self, name: str, directory: Path, settings: str = "") -> None:
        self.name = name
        self._directory = directory
        self._environment = dict(os.environ)
        if settings:
            file = directory / "containers.conf"
            file.write_text(settings)
            self._environment["CONTAINERS_CONF"] = str(file)

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`podman ARGUMENTS`, in the working copy."""
        return self._run([self.name, *arguments], timeout_s)

    def succeed(self, *arguments: str, timeout_s: float = 120) -> str:
        """What it printed. Raises AssertionError when it failed."""
        done = self.run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def line(self, line: str, *, timeout_s: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
        """A line of the documentation, as typed, by this engine."""
        said = line.replace("podman ", f"{self.name} ", 1)
        if self.name == "docker":
            said = said.replace("build --format docker", "build -f Containerfile")
        return self._run(["sh", "-c", said], timeout_s, variables)

    def base(self) -> str:
        """The image to begin with: Debian's from the registry, or one like it from Debian's mirror."""
        if not self.run("image", "inspect", BASE).returncode or not self.run("pull", BASE, timeout_s=300).returncode:
            return BASE
        if self.run("image", "inspect", STAND_IN).returncode:
            self._bootstrap()
        return STAND_IN

    def host_options(self) -> list[str]:
        """What a build needs on a host whose certificates are its own: nothing of it stays in the image."""
        certificates = os.environ.get("PIP_CERT")
        if self.name != "podman" or not certificates:
            return []
        shutil.copy(certificates, self._directory / "certificates.pem")
        (self._directory / "pip.conf").write_text("[global]\ncert = /run/build/certificates.pem\n")
        return [f"--volume={self._directory}:/run/build:ro", f"--volume={self._directory}/pip.conf:/etc/pip.conf:ro"]

    def _bootstrap(self) -> None:
        if os.geteuid() or not shutil.which("debootstrap"):
            raise Unavailable(f"{BASE} cannot be pulled; root with debootstrap can make one like it")
        root = self._directory / "debian"
        done = self._run(["debootstrap", "--variant=minbase", "bookworm", str(root), f"{_MIRROR}/debian"], BUILD_S)
        if done.returncode:
            raise Unavailable(f"neither {BASE} nor Debian's mirror is reached: {done.stdout.strip().splitlines()[-1:]}")
        shutil.rmtree(root / "var/cache/apt/archives")
        (root / "etc/apt/sources.list").write_text(_SOURCES)
        made = self._run(["sh", "-c", f"tar -C {root} -c . | {self.name} import - {STAND_IN}"], BUILD_S)
        assert made.returncode == 0, made.stderr

    def _run(
        self, argv: list[str], timeout_s: float, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=ROOT,
            env={**self._environment, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def find_engine() -> tuple[Engine, str]:
    """An engine that runs a container, and the image to begin with. Raises Unavailable."""
    directory = Path(tempfile.mkdtemp(prefix="pg-container-", dir="/tmp"))
    whys = []
    for name, settings in (("podman", ""), ("podman", _MODEST), ("docker", "")):
        if not shutil.which(name):
            whys.append(f"no {name}")
            continue
        engine = Engine(name, directory, settings)
        try:
            if (listed := engine.run("ps")).returncode == 0:
                base = engine.base()
                tried = engine.run("run", "--rm", base, "true")
                if tried.returncode == 0:
                    return engine, base
                listed = tried
            whys.append(f"{name}: {(listed.stderr.strip() or 'it failed').splitlines()[-1]}")
        except Unavailable as error:
            whys.append(f"{name}: {error}")
    shutil.rmtree(directory)
    raise Unavailable("; ".join(dict.fromkeys(whys)))


def close(engine: Engine) -> None:
    shutil.rmtree(engine._directory)
