"""Hosts with a network of their own each, in network namespaces of the kernel, as if they stood beside each other at
one switch. Cables can be pulled: packets are dropped then, and nobody is told."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SWITCH: Final = "switch"


class Networks:
    """One network for each of `names`, with the addresses 10.0.0.1, 10.0.0.2 … in the order of their names. Skips the
    test where that cannot be had."""

    def __init__(self, *names: str) -> None:
        self._mark = f"pwgrid-{os.getpid()}-{secrets.token_hex(2)}"
        self._names = (*names, _SWITCH)
        self.addresses = {name: f"10.0.0.{number}" for number, name in enumerate(names, start=1)}
        if shutil.which("ip") is None or shutil.which("ss") is None:
            pytest.skip("iproute2 is not installed: no networks of their own for hosts")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"no networks of their own for hosts: {error.stderr.strip()}")
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for name in self._names:
            _ip("netns", "add", self._full(name))
        self._in(_SWITCH, "link", "add", "bridge", "type", "bridge")
        self._in(_SWITCH, "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            ends = ("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", self._full(name))
            self._in(_SWITCH, *ends)
            self._in(name, "link", "set", "lo", "up")
            self._in(name, "addr", "add", f"{address}/24", "dev", "eth0")
            self._in(name, "link", "set", "eth0", "up")
            self._in(_SWITCH, "link", "set", name, "up")
            self._plug(name)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """What this thread opens and starts in the block is in that network."""
        with Path("/proc/thread-self/ns/net").open() as before, self._path(name).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    @contextlib.contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """In the block nothing gets from or to that network."""
        self._in(_SWITCH, "link", "set", name, "nomaster")
        try:
            yield
        finally:
            self._plug(name)

    @contextlib.contextmanager
    def apart(self, *names: str) -> Iterator[None]:
        """In the block nothing gets from one of these networks to another one of them; the rest reaches all."""
        for name in names:
            self._in(_SWITCH, "link", "set", name, "type", "bridge_slave", "isolated", "on")
        try:
            yield
        finally:
            for name in names:
                self._in(_SWITCH, "link", "set", name, "type", "bridge_slave", "isolated", "off")

    def on_the_way(self, name: str, address: str) -> int:
        """Bytes that were sent from this network to an address, and have not arrived."""
        with self.inside(name):
            told = subprocess.run(("ss", "-Htn", "dst", address), check=True, capture_output=True, text=True)
        return sum(int(line.split()[2]) for line in told.stdout.splitlines())

    def close(self) -> None:
        """Removes them all, and proves it."""
        for name in self._names:
            if self._path(name).exists():
                _ip("netns", "del", self._full(name))
            assert not self._path(name).exists()

    def _plug(self, name: str) -> None:
        self._in(_SWITCH, "link", "set", name, "master", "bridge")

    def _in(self, name: str, *arguments: str) -> None:
        _ip("-n", self._full(name), *arguments)

    def _full(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _path(self, name: str) -> Path:
        return Path("/run/netns", self._full(name))


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


def _enter(network: int) -> None:
    if _LIBC.setns(network, _CLONE_NEWNET) != 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
