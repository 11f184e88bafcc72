"""The pool of what the master and the API tell of; an earlier version of them tells only the browser type."""

from collections.abc import Mapping
from typing import Any


def pool_name(pool: Mapping[str, Any]) -> str:
    """The name of a pool."""
    return str(pool.get("name") or pool["browserType"])


def pool_of(found: Mapping[str, Any]) -> str:
    """The pool of a worker or a session."""
    return str(found.get("pool") or found["browserType"])
