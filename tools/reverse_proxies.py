"""Unpacks Debian's nginx and haproxy, with the libraries that they lack here, below .venv/share: for the tests of the
examples in docs/connect.md. Installs nothing, since an installed package would start a service. Where that fails,
prints why in one line."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

NAMES: Final = ("nginx", "haproxy")
ROOT: Final = Path(__file__).resolve().parents[1] / ".venv/share/reverse-proxies"
TIMEOUT_S: Final = 60


def find(name: str, root: Path = ROOT) -> str | None:
    """The program: the host's own, else the unpacked one; None where there is neither."""
    own = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]))
    unpacked = root / "usr/sbin" / name
    return own or (str(unpacked) if unpacked.exists() else None)


def libraries(root: Path = ROOT) -> str:
    """The unpacked libraries, for LD_LIBRARY_PATH."""
    return os.pathsep.join(sorted({str(path.parent) for path in root.rglob("*.so.*")}))


def fetch(into: Path) -> str | None:
    """Unpacks what is missing into this directory. None when it worked, else why not."""
    missing = [name for name in NAMES if find(name, into) is None]
    if not missing:
        return None
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "this is no Debian"
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".reverse-proxies-", dir=into.parent) as directory:
        # Lines like: Inst haproxy (2.6.12-1 Debian:12.11/oldstable [amd64])
        planned = run(["apt-get", "-s", "--no-install-recommends", "install", *missing], directory)
        run(["apt-get", "-qq", "download", *re.findall(r"^Inst (\S+)", planned, re.MULTILINE)], directory)
        root = Path(directory) / "root"
        for package in sorted(Path(directory).glob("*.deb")):
            run(["dpkg-deb", "--extract", package.name, root.name], directory)
        shutil.rmtree(into, ignore_errors=True)
        root.replace(into)  # whole, or not at all
    return None


def run(command: list[str], directory: str) -> str:
    """Runs a command in `directory`; returns its stdout. Raises CalledProcessError with its stderr, TimeoutExpired."""
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout


if __name__ == "__main__":
    try:
        problem = fetch(ROOT)
    except subprocess.CalledProcessError as error:
        problem = (error.stderr.strip().splitlines() or ["it failed"])[-1]
    except (subprocess.TimeoutExpired, OSError, IndexError) as error:
        problem = repr(error)
    if problem is not None:
        sys.stdout.write(f"pwgrid: no nginx and haproxy ({problem}): the tests of reverse proxies are skipped\n")
