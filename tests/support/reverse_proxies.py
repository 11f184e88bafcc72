"""nginx and HAProxy before a grid, configured as docs/connect.md says: only addresses and certificates are those of the
test."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.grid import eventually
from tests.support.https_server import CERTIFICATES
from tests.support.recipes import recipe
from tools.reverse_proxies import find, libraries

NAMES: Final = ("nginx", "haproxy")
STOP_S: Final = 30

_AROUND: Final = {
    # Debian's own files include the section so, and write elsewhere.
    "nginx": (
        "daemon off; master_process off; pid {directory}/pid; events {{}} http {{ access_log off;"
        " client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};"
        " uwsgi_temp_path {directory}; scgi_temp_path {directory};\n{section}}}\n"
    ),
    "haproxy": "{section}",
}
_COMMANDS: Final = {
    "nginx": ("-e", "stderr", "-p", "{directory}", "-c", "{file}"),
    "haproxy": ("-db", "-f", "{file}"),
}


def section(name: str) -> str:
    """Its configuration in docs/connect.md."""
    return recipe("connect.md", name)


@contextlib.contextmanager
def reverse_proxy(name: str, port: int, grid_port: int, directory: Path) -> Iterator[None]:
    """Runs it on 127.0.0.1:`port` as docs/connect.md has it. Skips where there is none."""
    ours = section(name)
    certificate = CERTIFICATES / "server.pem"  # with its key
    for theirs, here in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "bind :443": f"bind 127.0.0.1:{port}",
        "127.0.0.1:8080": f"127.0.0.1:{grid_port}",
        "/etc/ssl/private/grid.example.org.pem": str(certificate),
        "/etc/ssl/private/grid.example.org.key": str(certificate),
        "/etc/ssl/grid.example.org.pem": str(certificate),
    }.items():
        ours = ours.replace(theirs, here)
    assert "/etc/ssl" not in ours
    with running(name, ours, port, directory):
        yield


@contextlib.contextmanager
def running(name: str, section: str, port: int, directory: Path) -> Iterator[None]:
    """Runs it with this configuration, by which it listens on 127.0.0.1:`port`. Skips where there is none."""
    if (program := find(name)) is None:
        pytest.skip(f"{name}: `python tools/reverse_proxies.py` gets it from Debian")
    file = directory / f"{name}.conf"
    file.write_text(_AROUND[name].format(directory=directory, section=section))
    command = [program, *(each.format(directory=directory, file=file) for each in _COMMANDS[name])]
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, "LD_LIBRARY_PATH": libraries()}, stdout=output, stderr=output
        )
    try:
        eventually(lambda: process.poll() is not None or accepts(port), f"{name} listens")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(STOP_S)
    assert not accepts(port)


def accepts(port: int) -> bool:
    """Whether anybody listens there."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
