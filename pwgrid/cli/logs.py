"""`pwgrid logs`: finds where the log of a grid goes, and the command that shows it; reads none of it."""

import os
import re
import shutil
from pathlib import Path
from typing import Final

from pwgrid.common.errors import GridError

_OWN_FILE: Final = "set LOG_FILE for a log that is always there"
_UNIT: Final = re.compile(r"/([^/]+\.service)(?:/|$)", re.MULTILINE)


def command_for(pid: int, lines: int, *, follow: bool) -> list[str]:
    """The command that shows the last `lines` of what process `pid` of a grid logs. Raises GridError for none."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/2")
    except OSError as error:
        raise GridError(f"cannot see where the log of process {pid} goes: {error.strerror}") from None
    if target.startswith("socket:") and (unit := _unit_of(pid)):
        return ["journalctl", "--unit", unit, "--lines", str(lines), *(["--follow"] if follow else ["--no-pager"])]
    if target.startswith("pipe:") and (supervisord := _supervisord_of(pid)):
        url, name = supervisord
        return ["supervisorctl", "-s", url, "tail", "-f" if follow else f"-{lines * 200}", name]
    if target.startswith(("pipe:", "socket:")):
        raise GridError(f"the log goes to whoever started the grid, through a {target.partition(':')[0]}; {_OWN_FILE}")
    if target.startswith("/dev/"):
        raise GridError(f"the log goes to {target}; {_OWN_FILE}")
    if not os.path.exists(target) or not os.path.samefile(f"/proc/{pid}/fd/2", target):
        raise GridError(f"the log file {target.removesuffix(' (deleted)')} was removed while the grid writes to it")
    return ["tail", "--lines", str(lines), *(["--follow=name"] if follow else []), target]


def _unit_of(pid: int) -> str:
    found = _UNIT.findall(Path(f"/proc/{pid}/cgroup").read_text())
    return str(found[-1]) if found and shutil.which("journalctl") else ""


def _supervisord_of(pid: int) -> tuple[str, str] | None:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    environment = dict(entry.partition("=")[::2] for entry in entries)
    url, group = environment.get("SUPERVISOR_SERVER_URL"), environment.get("SUPERVISOR_GROUP_NAME")
    name = environment.get("SUPERVISOR_PROCESS_NAME")
    if not url or not name or not shutil.which("supervisorctl"):
        return None
    return url, name if group in (None, name) else f"{group}:{name}"
