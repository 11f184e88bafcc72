"""When a master wants a forwarder, and what it does not do without one."""

import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import encode
from pwgrid.control.parked_session import FDS, ParkedSession
from pwgrid.master import forwarder
from pwgrid.master.child import Child
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.forwarder import ForwarderChild
from pwgrid.registry import embedded_redis_config
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from tests.support.master_config import master_config


@pytest.mark.parametrize(
    ("host", "is_embedded", "is_due"), [("", False, False), ("10.0.0.1", False, True), ("10.0.0.1", True, False)]
)
def test_it_is_due_only_where_there_can_be_other_hosts(
    tmp_path: Path, host: str, is_embedded: bool, is_due: bool
) -> None:
    runtime = RuntimeDir(tmp_path, 1, owns_base=False)
    redis = embedded_redis_config.EmbeddedRedis((), tmp_path / "redis.sock") if is_embedded else None
    config = master_config(runtime, settings=Settings(advertised_host=host), redis=redis)
    loop = Loop()
    child = ForwarderChild(loop, config, ChildFileWriter(loop, config))
    assert child.is_due is is_due
    if not is_due:
        child.start_if_due()
        assert child.pid is None


class TestAMasterThatIsToEndOrToExecuteItself:
    """The descriptors that are parked with it would be closed with it."""

    def test_it_does_so_at_once_where_nothing_is_parked(self, child: ForwarderChild) -> None:
        assert self.is_called_at_once(child)

    def test_it_waits_until_the_next_forwarder_has_everything(self, child: ForwarderChild, loop: Loop) -> None:
        called: list[bool] = []
        with self.a_forwarder(child) as first:
            self.park(first)
        child.once_it_has_all(lambda: called.append(bool(child.parked.is_connected)))
        for _ in range(3):
            loop.wait()
        assert not called
        with self.a_forwarder(child) as second:
            while not called:
                loop.wait()
            assert called == [True]
            frames = [json.loads(second.recv(65536))["t"] for _ in range(2)]
            assert frames == ["init", "park"]

    def test_it_waits_for_one_that_is_leaving(self, child: ForwarderChild, loop: Loop) -> None:
        with self.a_forwarder(child) as leaving:
            self.park(leaving)
            child._leaves = True
            called: list[bool] = []
            child.once_it_has_all(lambda: called.append(True))
            loop.wait()
            assert not called
            child._leaves = False
            while not called:
                loop.wait()

    def test_it_waits_for_one_whose_end_nobody_has_seen_yet(self, child: ForwarderChild) -> None:
        with self.a_forwarder(child) as first:
            self.park(first)
            assert self.is_called_at_once(child)
        assert not self.is_called_at_once(child)

    def test_it_waits_for_the_next_one_where_the_last_has_ended_and_its_link_still_seems_good(
        self, child: ForwarderChild, loop: Loop
    ) -> None:
        ended = subprocess.Popen(["true"])
        pidfd = os.pidfd_open(ended.pid)
        assert select.select([pidfd], [], [], 60)[0]
        with self.a_forwarder(child) as link:
            self.park(link)
            child._child = Child(loop, ended.pid, pidfd)
            assert not self.is_called_at_once(child)
            child._child = None
            assert self.is_called_at_once(child)
        ended.wait()
        os.close(pidfd)

    def test_it_waits_no_longer_than_it_may(
        self, child: ForwarderChild, loop: Loop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(forwarder, "HAS_ALL_S", 0.05)
        with self.a_forwarder(child) as first:
            self.park(first)
        called: list[bool] = []
        with capture_logs() as logs:
            child.once_it_has_all(lambda: called.append(True))
            assert not called
            while not called:
                loop.wait()
        assert [(each["event"], each.get("sessions")) for each in logs][-1] == ("forwarded_sessions_lost", 1)

    @pytest.fixture
    def loop(self) -> Loop:
        return Loop()

    @pytest.fixture
    def child(self, tmp_path: Path, loop: Loop) -> Iterator[ForwarderChild]:
        config = master_config(RuntimeDir(tmp_path, 1, owns_base=False), settings=Settings(advertised_host="10.0.0.1"))
        child = ForwarderChild(loop, config, ChildFileWriter(loop, config))
        yield child
        child.parked.close()

    def a_forwarder(self, child: ForwarderChild) -> socket.socket:
        """The other end of the link of a new one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child.parked.attach(ours, encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0, "isFresh": True}))
        return theirs

    def park(self, link: socket.socket) -> None:
        parked = ParkedSession("s1", 1.5, 2.5, "127.0.0.1:1", "127.0.0.1:2")
        with socket.socket() as any_descriptor:
            socket.send_fds(link, [encode(parked.frame())], [any_descriptor.fileno()] * FDS)

    def is_called_at_once(self, child: ForwarderChild) -> bool:
        called: list[bool] = []
        child.once_it_has_all(lambda: called.append(True))
        return bool(called)
