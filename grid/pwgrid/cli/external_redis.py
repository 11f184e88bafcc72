"""Says in words which Redis a grid uses, and waits until an external one answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import shown
from pwgrid.settings.model import APPLICATION_REDIS, Settings

if TYPE_CHECKING:
    from pwgrid.settings.load import Loaded

_LASTING: Final = 2
"""How `try_redis` exits where trying again cannot help."""

_TRIED_WITHIN_S: Final = 60.0
"""Time for one attempt, beside REDIS_TIMEOUT: Python has to start, and each of several sentinels may be silent."""


def without_application_redis() -> dict[str, str]:
    """This process's environment without the Redis of the application under test: the grid has its own."""
    return {name: value for name, value in os.environ.items() if name not in APPLICATION_REDIS}


def which_redis(loaded: Loaded) -> str:
    """The Redis, its URL without password, and which setting named it."""
    if not loaded.settings.redis_url:
        return "a private one, which ends with the grid"
    _, source = loaded.redis_named_by
    where = f"{shown(loaded.settings.redis_url.get_secret_value())} ({source})"
    variable = source.removeprefix("environment ")
    if variable not in APPLICATION_REDIS:
        return where
    return f"{where}: if that is another program's, unset {variable} for a private one, or set PWGRID_REDIS_URL"


def wait_for(settings: Settings, which: str, say: Callable[[str], None]) -> None:
    """Tries the Redis until it is good, and reports each failed attempt that another one follows. Raises
    RegistryUnavailable after the last one, which is the first where trying again cannot help."""
    attempts, delay_s = settings.redis_retry_attempts, settings.redis_retry_delay
    for attempt in range(1, attempts + 1):
        code, fault = _try(settings)
        if code == 0:
            return
        if code == _LASTING or attempt == attempts:
            raise RegistryUnavailable(f"no Redis: {fault} ({which})")
        say(f"redis: attempt {attempt} of {attempts} failed: {fault}; again in {delay_s:g} s")
        time.sleep(delay_s)  # noqa: TID251 - no event tells when Redis comes


def _try(settings: Settings) -> tuple[int, str]:
    """The exit code of `try_redis`, and what it said."""
    asked = {
        "url": settings.redis_url.get_secret_value(),
        "timeout_s": settings.redis_timeout,
        "prefix": settings.redis_key_prefix,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pwgrid.registry.try_redis"],
            input=json.dumps(asked),
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_TRIED_WITHIN_S + settings.redis_timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 1, f"no answer within {error.timeout:g} s"
    return done.returncode, done.stdout.strip() or "it could not be tried"
