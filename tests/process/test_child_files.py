"""The files of children on a disk that is full: what the kernel refuses is written when there is room again."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from pwgrid.common import log
from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child import Child
from pwgrid.master.child_file_writer import RETRY_INTERVAL_S, ChildFileWriter
from pwgrid.runtime.child_files import RETIRING, ChildState, read_states
from pwgrid.runtime.directory import RuntimeDir
from tests.support.disk import nothing_can_be_written
from tests.support.master_config import master_config


@pytest.fixture
def runtime() -> Iterator[RuntimeDir]:
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as base,
        RuntimeDir.create(base, 8080).locked("") as made,
    ):
        yield made


class HandMovedLoop(Loop):
    """A loop whose time the test decides."""

    time = 10.0

    def now(self) -> float:
        return self.time

    def move_to(self, time: float) -> None:
        self.time = time
        self.scheduler.run(blocking=False)


@pytest.fixture
def loop() -> HandMovedLoop:
    return HandMovedLoop()


@pytest.fixture
def writer(runtime: RuntimeDir, loop: HandMovedLoop) -> Iterator[ChildFileWriter]:
    log.configure("info", "text", "master")  # as in a master: its log raises nothing when there is no room
    yield ChildFileWriter(loop, master_config(runtime))
    structlog.reset_defaults()


def file_of(writer: ChildFileWriter, proxy: Child) -> ChildState:
    return writer.new_state("proxy", str(proxy.pid), proxy, proxy.create_time)


def names(runtime: RuntimeDir) -> list[str]:
    return [state.name for state in read_states(runtime.directory)]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("proxy/*"))


def test_what_there_was_no_room_for_is_written_later(
    runtime: RuntimeDir, writer: ChildFileWriter, loop: HandMovedLoop
) -> None:
    me = Child(loop, os.getpid(), -1)
    with nothing_can_be_written():
        writer.write(file_of(writer, me))
        assert files(runtime.directory) == []
        loop.move_to(10.0 + RETRY_INTERVAL_S)
        assert files(runtime.directory) == []
    loop.move_to(10.0 + RETRY_INTERVAL_S * 1.5)
    assert names(runtime) == []
    loop.move_to(10.0 + RETRY_INTERVAL_S * 2)
    assert names(runtime) == [str(os.getpid())]
    assert loop.scheduler.empty()


def test_who_has_ended_meanwhile_is_not_written_any_more(
    runtime: RuntimeDir, writer: ChildFileWriter, loop: HandMovedLoop
) -> None:
    with nothing_can_be_written():
        writer.write(file_of(writer, Child(loop, os.getpid(), -1)))
    writer.remove("proxy", str(os.getpid()))
    loop.move_to(10.0 + RETRY_INTERVAL_S)
    assert names(runtime) == []
    assert loop.scheduler.empty()


def test_what_was_written_before_stays_while_there_is_no_room(
    runtime: RuntimeDir, writer: ChildFileWriter, loop: HandMovedLoop
) -> None:
    me = Child(loop, os.getpid(), -1)
    writer.write(file_of(writer, me))
    with nothing_can_be_written():
        writer.write(replace(file_of(writer, me), status=RETIRING))
    assert names(runtime) == [str(os.getpid())]
    assert files(runtime.directory) == [f"{os.getpid()}.json"]


def test_a_proxy_that_retires_is_as_old_as_before(
    runtime: RuntimeDir, writer: ChildFileWriter, loop: HandMovedLoop
) -> None:
    me = Child(loop, os.getpid(), -1)
    writer.write(file_of(writer, me))
    (listens,) = read_states(runtime.directory)
    writer.write(replace(file_of(writer, me), status=RETIRING))
    (retires,) = read_states(runtime.directory)
    assert (listens.status, retires.status) == ("", RETIRING)
    assert listens.forked_at == retires.forked_at
