"""A real master with tiny roles: `python -m tests.support.master_main '<json>'`; it tells on stdout, in JSON lines.

The worker role speaks the control link and has a child and a detached grandchild, as a browser server has; no browser.
`behaviour` says for each pool how its workers are: serve, crash, fail, mute, slow (they go only when told now), leaves.
`worker_says` is added to the state of each worker, `proxy_says` to the proxy's. `reloaded` are the settings that a
reload changes, which the proxy never confirms: the reload waits for that.
SIGUSR1 has a worker count so many sessions that one in a hundred is left to it; SIGUSR2 has it used up.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import uvloop

from pwgrid.common import log as logging
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.tasks import first_of
from pwgrid.control.child_side import ChildSide
from pwgrid.control.server import Deferred
from pwgrid.forwarder.main import run_forwarder
from pwgrid.master import child, reload, shutdown_order
from pwgrid.master.config import Listeners, Roles
from pwgrid.master.listener import open_listener
from pwgrid.master.main import Master
from pwgrid.master.operator_requests import Requests
from pwgrid.master.workers import clean_up
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.workers import Workers
from pwgrid.proxy.roster import Roster
from pwgrid.registry.embedded_redis_config import EmbeddedRedis
from pwgrid.runtime.child_arguments import ProxyArguments, WorkerArguments
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import SETTINGS, Settings
from pwgrid.settings.pools import PoolTable
from pwgrid.tls.main import run_tls
from tests.support.master_config import NoMessages, SameParts, master_config

_TREE = """
import subprocess
detached = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(detached.pid, flush=True)
detached.wait()
"""


def say(what: str, **fields: Any) -> None:
    # One write, so that lines of different processes do not mix.
    os.write(1, (json.dumps({"what": what, **fields}) + "\n").encode())


def open_fds() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


class FakeWorker:
    def __init__(self, boot: WorkerArguments, behaviour: str, says: dict[str, Any]) -> None:
        self.boot = boot
        self.says = says
        self.behaviour = behaviour
        self.status = "starting"
        self.lifetime = 0
        self.serve = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.drain = loop.create_future()
        limit = boot.settings.max_lifetime_sessions
        loop.add_signal_handler(signal.SIGUSR1, lambda: self.count(limit * 99 // 100))
        loop.add_signal_handler(signal.SIGUSR2, lambda: self.count(limit))
        self.control = ChildSide(
            sock=boot.control,
            control_path=boot.runtime / "control.sock",
            hello=lambda: {"name": boot.worker_id, "role": "worker", "pid": os.getpid(), "slots": 5, "version": "0"},
            on_command=self.on_command,
            on_state=lambda _state: None,
            ping_data=self.state,
            lost_threshold_s=boot.settings.worker_lost_threshold,
            on_lost=lambda: self.on_command("drain", {"reason": Reason(WorkerEnd.NO_MASTER).as_data()}),
        )

    def state(self) -> dict[str, Any]:
        return {"status": self.status, "active": 0, "lifetime": self.lifetime, **self.says}

    def count(self, lifetime: int) -> None:
        self.control.push_state(self.state())  # so all of these have begun after it
        self.lifetime = lifetime
        self.control.push_state(self.state())
        if lifetime >= self.boot.settings.max_lifetime_sessions:
            replacement = self.boot.runtime / "replacement"  # what Redis would tell
            self.drain.set_result(
                {
                    "reason": Reason(WorkerEnd.LIFETIME).as_data(),
                    "replacement": replacement.read_text() if replacement.exists() else None,
                }
            )

    def on_command(self, name: str, data: dict[str, Any]) -> None:
        say("command", worker=self.boot.worker_id, name=name, data=data)
        if name == "serve":
            self.serve.set()
        elif (self.behaviour != "slow" or data.get("within") == "now") and not self.drain.done():
            self.drain.set_result(data)

    async def succeed(self, node_pid: int) -> int:
        """As after the death of another worker process: here without sessions that could go on."""
        say("successor", worker=self.boot.worker_id, pid=os.getpid(), node=node_pid, ipc=self.boot.ipc.fileno())
        self.control.event("draining", {"reason": Reason(WorkerEnd.TAKEN_OVER).as_data()})
        if self.behaviour == "slow":
            await self.drain
        for process in [*psutil.Process(node_pid).children(recursive=True), psutil.Process(node_pid)]:
            process.kill()
        self.control.event("stopped", {})
        await self.control.close("stopped")
        return 0

    async def asked_to_end(self) -> None:
        await asyncio.shield(self.drain)

    async def run(self) -> int:
        link = asyncio.create_task(self.control.run())
        if self.boot.adopt_node_pid is not None:
            return await self.succeed(self.boot.adopt_node_pid)
        if self.behaviour == "fail":
            self.control.event("failed", {"reason": Reason(WorkerEnd.LAUNCH_FAILED, "the browser is broken").as_data()})
            await self.control.close("failed")
            return 1
        if self.behaviour != "mute":
            environment = {**os.environ, "TMPDIR": str(self.boot.directory / "tmp")}
            tree = subprocess.Popen([sys.executable, "-c", _TREE], env=environment, stdout=subprocess.PIPE, text=True)
            assert tree.stdout is not None
            grandchild = int(tree.stdout.readline())
            pids = {"nodePid": tree.pid, "browserPid": grandchild}
            self.control.event("launched", {**pids, "playwrightVersion": "1.65.1"})
            if self.boot.spare:
                self.status = "spare"
                self.control.event("spare", {})
                say("spare", worker=self.boot.worker_id)
                await first_of(self.serve.wait(), self.asked_to_end())
        if self.behaviour != "mute" and not self.drain.done():
            self.control.event("available", {})
            self.status = "available"
            say(
                "available",
                worker=self.boot.worker_id,
                pool=self.boot.pool.name,
                pid=os.getpid(),
                tree=[tree.pid, grandchild],
                directory=str(self.boot.directory),
            )
        data = await self.drain
        self.status = "draining"
        self.control.event("draining", {"reason": data["reason"], "replacement": data.get("replacement")})
        if self.behaviour != "mute" and self.behaviour != "leaves":
            os.kill(grandchild, signal.SIGKILL)
            tree.wait()
        self.control.stopping()
        self.control.event("stopped", {})
        await self.control.close("stopped")
        await link
        return 0


class FakeProxy:
    def __init__(self, boot: ProxyArguments, says: dict[str, Any]) -> None:
        self.says = says
        self.stopped = asyncio.Event()
        self.roster = Roster()
        self.control = ChildSide(
            sock=boot.control,
            control_path=boot.runtime / "control.sock",
            hello=lambda: {"name": "proxy", "role": "proxy", "pid": os.getpid(), "version": "0"},
            on_command=self.on_command,
            on_state=self.on_state,
            ping_data=self.view,
            lost_threshold_s=boot.settings.worker_lost_threshold,
            on_lost=self.stopped.set,
        )
        self.port = boot.listeners[0].getsockname()[1]

    def on_state(self, state: dict[str, Any]) -> None:
        say("state", state=state)
        self.roster.replace(state)
        self.control.push_state(self.view())

    def view(self) -> dict[str, Any]:
        return {"ready": self.roster.not_ready() is None, **self.says}

    def on_command(self, name: str, data: dict[str, Any]) -> None:
        say("proxy_command", name=name, data=data)
        if name == "stop":
            self.stopped.set()

    async def run(self) -> int:
        link = asyncio.create_task(self.control.run())
        self.control.event("listening", {})
        say("listening", pid=os.getpid(), port=self.port)
        await self.stopped.wait()
        await self.control.close("stopped")
        await link
        return 0


def run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def worker_role(spec: dict[str, Any], boot: WorkerArguments) -> int:
    how = spec.get("behaviour", {}).get(boot.pool.name, "serve")
    say(
        "forked",
        worker=boot.worker_id,
        pool=boot.pool.name,
        settings={"slots": boot.settings.max_concurrent_sessions, "args": list(boot.settings.chromium_args)},
        spare=boot.spare,
        pid=os.getpid(),
        registry_seen=boot.registry_seen,
        fds=open_fds(),
        sid=os.getsid(0),
        mask=[int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    )
    if how == "crash":
        raise RuntimeError("this worker is broken")

    async def live() -> int:
        return await FakeWorker(boot, how, spec.get("worker_says", {})).run()

    return run(live())


def proxy_role(spec: dict[str, Any], boot: ProxyArguments) -> int:
    async def live() -> int:
        return await FakeProxy(boot, spec.get("proxy_says", {})).run()

    return run(live())


def fail_forks(times: int) -> None:
    """The next forks of this process fail as on a host that has no room for another process."""
    fork, left = os.fork, [times]

    def failing() -> int:
        if os.getpid() == master and left[0] > 0:
            left[0] -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    master = os.getpid()
    os.fork = failing


def fill_disk() -> None:
    """The master has no room for a directory in a worker's directory."""
    mkdir = Path.mkdir

    def full(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.name == "tmp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, mode, parents, exist_ok)

    Path.mkdir = full  # type: ignore[method-assign]


def explode_on(browser_type: str) -> None:
    """The master meets a bug when it is to start a worker of this type."""
    start = Workers.start

    def broken(self: Workers, pool: Pool, *, spare: bool) -> None:
        if pool.settings.browser_type == browser_type:
            raise RuntimeError("a bug")
        start(self, pool, spare=spare)

    Workers.start = broken  # type: ignore[method-assign]


def signal_at_end() -> None:
    """A late Ctrl-C, just when the master begins to remove its directory."""
    remove = RuntimeDir._remove

    def interrupted(self: RuntimeDir) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(self)

    RuntimeDir._remove = interrupted  # type: ignore[method-assign]


def break_request(name: str) -> None:
    """The master meets a bug when it is asked for this."""

    def broken(self: Requests) -> Deferred:
        raise RuntimeError("a bug")

    setattr(Requests, name, broken)


class SaidMessages(NoMessages):
    """How the start goes is said to the test."""

    def progress(self, text: str) -> None:
        say("progress", text=text)

    def ready(self, status: dict[str, Any]) -> None:
        say("ready", status=status)

    def not_ready(self, status: dict[str, Any]) -> None:
        say("not_ready", status=status)


def main(spec: dict[str, Any]) -> int:
    logging.configure("debug", "json", "master")
    fail_forks(spec.get("fork_errors", 0))
    given = {name: value for name, value in spec.get("settings", {}).items() if name in SETTINGS}
    if "pools" in given:
        given["pools"] = tuple(PoolTable.model_validate(table) for table in given["pools"])
    fds = open_fds()
    listener = open_listener("127.0.0.1", spec.get("port", 0))
    port = listener.getsockname()[1]
    settings = Settings.model_construct(port=port, runtime_dir=spec["base"], **given)  # not by the rules of users
    runtime = RuntimeDir.create(settings.runtime_dir, port)
    redis = None
    with runtime.locked(f"ws://127.0.0.1:{port}"):
        if "redis" in spec:
            path = runtime.directory / "redis" / "redis.sock"
            argv = (spec["redis"], "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no")
            redis = EmbeddedRedis(argv, path)
        config = master_config(
            runtime,
            settings=settings,
            redis_url=spec.get("redis_url", "redis://:secret@127.0.0.1:1/0"),
            redis=redis,
            listeners=Listeners((listener,), tuple),
            roles=Roles(
                lambda boot: worker_role(spec, boot), lambda boot: proxy_role(spec, boot), run_forwarder, run_tls
            ),
            messages=SaidMessages(),
            lifeline_fd=spec.get("lifeline_fd"),
            argv=spec.get("argv", ()),
        )
        if "kill_s" in spec:
            child.KILL_S = clean_up.KILL_S = spec["kill_s"]  # type: ignore[misc]
        if "second_signal_after_s" in spec:
            shutdown_order.SECOND_SIGNAL_AFTER_S = spec["second_signal_after_s"]  # type: ignore[misc]
        if "reloaded" in spec:
            config.parts = SameParts(settings.model_copy(update=spec["reloaded"]))
            reload.KNOWN_S = float("inf")  # type: ignore[misc]
        if "full_disk" in spec:
            fill_disk()
        if "explode_on" in spec:
            explode_on(spec["explode_on"])
        if "signal_at_end" in spec:
            signal_at_end()
        if "broken_request" in spec:
            break_request(spec["broken_request"])
        say("starting", pid=os.getpid(), fds=fds, control=str(runtime.control_path), directory=str(runtime.directory))
        code = Master(config).run()
    listener.close()
    say("ended", fds=open_fds(), leftovers=[child.pid for child in psutil.Process().children()])
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
