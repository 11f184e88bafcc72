"""The configuration of a master whose roles and messages do nothing: each test changes what it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pwgrid.master.config import Listeners, MasterConfig, Roles
from pwgrid.master.leftovers import Leftovers
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


class NoMessages:
    """Nobody hears how the grid's start goes."""

    count_down: Callable[[str], None] | None = None

    def progress(self, text: str) -> None: ...

    def ready(self, status: dict[str, Any]) -> None: ...

    def not_ready(self, status: dict[str, Any]) -> None: ...

    def stopping(self, text: str) -> None: ...


class SameParts:
    """Stands in for RunningParts: nothing installed ever changes, and no browser is looked for."""

    code = "0"
    versions: tuple[str, ...] = ()
    tokens_file: Path | None = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def reload(self, _port: int, _scaled_up: Collection[str]) -> tuple[Settings, Callable[[], None]]:
        return self._settings, lambda: None

    def look_for_versions(self, _settings: Settings) -> bool:
        return False

    def prepare_pool(self, settings: Settings, pool: PoolSettings) -> None: ...

    def describe(self, _settings: Settings) -> dict[str, Any]:
        return {}

    def are_installed(self, _settings: Settings) -> bool:
        return True


def master_config(runtime: RuntimeDir, **changes: Any) -> MasterConfig:
    settings: Settings = changes.get("settings", Settings())
    inert: dict[str, Any] = {
        "settings": settings,
        "parts": SameParts(settings),
        "runtime": runtime,
        "redis_url": "redis://localhost",
        "redis": None,
        "listeners": Listeners((), tuple),
        "roles": Roles(*[lambda _boot: 0] * 4),
        "messages": NoMessages(),
        "argv": (),
        "leftovers": Leftovers(),
    }
    return MasterConfig(**{**inert, **changes})
