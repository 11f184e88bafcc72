"""A small blocking Redis client for commands that ask one thing and exit. Not for processes that serve."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import hiredis

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.registry import records
from pwgrid.registry.records import RegistrySnapshot, SessionRecord
from pwgrid.registry.redis_address import RedisAddress, parse_url
from pwgrid.registry.resp import Argument, Reply, checked, pack

DEFAULT_TIMEOUT_S: Final = 1.0
_CHUNK: Final = 64 * 1024
_PAGE: Final = 500
_INCOMPLETE: Final = object()


class BlockingClient:
    """One connection. Replies are bytes, or text with `decode`. Every wait is bounded by `timeout_s`; any failure of
    the connection raises RegistryUnavailable, and the client is of no use then."""

    def __init__(self, url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, decode: bool = False) -> None:
        self._address = parse_url(url)
        self._reader = (
            hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=_INCOMPLETE)
            if decode
            else hiredis.Reader(notEnoughData=_INCOMPLETE)
        )
        try:
            self._socket = _connect(self._address, timeout_s)
        except OSError as error:
            raise RegistryUnavailable(f"Redis at {self._address} cannot be reached: {error}") from None
        try:
            self.pipeline(*self._address.greeting())
        except BaseException:
            self.close()
            raise

    def command(self, *arguments: Argument) -> Reply:
        """One command and its reply. Raises RegistryError where Redis refuses."""
        return self.pipeline(arguments)[0]

    def pipeline(self, *commands: tuple[Argument, ...]) -> list[Reply]:
        """Several commands in one write; their replies in order. Raises RegistryError for the first that is refused."""
        try:
            self._socket.sendall(b"".join(pack(*command) for command in commands))
            replies = [self._reply() for _ in commands]
        except (OSError, hiredis.ProtocolError) as error:
            raise RegistryUnavailable(f"Redis at {self._address} does not answer: {error}") from None
        return [checked(reply) for reply in replies]

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._socket.close()

    def _reply(self) -> Reply:
        while (reply := self._reader.gets()) is _INCOMPLETE:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("it closed the connection")
            self._reader.feed(data)
        return reply


def snapshot(url: str, prefix: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> RegistrySnapshot:
    """Workers, counters and totals, as Registry.snapshot gives them. Raises RegistryUnavailable."""
    client = BlockingClient(url, timeout_s=timeout_s, decode=True)
    try:
        replies = client.pipeline(*records.snapshot_commands(prefix))
        fields = records.worker_fields(replies)
        return records.read_snapshot(
            replies, client.pipeline(*(("HGETALL", f"{prefix}worker:{name}") for name in fields))
        )
    finally:
        client.close()


def latest_sessions(
    url: str, prefix: str = "", *, status: str | None = None, limit: int = 100, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[SessionRecord]:
    """Up to `limit` sessions, the newest first, of all or of one status. Raises RegistryUnavailable."""
    client = BlockingClient(url, timeout_s=timeout_s, decode=True)
    found: list[SessionRecord] = []
    start = 0
    try:
        while True:
            ids = client.command("ZREVRANGE", prefix + records.INDEX, start, start + _PAGE - 1)
            hashes = client.pipeline(*(("HGETALL", f"{prefix}session:{session_id}") for session_id in ids))
            for session_id, flat in zip(ids, hashes, strict=True):
                session = SessionRecord.read(session_id, records.pairs(flat))
                if flat and status in (None, session.status):
                    found.append(session)
            if len(ids) < _PAGE or len(found) >= limit:
                return found[:limit]
            start += _PAGE
    finally:
        client.close()


def _connect(address: RedisAddress, timeout_s: float) -> socket.socket:
    if address.unix_path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            connection.connect(address.unix_path)
        except OSError:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((address.host, address.port), timeout_s)
    if address.tls:
        try:
            return ssl.create_default_context().wrap_socket(connection, server_hostname=address.host)
        except OSError:
            connection.close()
            raise
    return connection
