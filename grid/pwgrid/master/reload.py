"""Takes new settings into a running grid: scales, recycles and replaces what they change, or refuses all of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common import log as logging
from pwgrid.common.errors import GridError
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.server import Deferred
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.changed_settings import Change, compare
from pwgrid.master.services import Services
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.child_files import ChildState
from pwgrid.settings.model import Settings

log = structlog.get_logger()

CONFIGURATION: Final = Reason(WorkerEnd.CONFIGURATION)
UPGRADE: Final = Reason(WorkerEnd.UPGRADE)

KNOWN_S: Final = 3.0
"""How long a reload waits until the proxy has the new configuration."""


class Reload:
    """Reads the configuration again and follows it. The table in settings/model.py says what each setting concerns."""

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        files: ChildFileWriter,
        workers: Workers,
        services: Services,
    ) -> None:
        self._loop = loop
        self._config = config
        self._files = files
        self._workers = workers
        self._proxies = services.proxies
        self._forwarder = services.forwarder
        self._tls = services.tls
        self._unanswered: list[tuple[Deferred, Frame]] = []
        self._late = loop.timer(lambda: self._answer(proxy_knows=False))

    def start(self) -> Deferred:
        """Open the log anew, read the configuration again and follow it. The answer comes when the proxy, which clients
        meet, has it, too, or after KNOWN_S. Raises ValueError with all faults of the configuration."""
        self._open_log_again()  # also where the configuration is refused: who rotates the log cannot mend that
        self._tls.tell_all("look", {})
        answer, done = Deferred(), self._run()
        self._unanswered.append((answer, done))
        if done["changed"]:
            self._proxies.configuration = secrets.token_hex(4)
        self._late.arm(min(self._late.when, self._loop.now() + KNOWN_S))
        self.answer_if_known()
        return answer

    def answer_if_known(self) -> None:
        """Answer the reloads that wait for the proxy, if it has the configuration: also its own settings, such as the
        token. Call it after each turn of the loop."""
        if self._unanswered and self._proxies.know_configuration() and not self._proxies.is_to_be_replaced:
            self._answer(proxy_knows=True)

    def answer_all(self) -> None:
        """Answer the reloads that wait for the proxy, which has not confirmed them yet: this process is about to end or
        to execute itself, and who has asked would hear nothing."""
        self._answer(proxy_knows=False)

    def _answer(self, *, proxy_knows: bool) -> None:
        self._late.cancel()
        unanswered, self._unanswered = self._unanswered, []
        for answer, done in unanswered:
            answer.reply({**done, "proxyKnows": proxy_knows})

    def _open_log_again(self) -> None:
        if path := self._config.settings.log_file:
            logging.open_again(path)
            for send in (self._proxies.tell_all, self._workers.tell_all, self._forwarder.tell, self._tls.tell_all):
                send("open_log", {})

    def _run(self) -> Frame:
        change, settings, accept = self.read()
        self._config.settings = settings
        accept()
        self._workers.follow_settings()
        for name, workers in change.scale.items():
            self._workers.pools[name].scale(workers)
        recycled = self.recycle_outdated()
        if change.replace_proxy:
            self._proxies.replace(CONFIGURATION)
            self._forwarder.replace()  # what it heeds of the settings, a proxy does, too
        pools = {"added": list(change.added), "removed": list(change.removed)}
        log.info("reloaded", changed=change.changed, recycled=recycled, proxy=change.replace_proxy, **pools)
        return {
            "changed": list(change.changed),
            **pools,
            "scaled": dict(change.scale),
            "recycled": recycled,
            "proxy": change.replace_proxy,
        }

    def replace_outdated(self, proxy: ChildState | None) -> None:
        """Recycle and replace what another master has forked with other settings or other code. `proxy` is the file of
        its proxy."""
        self.recycle_outdated()
        if proxy is not None and proxy.version != self._config.parts.code:
            self._proxies.replace(UPGRADE)
        elif proxy is not None and proxy.settings != self._files.settings_of("proxy"):
            self._proxies.replace(CONFIGURATION)

    def recycle_outdated(self) -> list[str]:
        """Mark the workers with other settings or other code than is wanted now to be recycled; returns their ids."""
        found = []
        for worker in self._workers.by_id.values():
            if worker.pool.is_removed or not worker.life.is_capacity:
                continue
            reason = None
            if worker.settings != self._files.settings_of_pool(worker.pool.settings):
                reason = CONFIGURATION
            elif worker.code != self._config.parts.code:
                reason = UPGRADE
            if worker.recycle in (None, CONFIGURATION):  # the settings may be changed back before its turn comes
                worker.mark(reason)
            if reason is not None:
                found.append(worker.worker_id)
        return found

    def read(self) -> tuple[Change, Settings, Callable[[], None]]:
        """Read the configuration. Returns what it changes, the configuration itself, and a function to call if it is
        followed. Raises ValueError."""
        config = self._config
        scaled_up = {name for name, pool in self._workers.pools.items() if pool.workers and not pool.settings.workers}
        try:
            settings, accept = config.parts.reload(config.settings.port, scaled_up)
        except GridError as error:
            log.error("configuration_refused", reason=str(error))
            raise ValueError(str(error)) from None
        change = compare(config.settings, settings)
        if change.refused:
            sentence = (
                f"cannot change while the grid runs: {', '.join(change.refused)}; stop the grid and start it again"
            )
            log.error("configuration_refused", reason=sentence)
            raise ValueError(sentence)
        return change, settings, accept
