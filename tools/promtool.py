"""Puts promtool into .venv/bin, for the tests of the alerts: 20 MB of Debian's package prometheus, of which nothing is
installed. Says in one line why not where that cannot be had."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

BIN: Final = Path(__file__).resolve().parents[1] / ".venv/bin"
TIMEOUT_S: Final = 60


def fetch(into: Path) -> str | None:
    """Why there is no promtool; None when there is one."""
    if shutil.which("promtool") or (into / "promtool").exists():
        return None
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "this is no Debian"
    with tempfile.TemporaryDirectory(prefix="pwgrid-promtool-") as directory:
        run(["apt-get", "-qq", "download", "prometheus"], directory)
        package = next(Path(directory).glob("prometheus_*.deb"))
        run(["sh", "-c", f"dpkg-deb --fsys-tarfile {package.name} | tar -x ./usr/bin/promtool"], directory)
        shutil.copy(Path(directory) / "usr/bin/promtool", into / "promtool")
    return None


def run(command: list[str], directory: str) -> None:
    """Raises CalledProcessError with what it said, TimeoutExpired."""
    subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)


if __name__ == "__main__":
    try:
        problem = fetch(BIN)
    except subprocess.CalledProcessError as error:
        problem = (error.stderr.strip().splitlines() or ["it failed"])[-1]
    except (subprocess.TimeoutExpired, OSError, StopIteration) as error:
        problem = repr(error)
    if problem is not None:
        sys.stdout.write(f"pwgrid: no promtool ({problem}): the tests of the alerts are skipped\n")
