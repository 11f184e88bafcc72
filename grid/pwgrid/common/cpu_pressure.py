"""Whether the host has too few processors for what runs on it: the kernel's pressure stall information."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_FILE: Final = Path("/proc/pressure/cpu")


def short_of_cpu_s() -> float | None:
    """Returns for how long since its start the host had a process that waited for a processor, in seconds; None where
    the kernel does not tell (before 4.20, or built without PSI).

    Source: Documentation/accounting/psi.rst, the field `total` (microseconds) of the line `some`."""
    with contextlib.suppress(OSError):
        some = _FILE.read_text().split("\n", 1)[0]
        return int(some.rpartition("total=")[2]) / 1_000_000
    return None
