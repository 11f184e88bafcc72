"""The master's proxies as real processes, and their replacement."""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.common.errors import GridError
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.server import Reconnect
from pwgrid.master import child
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import Listeners, MasterConfig, Roles
from pwgrid.master.leftovers import Leftovers
from pwgrid.master.listener import open_listener
from pwgrid.master.policy.backoff import Backoff
from pwgrid.master.proxies import Proxies, ProxyChild
from pwgrid.master.reload import Reload
from pwgrid.master.services import Services
from pwgrid.master.upgrade import VersionChange
from pwgrid.runtime.child_arguments import ProxyArguments
from pwgrid.runtime.child_files import COMING, read_states, registry_of
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from tests.support.master_config import master_config
from tests.support.master_grid import PATIENCE_S
from tests.support.master_main import proxy_role

NEVER_AGAIN = Backoff(first_s=1000, cap_s=1000)
"""Restarts what has died once; after the second death within a test it does not."""

LOST_S = 2.0
CHANGED = Reason(WorkerEnd.CONFIGURATION)


class Turns:
    """Runs the proxies as the master's loop does."""

    def __init__(self, loop: Loop, proxies: Proxies, said: Path) -> None:
        self._loop = loop
        self._proxies = proxies
        self._said = said

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = self._loop.now() + PATIENCE_S
        while not condition():
            assert self._loop.now() < deadline, f"not within {PATIENCE_S} s: {what}"
            self._loop.call_at(self._loop.now() + 0.05, lambda: None)  # what a proxy prints wakes nobody
            self._loop.wait()
            self._proxies.go_on_replacing()

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        """The commands that any of them has heard."""
        lines = [json.loads(line) for line in self._said.read_text().split("\n")[:-1]]
        return [(line["name"], line["data"]) for line in lines if line["what"] == "proxy_command"]

    def kill(self) -> None:
        """SIGKILL to the current proxy; returns when the master knows."""
        pid = self._proxies.current.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: self._proxies.current.pid != pid, "it has died")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Once it is a pipe, a proxy that is forked begins only when somebody writes into it."""
    return tmp_path / "gate"


@pytest.fixture
def config(tmp_path: Path, said: Path, gate: Path) -> Iterator[MasterConfig]:
    runtime = RuntimeDir(tmp_path, 1, owns_base=False)
    runtime.directory.mkdir()

    def nothing(_boot: object) -> int:
        return 0

    def run_proxy(boot: ProxyArguments) -> int:
        if gate.exists():
            gate.read_bytes()
        os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 1)
        return proxy_role({}, boot)

    with open_listener("127.0.0.1", 0) as listener:
        yield master_config(
            runtime, listeners=Listeners((listener,), tuple), roles=Roles(nothing, run_proxy, nothing, nothing)
        )


@pytest.fixture
def proxies(loop: Loop, config: MasterConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxies]:
    monkeypatch.setattr(child, "NO_DEATHS", NEVER_AGAIN)
    proxies = Proxies(loop, config, ChildFileWriter(loop, config))
    yield proxies
    proxies.kill()
    while proxies.pids():
        loop.wait()


@pytest.mark.parametrize("dies", ["before it is replaced", "after that"])
def test_what_a_proxy_has_not_heard_is_told_to_the_one_that_replaces_it(
    loop: Loop, proxies: Proxies, said: Path, dies: str
) -> None:
    turns, lost = Turns(loop, proxies, said), {"workerId": "a1b2c3d4"}
    proxies.current.start()
    turns.until(lambda: proxies.current.listening, "it listens")
    turns.kill()
    turns.until(lambda: proxies.current.listening, "another one listens")
    old = proxies.current
    assert old.pid is not None
    os.kill(old.pid, signal.SIGSTOP)
    proxies.send("worker_lost", lost)
    proxies.replace(CHANGED)
    if dies == "after that":
        turns.until(lambda: proxies.current is not old, "it is replaced")
    else:
        proxies.go_on_replacing()
    os.kill(old.pid, signal.SIGKILL)
    turns.until(lambda: old.pid is None and proxies.current is not old, "it has died, and is replaced")
    turns.until(turns.told, "the new one is told")
    assert turns.told() == [("worker_lost", lost)]


def test_what_a_proxy_has_not_heard_is_told_to_the_one_that_is_started_after_it(
    loop: Loop, proxies: Proxies, said: Path
) -> None:
    turns, lost = Turns(loop, proxies, said), {"workerId": "a1b2c3d4"}
    proxies.current.start()
    turns.until(lambda: proxies.current.listening, "it listens")
    assert proxies.current.pid is not None
    os.kill(proxies.current.pid, signal.SIGSTOP)
    proxies.send("worker_lost", lost)
    turns.kill()
    turns.until(turns.told, "the next one is told")
    assert turns.told() == [("worker_lost", lost)]


@pytest.fixture
def frozen(loop: Loop, config: MasterConfig, proxies: Proxies, said: Path) -> tuple[Turns, ProxyChild]:
    """A proxy that listens, and has just been frozen."""
    config.settings = config.settings.model_copy(update={"worker_lost_threshold": LOST_S})
    turns, old = Turns(loop, proxies, said), proxies.current
    old.start()
    turns.until(lambda: old.listening, "it listens")
    assert old.pid is not None
    os.kill(old.pid, signal.SIGSTOP)
    return turns, old


def test_a_proxy_that_was_only_slow_stays(proxies: Proxies, frozen: tuple[Turns, ProxyChild]) -> None:
    turns, old = frozen
    pid = old.pid
    assert pid is not None
    os.kill(pid, signal.SIGCONT)
    proxies.send("worker_lost", {"workerId": "a1b2c3d4"})
    turns.until(turns.told, "it hears again")
    assert (proxies.current, old.pid, proxies.pids(), proxies.is_being_replaced) == (old, pid, {pid}, False)


def test_a_frozen_proxy_is_killed_when_its_successor_listens_on_the_same_sockets(
    proxies: Proxies, frozen: tuple[Turns, ProxyChild]
) -> None:
    turns, old = frozen
    proxies.send("worker_lost", {"workerId": "a1b2c3d4"})
    turns.until(lambda: proxies.current is not old, "another one listens")
    assert proxies.current.listeners == old.listeners
    turns.until(lambda: old.pid is None, "it is killed")
    turns.until(turns.told, "what it has not heard the new one is told")
    assert turns.told() == [("worker_lost", {"workerId": "a1b2c3d4"})]


def test_a_proxy_that_wakes_late_is_retired_and_not_killed(
    proxies: Proxies, frozen: tuple[Turns, ProxyChild], gate: Path
) -> None:
    turns, old = frozen
    assert old.pid is not None
    os.mkfifo(gate)
    turns.until(lambda: len(proxies.pids()) == 2, "its successor is there")
    os.kill(old.pid, signal.SIGCONT)
    turns.until(lambda: not old.is_silent, "it wakes")
    gate.write_bytes(b"")
    turns.until(lambda: proxies.current is not old, "another one listens")
    turns.until(turns.told, "it is told something")
    assert turns.told() == [("retire", {})]
    assert old.pid is not None


def test_a_master_that_comes_while_the_proxy_is_replaced_goes_on_with_the_one_that_listens(
    proxies: Proxies, config: MasterConfig, loop: Loop, said: Path, gate: Path
) -> None:
    runtime, registry = config.runtime.directory, registry_of(config.redis_url, config.settings.redis_key_prefix)

    def left() -> tuple[int | None, list[int]]:
        """The pid of the proxy that another master would let go on, and of those that it would have retire."""
        found = Leftovers.of([state for state in read_states(runtime) if state.registry == registry], dead=[])
        return found.proxy and found.proxy.pid, [state.pid for state in found.retiring]

    turns, old = Turns(loop, proxies, said), proxies.current
    old.start()
    assert left() == (old.pid, [])
    turns.until(lambda: old.listening, "it listens")
    os.mkfifo(gate)
    proxies.replace(CHANGED)
    turns.until(lambda: len(proxies.pids()) == 2, "its successor is there")
    (coming,) = proxies.pids() - {old.pid}
    assert left() == (old.pid, [coming])
    gate.write_bytes(b"")
    turns.until(lambda: proxies.current is not old, "it listens")
    assert left() == (coming, [old.pid])


def test_the_file_of_a_proxy_says_with_what_it_was_forked_also_where_that_has_changed_since(
    proxies: Proxies, config: MasterConfig, loop: Loop, said: Path
) -> None:
    turns, old = Turns(loop, proxies, said), proxies.current
    old.start()
    (before,) = read_states(config.runtime.directory)
    config.settings = config.settings.model_copy(update={"max_queue": config.settings.max_queue + 1})
    turns.until(lambda: old.listening, "it listens")
    (after,) = read_states(config.runtime.directory)
    assert (before.status, after.status, after.settings) == (COMING, "", before.settings)
    assert ChildFileWriter(loop, config).settings_of("proxy") != after.settings


@pytest.fixture
def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No new proxy listens in time."""
    monkeypatch.setattr("pwgrid.master.proxies.START_S", 0.0)


