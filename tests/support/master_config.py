"""The configuration of a master whose roles and callbacks do nothing: each test changes what it is about."""

from __future__ import annotations

from typing import Any

from pwgrid.master.config import MasterConfig
from pwgrid.master.leftovers import Leftovers
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings


def master_config(runtime: RuntimeDir, **changes: Any) -> MasterConfig:
    def do_nothing(*_arguments: object) -> None: ...

    settings: Settings = changes.get("settings", Settings())
    inert: dict[str, Any] = {
        "settings": settings,
        "redis_url": "redis://localhost",
        "redis": None,
        "runtime": runtime,
        "listeners": (),
        "open_listeners": tuple,
        "run_worker": lambda _boot: 0,
        "run_proxy": lambda _boot: 0,
        "code": "0",
        "tokens_file": None,
        "lifeline_fd": None,
        "leftovers": Leftovers(),
        "kept_open": None,
        "reload": lambda _scaled_up: (settings, lambda: None),
        "describe_settings": lambda _settings: {},
        "is_up_to_date": lambda _settings: True,
        "prepare_pool": do_nothing,
        "check_argv": (),
        "exec_argv": (),
        "on_progress": do_nothing,
        "on_ready": do_nothing,
        "on_not_ready": do_nothing,
        "on_stopping": do_nothing,
        "count_down": None,
    }
    return MasterConfig(**{**inert, **changes})
