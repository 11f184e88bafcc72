"""What a worker's id may be. It names a directory, and some ids come from Redis or from clients."""

import re
from typing import Final

_WORKER_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")


def is_worker_id(text: str) -> bool:
    """Whether this may be a worker's id. The master makes them of 8 hex digits; other programs have others."""
    return _WORKER_ID.fullmatch(text) is not None
