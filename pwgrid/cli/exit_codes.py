"""Exit codes of the commands. docs/commands.md has the same table; a test compares them."""

from typing import Any, Final

DONE: Final = 0
HEALTHY: Final = DONE
FAILED: Final = 1
REFUSED: Final = 2
DEGRADED: Final = 3
NONE_RUNNING: Final = 4
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
INTERRUPTED: Final = 130


def of_status(found: dict[str, Any]) -> int:
    """What `pwgrid status` exits with for this status: HEALTHY or DEGRADED."""
    is_healthy = found["ready"] and not (
        found["problems"] or found["redis"].get("error") or any(pool["reason"] for pool in found["pools"])
    )
    return HEALTHY if is_healthy else DEGRADED
