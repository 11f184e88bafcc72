"""`pwgrid serve`: puts the parts together and becomes the master. The one place that knows every role."""

import gc
import json
import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from grid import __version__
from grid import log as logging
from grid.boot import WorkerBoot
from grid.browsers import FoundBrowser, find_browser
from grid.config import Loaded, Settings
from grid.core.types import BrowserType
from grid.master.listener import open_listener
from grid.master.main import Master, MasterConfig, RedisSpec, Roles
from grid.proxy.main import run_proxy
from grid.registry import embedded
from grid.runtime_dir import RuntimeDir
from grid.setup_browsers import setup
from grid.worker.main import run_worker


@dataclass(frozen=True, slots=True)
class Extras:
    """What the command line may ask for beside the settings."""

    with_setup: bool = False
    ready_fd: int | None = None
    lifeline_fd: int | None = None


def serve(loaded: Loaded, extras: Extras) -> int:
    """Runs the grid until it is told to stop; returns the exit code. Raises GridError for what the user can mend."""
    settings = loaded.settings
    logging.configure(settings.log_level, settings.log_format, "master")
    browsers = _browsers(settings, extras)
    listener = open_listener(settings.host, settings.port)
    port = listener.getsockname()[1]
    settings = replace(settings, port=port)
    runtime = RuntimeDir.create(settings.runtime_dir, port)
    try:
        with runtime.locked(_endpoint(settings)):
            redis_url, redis = _redis(settings, runtime)
            config = MasterConfig(
                settings=settings,
                redis_url=redis_url,
                redis=redis,
                runtime=runtime,
                listeners=(listener,),
                roles=Roles(worker=partial(_worker_role, browsers), proxy=run_proxy),
                version=__version__,
                endpoint=_endpoint(settings),
                lifeline_fd=extras.lifeline_fd,
                on_progress=_say,
                on_ready=partial(_on_ready, settings, extras),
            )
            gc.collect()
            return Master(config).run()
    finally:
        listener.close()


def _worker_role(browsers: dict[BrowserType, FoundBrowser], boot: WorkerBoot) -> int:
    return run_worker(boot, browsers[boot.browser_type])


def _browsers(settings: Settings, extras: Extras) -> dict[BrowserType, FoundBrowser]:
    wanted = [browser_type for browser_type, workers in settings.workers_wanted().items() if workers > 0]
    if extras.with_setup:
        setup(wanted, settings, _say)
    return {browser_type: find_browser(browser_type, settings) for browser_type in wanted}


def _redis(settings: Settings, runtime: RuntimeDir) -> tuple[str, RedisSpec | None]:
    if settings.redis_url:
        return settings.redis_url, None
    server = embedded.prepare(runtime.directory / "redis")
    return server.url, RedisSpec(server.argv, server.socket_path)


def _endpoint(settings: Settings) -> str:
    host = settings.advertised_host or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"ws://[{host}]:{settings.port}" if ":" in host else f"ws://{host}:{settings.port}"


def _connect_url(settings: Settings) -> str:
    if not settings.token:
        return _endpoint(settings)
    parts = urlsplit(_endpoint(settings))
    return urlunsplit(parts._replace(path="/", query=f"token={quote(settings.token)}"))


def _on_ready(settings: Settings, extras: Extras, summary: dict[str, Any]) -> None:
    pools = ", ".join(
        f"{pool['browserType']} {pool['available']} x {settings.max_concurrent_sessions} slots"
        + (f" ({pool['reason']})" if pool["reason"] else "")
        for pool in summary["pools"]
        if pool["wanted"] > 0
    )
    default = settings.default_browser_type
    _say(f"ready: {_endpoint(settings)} | {pools} | connect with {default}.connect({_endpoint(settings)!r})")
    if extras.ready_fd is not None:
        ready = {"endpoint": _endpoint(settings), "connect": _connect_url(settings), "pid": os.getpid()}
        with os.fdopen(extras.ready_fd, "w") as out:
            out.write(json.dumps(ready) + "\n")


def _say(text: str) -> None:
    try:
        print(f"pwgrid {text}", flush=True)  # noqa: T201
    except OSError:
        # The terminal went away; the grid's own log has the same events.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
