"""What docs/incidents.md quotes is what the grid says."""

import re
from pathlib import Path

import pwgrid
from pwgrid.common.redis_faults import FaultKind

ROOT = Path(pwgrid.__file__).resolve().parents[2]
OF_OTHERS = {
    "/dev/shm",
    "/run",
    "TasksMax",
    "oom-kill",
    "journalctl -k",
    "MemoryMax",
    "pids",
    "Resource temporarily unavailable",
    "running",
    "self-signed certificate",
    "unable to verify the first certificate",
}


def test_the_page_has_each_fault_of_a_redis() -> None:
    page = (ROOT / "docs" / "incidents.md").read_text()
    assert [kind.name for kind in FaultKind if f"| `{kind.value.text}` |" not in page] == []


def test_every_symptom_in_the_page_is_a_text_of_the_code() -> None:
    sources = (path for suffix in ("py", "cjs", "lua") for path in (ROOT / "grid/pwgrid").rglob(f"*.{suffix}"))
    code = "\n".join(path.read_text() for path in sources)
    rows = [line.split(" | ")[0] for line in (ROOT / "docs" / "incidents.md").read_text().splitlines() if "| " in line]
    quoted = {each for row in rows for each in re.findall(r"`([^`]+)`", row)}
    assert len(quoted) > 30
    assert sorted(each for each in quoted - OF_OTHERS if each not in code) == []
