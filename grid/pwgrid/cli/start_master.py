"""Puts the parts of a grid together and becomes its master. The only module that imports every role."""

import contextlib
import gc
import logging as std_logging
import os
import socket
import sys
from collections.abc import Iterator
from functools import partial

import structlog

from pwgrid.cli import exit_codes
from pwgrid.cli.announce_ready import StartMessages, is_by_hand, say
from pwgrid.cli.external_redis import wait_for, which_redis
from pwgrid.common import log as logging
from pwgrid.common.errors import GridError, system_error
from pwgrid.common.grid_url import without_secrets
from pwgrid.forwarder.main import run_forwarder
from pwgrid.installed.running_parts import RunningParts, log_warnings
from pwgrid.master.config import Listeners, MasterConfig, Roles
from pwgrid.master.leftovers import KeptOpen, Leftovers, find_leftovers
from pwgrid.master.listener import inherited_listeners, is_elsewhere, open_listener, open_private
from pwgrid.master.main import Master
from pwgrid.master.upgrade import kept_open
from pwgrid.proxy.main import run_proxy
from pwgrid.registry import embedded_redis_config
from pwgrid.runtime import descriptor_limit
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.child_files import registry_of
from pwgrid.runtime.directory import TLS_SOCKET, RuntimeDir
from pwgrid.settings.load import Loaded
from pwgrid.settings.model import Settings
from pwgrid.settings.start_directory import absolute, start_directory
from pwgrid.tls.main import run_tls
from pwgrid.worker.main import run_worker

log = structlog.get_logger()


@contextlib.contextmanager
def errors_as_json() -> Iterator[None]:
    """Logs an error that ends the grid in this block: with LOG_FORMAT=json, stderr must have nothing but JSON lines."""
    logging.configure("info", "json", "master")
    std_logging.captureWarnings(True)
    try:
        yield
    except GridError as error:
        log.critical("grid_not_started", reason=error.sentence)
        sys.exit(error.exit_code)
    except Exception as error:
        said = system_error(error) if isinstance(error, OSError) else repr(error)
        log.critical("grid_crashed", error=said, exc_info=not isinstance(error, OSError))
        sys.exit(exit_codes.FAILED)  # as Python itself does


def start_master(loaded: Loaded, *, ready_fd: int | None, lifeline_fd: int | None, check_only: bool) -> int:
    """Runs the grid until it is told to stop; returns the exit code. Raises GridError for what the user can mend.

    The lock is taken before the port is opened: the proxy of an earlier master may have the port, and is adopted.
    """
    settings = loaded.settings
    logging.configure(settings.log_level, settings.log_format, "master")
    log_warnings(loaded)
    _raise_open_files(settings)
    kept = kept_open()
    if kept is not None:
        ready_fd = None
    parts = RunningParts(loaded)
    if check_only:
        if not settings.redis_url:
            embedded_redis_config.find_redis_server()  # else the new code would find out when the old one has gone
        say("the code and the configuration load")
        gc.freeze()  # no search for garbage in all that was loaded, at the end of a process that has done nothing else
        return 0
    with contextlib.ExitStack() as held:
        listeners = _inherited(loaded, kept, held)
        if settings.port == 0 and not listeners:
            listeners = _open(settings, held)
        if listeners:
            port = kept.port if kept else _port_of(listeners, settings)
            settings = settings.model_copy(update={"port": port})
        runtime = RuntimeDir.create(settings.runtime_dir, settings.port)
        redis_url = settings.redis_url.get_secret_value() or embedded_redis_config.url_of(runtime.directory / "redis")
        held.enter_context(runtime.locked(without_secrets(settings.client_url()), kept.lock if kept else None))
        leftovers = find_leftovers(registry_of(redis_url, settings.redis_key_prefix), kept, runtime.directory)
        runtime.remove_all_but([*leftovers.paths(), *([runtime.control_path.name] if kept else [])])
        which = which_redis(loaded)
        messages = StartMessages(settings, runtime, ready_fd, None if kept else which, loaded.tokens_file)
        if not kept and not leftovers.paths() and settings.redis_url:
            messages.progress(f"redis: {which}")
            # A service goes on, not ready, until its Redis has started; a person has probably named a wrong one.
            if ready_fd is None and is_by_hand():
                wait_for(settings, which, messages.progress)
        if not listeners and leftovers.proxy is None:
            listeners = _open(settings, held)
        completed = partial(_with_inner, settings, runtime, held)
        listeners = completed(listeners)
        config = MasterConfig(
            settings=settings,
            parts=parts,
            runtime=runtime,
            redis_url=redis_url,
            redis=None if settings.redis_url else _embedded(runtime, leftovers),
            listeners=Listeners(
                listeners, lambda: completed(_open(settings, held)), completed, partial(_moved, settings, held)
            ),
            roles=Roles(partial(_worker_role, parts), run_proxy, run_forwarder, run_tls),
            messages=messages,
            argv=_own_command(),
            leftovers=leftovers,
            kept_open=kept,
            lifeline_fd=lifeline_fd,
        )
        if settings.log_file:
            # After an upgrade the log of the old code is still open: without another one it goes on in that.
            (logging.open_again if kept else logging.append_to)(settings.log_file)
            logging.configure(settings.log_level, settings.log_format, "master")
        return Master(config).run()


