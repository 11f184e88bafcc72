"""Says in words which Redis a grid uses, and waits until an external one answers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import shown
from pwgrid.settings.load import Loaded
from pwgrid.settings.model import Settings

_APPLICATION_REDIS: Final = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT")
"""Variables that other programs read as well: the shell that starts the grid may have them for an application."""


def without_application_redis() -> dict[str, str]:
    """Our environment, for a grid that has a Redis of its own whatever the application under test has."""
    return {name: value for name, value in os.environ.items() if name not in _APPLICATION_REDIS}


def which_redis(loaded: Loaded) -> str:
    """The Redis, its URL without password, and which setting named it."""
    if not loaded.settings.redis_url:
        return "a private one, which ends with the grid"
    source = loaded.sources["redis_url"].removeprefix("redis_host, ")
    where = f"{shown(loaded.settings.redis_url.get_secret_value())} ({source})"
    variable = source.removeprefix("environment ")
    if variable not in _APPLICATION_REDIS:
        return where
    return f"{where}: if that is another program's, unset {variable} for a private one, or set PWGRID_REDIS_URL"


def wait_for(settings: Settings, which: str, say: Callable[[str], None]) -> None:
    """Tries until the Redis answers, and says each failed attempt. Raises RegistryUnavailable after the last one."""
    attempts, delay_s = settings.redis_retry_attempts, settings.redis_retry_delay
    asked = {
        "url": settings.redis_url.get_secret_value(),
        "attempts": attempts,
        "delay_s": delay_s,
        "timeout_s": settings.redis_timeout,
    }
    reason = "it could not be tried"
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "pwgrid.registry.wait_for_redis"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            for line in process.stdout:
                failed = json.loads(line)
                reason = failed["reason"]
                again = "" if failed["is_last"] else f"; again in {delay_s:g} s"
                say(f"redis: attempt {failed['attempt']} of {attempts} failed: {reason}{again}")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RegistryUnavailable(f"no Redis: {reason} ({which})")
