"""The ledger on a disk that is full: what the kernel refuses to write is written when there is room again."""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from pwgrid.common import log
from pwgrid.master.child import Child
from pwgrid.master.config import MasterConfig, Roles
from pwgrid.master.restart.child_file_writer import AGAIN_S, Ledger
from pwgrid.runtime.child_files import read_states
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings


@pytest.fixture
def runtime() -> Iterator[RuntimeDir]:
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as base,
        RuntimeDir.create(base, 8080).locked("") as made,
    ):
        yield made


@pytest.fixture
def ledger(runtime: RuntimeDir) -> Iterator[Ledger]:
    log.configure("info", "text", "master")  # as in a master: its log raises nothing when there is no room
    roles = Roles(worker=lambda _boot: 0, proxy=lambda _boot: 0)
    yield Ledger(MasterConfig(Settings(), "", None, runtime, (), roles, "1", ""))
    structlog.reset_defaults()


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process may grow, and not one byte can be written to a new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(runtime: RuntimeDir) -> list[str]:
    return [state.name for state in read_states(runtime.directory)]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("proxy/*"))


def test_what_there_was_no_room_for_is_written_later(runtime: RuntimeDir, ledger: Ledger) -> None:
    me = Child("proxy", os.getpid(), -1)
    with no_room():
        ledger.service("proxy", me)
        assert files(runtime.directory) == []
        ledger.tick(10.0)
        assert files(runtime.directory) == []
    ledger.tick(10.0 + AGAIN_S / 2)
    assert names(runtime) == []
    ledger.tick(10.0 + AGAIN_S)
    assert names(runtime) == [str(os.getpid())]


def test_who_has_ended_meanwhile_is_not_written_any_more(runtime: RuntimeDir, ledger: Ledger) -> None:
    with no_room():
        ledger.service("proxy", Child("proxy", os.getpid(), -1))
    ledger.strike("proxy", str(os.getpid()))
    ledger.tick(10.0)
    assert names(runtime) == []


def test_what_was_written_before_stays_while_there_is_no_room(runtime: RuntimeDir, ledger: Ledger) -> None:
    me = Child("proxy", os.getpid(), -1)
    ledger.service("proxy", me)
    with no_room():
        ledger.service("proxy", me)
    assert names(runtime) == [str(os.getpid())]
    assert files(runtime.directory) == [f"{os.getpid()}.json"]
