"""The wheel carries what the code needs beside itself."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def test_the_wheel_carries_scripts_and_configuration(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", *OFFLINE, "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("pwgrid-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    (entry_points,) = (name for name in names if name.endswith("/entry_points.txt"))
    assert "[console_scripts]\npwgrid = pwgrid.__main__:main\n" in zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "[pytest11]\npwgrid = pwgrid.pytest_plugin\n" in zipfile.ZipFile(wheel).read(entry_points).decode()
    for folder, suffix in (("lua", "lua"), ("config", "toml"), ("config", "conf"), ("docs", "md")):
        for path in (ROOT / folder).glob(f"*.{suffix}"):
            assert f"pwgrid/_resources/{folder}/{path.name}" in names
    assert {
        f"pwgrid/worker/browser/{path.name}" for path in (ROOT / "pwgrid" / "worker" / "browser").glob("*.cjs")
    } <= names
    page = ROOT / "pwgrid" / "proxy" / "dashboard" / "static"
    assert {f"pwgrid/proxy/dashboard/static/{path.name}" for path in page.iterdir()} <= names