def _embedded(runtime: RuntimeDir, leftovers: Leftovers) -> embedded_redis_config.EmbeddedRedis:
    return embedded_redis_config.prepare(runtime.directory / "redis", runs=leftovers.redis is not None)


def _open(settings: Settings, held: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    return (held.enter_context(open_listener(settings.host, settings.port, runtime_dir=settings.runtime_dir)),)


def _moved(
    settings: Settings, held: contextlib.ExitStack, listeners: tuple[socket.socket, ...]
) -> tuple[socket.socket, ...]:
    """These, unless they are on another address than the settings name: then one on that address."""
    if not is_elsewhere(listeners, settings.host):
        return listeners
    outer = [each for each in listeners if each.family != socket.AF_UNIX]
    made = open_listener(settings.host, settings.port, runtime_dir=settings.runtime_dir, instead_of=outer)
    return (held.enter_context(made),)


def _with_inner(
    settings: Settings, runtime: RuntimeDir, held: contextlib.ExitStack, listeners: tuple[socket.socket, ...]
) -> tuple[socket.socket, ...]:
    """These and, where the grid has a certificate, the socket on which proxies accept clients from the TLS process."""
    path = runtime.directory / TLS_SOCKET
    if not (listeners and settings.tls_cert) or any(each.getsockname() == str(path) for each in listeners):
        return listeners
    return (*listeners, held.enter_context(open_private(path)))


def _inherited(loaded: Loaded, kept: KeptOpen | None, held: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    """The listening sockets that came with us: over our own exec, from systemd, or from supervisord."""
    if kept:
        found = [socket.socket(fileno=fd) for fd in kept.listeners]
    else:
        has_tokens = loaded.tokens_file is not None and os.path.exists(loaded.tokens_file)
        found = inherited_listeners(loaded.settings, has_tokens=has_tokens)
    for listener in found:
        held.enter_context(listener)
    return tuple(found)


def _raise_open_files(settings: Settings) -> None:
    limit, wanted = descriptor_limit.raise_limit(), descriptor_limit.wanted(settings)
    if limit < wanted:
        log.warning("few_open_files", limit=limit, wanted=wanted, about=descriptor_limit.RAISE_IT)


def _port_of(listeners: tuple[socket.socket, ...], settings: Settings) -> int:
    address = listeners[0].getsockname()
    return int(address[1]) if isinstance(address, tuple) else settings.port


def _own_command() -> list[str]:
    """What started this process. Its script may have been named by a relative path."""
    script, directory = sys.argv[0], start_directory(os.environ)
    arguments = (str(absolute(each, directory)) if each == script else each for each in sys.orig_argv[1:])
    return [sys.executable, *arguments]


def _worker_role(parts: RunningParts, arguments: WorkerArguments) -> int:
    # A successor may be of a pool that is in no configuration any more, and needs no browser.
    return run_worker(arguments, parts.browsers.get(arguments.pool.name))