@pytest.mark.usefixtures("too_late")
def test_a_frozen_proxy_whose_successor_fails_is_ended_and_started_again(
    proxies: Proxies, frozen: tuple[Turns, ProxyChild]
) -> None:
    turns, old = frozen
    first = old.pid
    turns.until(lambda: old.pid not in (None, first) and old.listening, "it is started again")
    assert proxies.current is old
    assert not proxies.is_being_replaced


def test_a_replacement_that_has_failed_is_tried_again_and_a_reload_does_not_confirm_it_before(
    loop: Loop, config: MasterConfig, proxies: Proxies, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, old = Turns(loop, proxies, said), proxies.current
    old.start()
    turns.until(lambda: old.listening, "it listens")
    monkeypatch.setattr("pwgrid.master.reload.KNOWN_S", 0.1)
    workers: Any = SimpleNamespace(follow_settings=lambda: None, pools={}, by_id={}, tell_all=lambda *_: None)
    inert: Any = SimpleNamespace(tell_all=lambda *_: None, tell=lambda *_: None, replace=lambda: None)
    config.parts.reload = lambda *_: (Settings(token="new"), lambda: None)  # type: ignore[method-assign]
    reload = Reload(loop, config, ChildFileWriter(loop, config), workers, Services(proxies, inert, inert, None))
    answers: list[bool] = []
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr("pwgrid.master.proxies.fork_linked", refused)
        reload.start().when_known(lambda answer: answers.append(answer["data"]["proxyKnows"]))

        def is_answered_after_two_tries() -> bool:
            old.configuration = proxies.configuration  # it says which one it knows, whatever it can follow of that
            reload.answer_if_known()
            return bool(answers) and failures(logs) > 1

        turns.until(is_answered_after_two_tries, "it is answered after two tries")
        assert (answers, proxies.is_to_be_replaced, proxies.is_being_replaced) == ([False], True, False)
        assert [each["retry_s"] > 0 for each in logs if each["event"] == "proxy_not_replaced"][:2] == [False, True]
    turns.until(lambda: proxies.current is not old, "another one listens")
    turns.until(lambda: not proxies.is_to_be_replaced, "that is all")


def test_a_proxy_that_could_not_be_replaced_and_has_ended_since_needs_no_replacement(
    loop: Loop, proxies: Proxies, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(loop, proxies, said)
    proxies.current.start()
    turns.until(lambda: proxies.current.listening, "it listens")
    first = proxies.current
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr("pwgrid.master.proxies.fork_linked", refused)
        broken.setattr("pwgrid.master.proxies.TRIES", NEVER_AGAIN)
        proxies.replace(CHANGED)
        turns.until(lambda: failures(logs) == 2, "its replacement fails twice")
    assert proxies.is_to_be_replaced
    turns.kill()
    turns.until(lambda: first.listening, "it is started again, with all that is new")
    assert (proxies.current, proxies.is_to_be_replaced) == (first, False)


class TestOneThatAnotherMasterForked:
    """It connects, and hands its listening sockets over; the settings need one more besides."""

    @pytest.fixture
    def given(self, loop: Loop, config: MasterConfig) -> Iterator[tuple[Proxies, list[socket.socket]]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, socket.socket() as listener, socket.socket() as besides:
            config.listeners = Listeners((), tuple, lambda there: (*there, besides))
            proxies = Proxies(loop, config, ChildFileWriter(loop, config))
            yield proxies, [listener, besides, ours]

    def connects(self, proxy: ProxyChild, proxies: Proxies, sockets: list[socket.socket]) -> bool:
        listener, _, ours = sockets
        child: Any = SimpleNamespace(pid=1234)
        link: Any = SimpleNamespace(attach=lambda *_: None)
        proxy._child, proxy._link = child, link
        return proxies.attach(Reconnect("proxy", 1234, ours, b"", [listener]))

    def test_the_current_one_gets_what_is_needed_besides(self, given: tuple[Proxies, list[socket.socket]]) -> None:
        proxies, sockets = given
        assert self.connects(proxies.current, proxies, sockets)
        assert proxies.current.listeners == tuple(sockets[:2])

    @pytest.mark.parametrize("error", [GridError("no room"), OSError(errno.EMFILE, "Too many open files")])
    def test_what_is_needed_besides_and_cannot_be_opened_ends_no_master(
        self, given: tuple[Proxies, list[socket.socket]], config: MasterConfig, error: Exception
    ) -> None:
        def fails(_there: object) -> Any:
            raise error

        proxies, sockets = given
        completed, config.listeners = config.listeners, Listeners((), tuple, fails)
        with capture_logs() as logs:
            assert self.connects(proxies.current, proxies, sockets)
        assert [each["event"] for each in logs] == ["listener_not_opened"]
        assert proxies.current.listeners == tuple(sockets[:1])
        config.listeners = completed
        proxies.current.complete_listeners()  # as each one that is forked does
        assert proxies.current.listeners == tuple(sockets[:2])

    def test_one_that_ends_opens_nothing(self, given: tuple[Proxies, list[socket.socket]]) -> None:
        proxies, sockets = given
        leaving = proxies._make(())
        proxies._leaving.append(leaving)
        assert self.connects(leaving, proxies, sockets)
        assert leaving.listeners == tuple(sockets[:1])


def failures(logs: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["event"] == "proxy_not_replaced" for each in logs)


def refused(*_: object) -> None:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_new_code_is_tried_also_where_the_directory_of_the_grid_s_start_has_been_removed(
    loop: Loop, config: MasterConfig, proxies: Proxies, said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.argv = ["/bin/true"]
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    executed: list[bool] = []
    workers: Any = SimpleNamespace(by_id={})
    reload: Any = SimpleNamespace(read=lambda: (None, None))
    when_possible: list[Callable[[], None]] = []
    upgrade = VersionChange(loop, config, workers, proxies, lambda: executed.append(True), when_possible.append)
    turns = Turns(loop, proxies, said)
    upgrade.start(reload, force=True)
    turns.until(lambda: when_possible, "it could be executed")
    with pytest.raises(ValueError, match="under way already"):
        upgrade.start(reload, force=True)
    upgrade.cancel("the grid is stopping")
    when_possible.pop()()
    assert not executed
    upgrade.start(reload, force=True)
    turns.until(lambda: when_possible, "it can be executed")
    when_possible.pop()()
    assert executed


def test_new_code_waits_for_a_proxy_that_began_to_come_while_it_was_tried(
    loop: Loop, config: MasterConfig, proxies: Proxies, said: Path, gate: Path
) -> None:
    config.argv = ["/bin/true"]
    executed: list[bool] = []
    workers: Any = SimpleNamespace(by_id={})
    reload: Any = SimpleNamespace(read=lambda: (None, None))
    when_possible: list[Callable[[], None]] = []
    upgrade = VersionChange(loop, config, workers, proxies, lambda: executed.append(True), when_possible.append)
    turns, old = Turns(loop, proxies, said), proxies.current
    old.start()
    turns.until(lambda: old.listening, "it listens")
    upgrade.start(reload, force=True)
    os.mkfifo(gate)
    proxies.replace(CHANGED)
    turns.until(lambda: when_possible and proxies.one_comes, "it could be executed, and a proxy comes")
    when_possible.pop()()
    assert not executed
    gate.write_bytes(b"")
    turns.until(lambda: when_possible, "it can be executed")
    assert proxies.current is not old
    when_possible.pop()()
    assert executed


def test_an_upgrade_while_the_proxy_is_being_replaced_is_refused_for_that_reason(
    loop: Loop, config: MasterConfig, proxies: Proxies
) -> None:
    nothing: Any = None
    upgrade = VersionChange(loop, config, nothing, proxies, lambda: None, nothing)
    proxies.replace(CHANGED)
    with pytest.raises(ValueError, match="the proxy is still being replaced; try again when the new one listens"):
        upgrade.start(nothing, force=True)


def test_a_name_that_can_be_none_is_no_address_to_listen_on() -> None:
    with pytest.raises(GridError, match="it cannot be a name; set PWGRID_HOST"):
        open_listener(f"{'a' * 64}.example", 0)


def test_a_kernel_without_ipv6_listens_on_no_such_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr("socket.socket", unsupported)
    with pytest.raises(GridError, match="cannot listen on :: port 0: Address family not supported"):
        open_listener("::", 0)
