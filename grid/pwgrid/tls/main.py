"""The TLS process: does the handshake with the grid's clients, where the grid has a certificate, and speaks TLS with
other hosts that have one. It copies the bytes of other hosts, and those of clients where the kernel has no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
import uvloop

from pwgrid import __version__
from pwgrid.common import log as logging
from pwgrid.common.certificate import client_context, server_context
from pwgrid.common.errors import GridError
from pwgrid.common.kernel_tls import KernelTls, NoKernelTls, find_kernel_tls, kernel_tls_between_hosts
from pwgrid.common.tasks import BackgroundTasks
from pwgrid.common.tcp_options import tune
from pwgrid.control.child_side import ChildSide
from pwgrid.runtime.child_arguments import TlsArguments
from pwgrid.runtime.directory import TLS_OUT_SOCKET, TLS_SOCKET
from pwgrid.runtime.last_child_ends_grid import end_grid_if_last, workers_end
from pwgrid.settings.model import Settings
from pwgrid.tls.door import TlsDoor
from pwgrid.tls.files import CertificateFiles
from pwgrid.tls.to_other_hosts import ToOtherHosts

log = structlog.get_logger()

NAME: Final = "tls"

LOOK_INTERVAL_S: Final = 5.0
"""How often it looks for another certificate while nobody comes."""

OTHER_DESCRIPTORS: Final = 64
LAST_WORKER_S: Final = 30.0
"""How long a worker may take to exit after its drain."""

TELL_S: Final = 1.0
"""How often at most the master hears how many sessions there are: it only shows them."""


class TlsProcess:
    """One TLS process, from the fork to its end."""

    def __init__(self, boot: TlsArguments) -> None:
        settings = boot.settings
        self.boot = boot
        self.files: CertificateFiles | None = None
        self.door: TlsDoor | None = None
        self.kernel, self.why_no_kernel = _kernel_tls(settings) if settings.tls_cert else (None, None)
        if settings.tls_cert:
            self.files = CertificateFiles(settings.tls_cert, settings.tls_key, self.kernel)
            inner, by_kernel = boot.runtime / TLS_SOCKET, self.kernel is not None
            self.door = TlsDoor(boot.listeners, inner, self.files, _room(), self._changed, by_kernel=by_kernel)
        self.to_other_hosts: ToOtherHosts | None = None
        if settings.host_name():
            self.to_other_hosts = _to_other_hosts(boot, self._changed)
        for listener in boot.listeners:
            tune(listener, settings.session_ping_timeout)
        self._stop = asyncio.Event()
        self._leaves = False
        """Whether it takes nobody new, and ends with its last session."""
        self._is_signalled = False
        self._background_tasks = BackgroundTasks(self._background_task_failed)
        self._tell: asyncio.TimerHandle | None = None
        self.control = ChildSide(
            sock=boot.control,
            control_path=boot.runtime / "control.sock",
            hello=self._hello,
            on_command=self._on_command,
            on_state=lambda _state: None,
            ping_data=self._view,
            lost_threshold_s=settings.worker_lost_threshold,
            on_lost=self._on_lost,
            on_found=self._on_found,
        )

    async def run(self) -> int:
        """Serves until the master says stop, or a SIGTERM or the loss of the master ends it. Returns the exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        self._background_tasks.start(self.control.run(), "control link")
        self._background_tasks.start(self._keep_looking(), "certificate")
        if self.door is not None:
            self.door.open()
        if self.to_other_hosts is not None:
            self.to_other_hosts.open()
        log.info("tls_started", pid=os.getpid(), **self._kernel_view())
        self.control.push_state(self._view())
        await self._stop.wait()
        self.control.stopping()
        self._close()
        for each in self._parts():
            each.abort()
        self._background_tasks.cancel_all_but("control link")
        await self.control.close("stopped")
        if self.control.is_lost:
            end_grid_if_last(self.boot.runtime)
        return 0

    def _parts(self) -> Iterator[TlsDoor | ToOtherHosts]:
        yield from filter(None, (self.door, self.to_other_hosts))

    def _close(self) -> None:
        for each in self._parts():
            each.close()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self._look()

    def _look(self) -> None:
        if self.files is None:
            return
        before = self.files.problem
        self.files.look()
        if self.files.problem != before:
            self.control.push_state(self._view())

    # The master

    def _on_command(self, name: str, _data: dict[str, Any]) -> None:
        if name == "leave":
            self._leave()
        elif name == "look":
            self._look()
        elif name == "open_log":
            logging.open_again(self.boot.settings.log_file)
        else:
            log.error("command_unknown", name=name)

    def _leave(self) -> None:
        self._leaves = True
        self._close()
        self._changed()

    def _on_sigterm(self) -> None:
        """The first one lets sessions go on: the master says when their time is over, and without one they have as long
        as the workers. A second one means now, also the first one after the master has told it to leave."""
        if self._is_signalled or self._leaves:
            self._stop.set()
        self._is_signalled = True
        self.control.give_up()

    def _on_lost(self) -> None:
        """If the master is dead, the workers drain, and this process ends after them. If it is frozen, it stays."""
        if not self.control.is_connected:
            self._background_tasks.start(self._go_last(), "go last")

    def _on_found(self) -> None:
        self._is_signalled = False
        self._background_tasks.cancel_named("go last")

    async def _go_last(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.boot.settings.drain_timeout + LAST_WORKER_S):
                await workers_end(self.boot.runtime)
        self._leave()

    def _changed(self) -> None:
        if self._leaves and all(each.is_idle for each in self._parts()):
            self._stop.set()
        elif self._tell is None:
            self._tell = asyncio.get_running_loop().call_later(TELL_S, self._tell_now)

    def _tell_now(self) -> None:
        self._tell = None
        self.control.push_state(self._view())

    def _background_task_failed(self, name: str, _error: BaseException) -> None:
        if name == "control link":
            self._stop.set()

    def _view(self) -> dict[str, Any]:
        sessions = sum(len(each.sessions) for each in self._parts())
        problem = self.files.problem if self.files is not None else None
        return {"sessions": sessions, "problem": problem, **self._kernel_view()}

    def _kernel_view(self) -> dict[str, str | None]:
        """What the kernel speaks with clients, or why it does not."""
        return {"kernel": self.kernel.named if self.kernel is not None else None, "whyNot": self.why_no_kernel}

    def _hello(self) -> dict[str, Any]:
        return {"name": NAME, "role": NAME, "version": __version__, "pid": os.getpid(), "at": time.time()}


