"""The question to a master, over a real socket: whatever it answers, the user gets a sentence."""

import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pwgrid.cli.ask_grid import ask, without_master_text
from pwgrid.common.errors import GridError, Refused
from pwgrid.runtime.directory import LockContent
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid

MAKES_NO_SENSE = "the answer of the master (pid 7) makes no sense: "


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:  # short enough for sockets
        yield Path(directory)


def answered(directory: Path, packet: bytes) -> dict[str, Any]:
    """What `ask` returns when the master's side says this."""

    def answer() -> None:
        visitor, _ = listener.accept()
        with visitor:
            visitor.recv(4096)
            visitor.send(packet)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ThreadPoolExecutor(1) as beside:
        listener.bind(str(directory / "control.sock"))
        listener.listen()
        done = beside.submit(answer)
        try:
            return ask(RunningGrid(directory, 8080, 7, "ws://127.0.0.1:8080"), "status")
        finally:
            done.result()


def test_a_reply_is_its_data(directory: Path) -> None:
    assert answered(directory, b'{"t":"reply","data":{"ready":true}}') == {"ready": True}


@pytest.mark.parametrize(
    "packet", [b'{"t":"reply","data":{"workers":[{"id":"a1b', b"\xff", b"[]", b"{}", b'{"t":"reply"}']
)
def test_an_answer_that_is_cut_or_none_is_told_in_a_sentence(directory: Path, packet: bytes) -> None:
    with pytest.raises(GridError) as caught:
        answered(directory, packet)
    assert str(caught.value).startswith(MAKES_NO_SENSE)


def test_an_error_is_the_master_s_sentence(directory: Path) -> None:
    with pytest.raises(Refused) as caught:
        answered(directory, b'{"t":"error","error":"no"}')
    assert str(caught.value) == "no"


def test_a_master_that_ends_before_it_answers_has_refused_nothing(directory: Path) -> None:
    with pytest.raises(GridError) as caught:
        answered(directory, b"")
    assert not isinstance(caught.value, Refused)
    assert str(caught.value).startswith("the master (pid 7) gave no answer")


@pytest.mark.parametrize(
    ("detached_s_ago", "told"),
    [
        (None, "it died; for WORKER_LOST_THRESHOLD it admits clients, then it refuses them and ends after a drain, "),
        (1.5, "; it admits clients for 4 s more, and ends in 64 s at the latest, "),
        (5.5, "; it refuses clients, and ends in 60 s at the latest, "),
    ],
)
def test_a_grid_without_a_master_says_whether_it_admits_clients(
    monkeypatch: pytest.MonkeyPatch, detached_s_ago: float | None, told: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    times = () if detached_s_ago is None else (1e9 - detached_s_ago, 5.0, 60.0)
    left = GridWithoutMaster(Path("/run/x"), 8080, LockContent(7, 1.0, "ws://h:8080", *times), ())
    assert without_master_text(left).endswith(f"{told}unless a new master comes")
