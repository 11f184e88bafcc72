"""Exit codes of the commands. docs/commands.md has the same table; a test compares them."""

from typing import Final

DONE: Final = 0
HEALTHY: Final = DONE
FAILED: Final = 1
REFUSED: Final = 2
DEGRADED: Final = 3
NONE_RUNNING: Final = 4
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
INTERRUPTED: Final = 130
READER_GONE: Final = 141
"""Who read stdout went away: what a shell says of a program that SIGPIPE ends."""