def _kernel_tls(settings: Settings) -> tuple[KernelTls | None, str | None]:
    """What the kernel has of TLS, or why it is not used."""
    if settings.tls_kernel == "off":
        return None, "TLS_KERNEL is off"
    try:
        return find_kernel_tls(lambda: server_context(settings.tls_cert, settings.tls_key)), None
    except NoKernelTls as error:
        return None, error.why


def _to_other_hosts(boot: TlsArguments, on_change: Callable[[], None]) -> ToOtherHosts:
    settings = boot.settings
    kernel_context = None
    if settings.tls_kernel != "off":
        with contextlib.suppress(NoKernelTls):
            kernel = kernel_tls_between_hosts()
            kernel_context = client_context(settings.tls_ca)
            kernel.apply(kernel_context)
    return ToOtherHosts(
        boot.runtime / TLS_OUT_SOCKET,
        client_context(settings.tls_ca),
        on_change,
        kernel_context=kernel_context,
        ping_timeout_s=settings.session_ping_timeout,
    )


def _room() -> int:
    """How many clients it may have at once, with two descriptors each."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (soft - OTHER_DESCRIPTORS) // 2)


def run_tls(boot: TlsArguments) -> int:
    """Runs the TLS role in the forked child. Returns the exit code."""
    logging.bind(NAME)

    async def live() -> int:
        try:
            process = TlsProcess(boot)
        except GridError as error:  # the files have changed since the grid started; the master tries again
            log.error("certificate_not_usable", reason=error.sentence)
            return 1
        return await process.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live())
