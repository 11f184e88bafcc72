"""Puts promtool into .venv/bin, for the tests of the alerts. Downloads Debian's package prometheus (20 MB) and takes it
out of that, without installing the package. Where that fails, prints why in one line."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

BIN: Final = Path(__file__).resolve().parents[1] / ".venv/bin"
TIMEOUT_S: Final = 60


def fetch(into: Path) -> str | None:
    """Puts promtool into this directory unless there is one. None when it worked, else why not."""
    if shutil.which("promtool") or (into / "promtool").exists():
        return None
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "this is no Debian"
    with tempfile.TemporaryDirectory(prefix="pwgrid-promtool-") as directory:
        run(["apt-get", "-qq", "download", "prometheus"], directory)
        package = next(Path(directory).glob("prometheus_*.deb"))
        run(["sh", "-c", f"dpkg-deb --fsys-tarfile {package.name} | tar -x ./usr/bin/promtool"], directory)
        draft = into / ".promtool"  # so that an interruption leaves no half of it under its name
        try:
            shutil.copy(Path(directory) / "usr/bin/promtool", draft)
            draft.replace(into / "promtool")
        finally:
            draft.unlink(missing_ok=True)
    return None


def run(command: list[str], directory: str) -> None:
    """Runs a command in `directory`. Raises CalledProcessError with its stderr, TimeoutExpired."""
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
