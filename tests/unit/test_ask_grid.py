"""The question to a master, over a real socket: whatever it answers, the user gets a sentence."""

import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pwgrid.cli.ask_grid import ask
from pwgrid.common.errors import GridError, Refused
from pwgrid.runtime.find_grids import RunningGrid

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


@pytest.mark.parametrize("packet", [b'{"t":"reply","data":{"workers":[{"id":"a1b', b"\xff", b"[]", b'{"t":"reply"}'])
def test_an_answer_that_is_cut_or_none_is_told_in_a_sentence(directory: Path, packet: bytes) -> None:
    with pytest.raises(GridError) as caught:
        answered(directory, packet)
    assert str(caught.value).startswith(MAKES_NO_SENSE)


@pytest.mark.parametrize(
    ("packet", "sentence"),
    [(b'{"t":"error","error":"no"}', "no"), (b"{}", "the master (pid 7) gave no answer")],
)
def test_an_error_is_the_master_s_sentence(directory: Path, packet: bytes, sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        answered(directory, packet)
    assert str(caught.value) == sentence
