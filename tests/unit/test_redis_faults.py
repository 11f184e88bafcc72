"""What is wrong with a Redis, by the error that tells of it: the kind, the words of Redis, and the sentence."""

import errno
import socket
import ssl

import pytest
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import AuthenticationError, InvalidResponse, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.registry.fault_of import MAX_CHARACTERS, fault_of, write_fault

K = FaultKind
IN_SCRIPT_6 = "Error running script (call to f_bb1c): @user_script:301: @user_script: 301: "
IN_SCRIPT_7 = " script: bbcf0a4dae0f911be1ad, on @user_script:280."


def refusal(text: str) -> RedisError:
    """As redis-py makes it of what Redis sent."""
    from redis._parsers.base import BaseParser

    error = BaseParser.parse_error(text)
    assert isinstance(error, RedisError)
    return error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", K.MEMORY_FULL),
        ("READONLY You can't write against a read only replica.", K.REPLICA),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", K.DISK),
        ("NOREPLICAS Not enough good replicas to write.", K.FEW_REPLICAS),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", K.BUSY),
        ("LOADING Redis is loading the dataset in memory", K.LOADING),
        ("CLUSTERDOWN The cluster is down", K.CLUSTER_DOWN),
        ("TRYAGAIN Multiple keys request during rehashing of slot", K.CLUSTER_MOVES),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", K.PRIMARY_AWAY),
        ("NOSCRIPT No matching script. Please use EVAL.", K.SCRIPTS_LOST),
        ("NOPERM this user has no permissions to run the 'hset' command", K.RIGHTS),
        ("NOPERM User grid has no permissions to run the 'hset' command", K.RIGHTS),  # as Redis 7.2 says it
        ("NOAUTH Authentication required.", K.NO_PASSWORD),
        ("WRONGPASS invalid username-password pair or user is disabled.", K.WRONG_PASSWORD),
        ("ERR invalid password", K.WRONG_PASSWORD),
        ("MOVED 3999 127.0.0.1:6381", K.OTHER_NODE),
        ("ASK 3999 127.0.0.1:6381", K.OTHER_NODE),
        ("CROSSSLOT Keys in request don't hash to the same slot", K.OTHER_NODE),
        ("ERR max number of clients reached", K.TOO_MANY_CLIENTS),
        ("ERR DB index is out of range", K.NO_DATABASE),
        ("ERR unknown command `HELLO`, with args beginning with: `3`, ", K.TOO_OLD),
        ("ERR unknown command 'HELLO', with args beginning with: '3' ", K.TOO_OLD),
        ("DENIED Redis is running in protected mode because protected mode is enabled", K.PROTECTED),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", K.REFUSED),
        ("ERR value is not an integer or out of range", K.REFUSED),
        (f"ERR {IN_SCRIPT_6}-OOM command not allowed when used memory > 'maxmemory'.", K.MEMORY_FULL),
        (f"OOM command not allowed when used memory > 'maxmemory'.{IN_SCRIPT_7}", K.MEMORY_FULL),
        (f"NOREPLICAS Not enough good replicas to write.{IN_SCRIPT_7}", K.FEW_REPLICAS),
        (f"ERR {IN_SCRIPT_6}The user executing the script can't run this command or subcommand", K.RIGHTS),
        (f"ERR The user executing the script can't run this command or subcommand{IN_SCRIPT_7}", K.RIGHTS),
        ("ERR ACL failure in script: User grid has no permissions to run the 'hset' command", K.RIGHTS),
        (f"ERR {IN_SCRIPT_6}-WRONGTYPE Operation against a key holding the wrong kind of value", K.REFUSED),
    ],
)
def test_each_refusal_that_is_known_has_its_kind_and_the_words_of_redis(text: str, kind: FaultKind) -> None:
    fault = fault_of(refusal(text))
    assert fault.kind is kind
    own_words = text.removeprefix("ERR ").removeprefix(IN_SCRIPT_6).removesuffix(IN_SCRIPT_7).lstrip("-").rstrip(" .,")
    assert fault.said == own_words or fault.said.endswith(" …")
    assert len(fault.said) <= MAX_CHARACTERS


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "its own words."
    return error


def tls_error(library: str, reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] (_ssl.c:1006)")
    error.library, error.reason = library, reason  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("error", "url", "kind", "said"),
    [
        (TimeoutError(), "", K.SILENT, "no answer within 1 s"),
        (TimeoutError("no reply within 2 s"), "", K.SILENT, "no reply within 2 s"),
        (caused(RedisTimeoutError("Timeout reading from h:1"), TimeoutError()), "", K.SILENT, "no answer within 1 s"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "", K.NOT_LISTENING, "Connection refused"),
        (
            caused(RedisConnectionError("Error 2 connecting"), FileNotFoundError(errno.ENOENT, "x")),
            "unix:///s",
            K.NOT_LISTENING,
            "No such file or directory",
        ),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] Connect …"),
            "redis://localhost",
            K.NOT_LISTENING,
            "Connection refused",
        ),
        (PermissionError(errno.EACCES, "x"), "unix:///s", K.SOCKET, "Permission denied"),
        (OSError(errno.ENETUNREACH, "x"), "", K.UNREACHABLE, "Network is unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "", K.UNKNOWN_HOST, "Name or service not known"),
        (ConnectionResetError(), "", K.CLOSED, ""),
        (RedisConnectionError("Connection closed by server."), "", K.CLOSED, ""),
        (MasterNotFoundError("No master found for 'x'"), "", K.NO_SENTINEL, "No master found for 'x'"),
        (
            caused(RedisConnectionError("x"), AsyncMasterNotFoundError("No master found for 'x' : <Redis(…)>")),
            "",
            K.NO_SENTINEL,
            "No master found for 'x'",
        ),
        (
            caused(RedisConnectionError("x"), AuthenticationError("HELLO must …", status_code="NOAUTH")),
            "unix:///s",
            K.NO_PASSWORD,
            "NOAUTH HELLO must",
        ),
        (InvalidResponse('Protocol error, got "H" as reply type byte'), "", K.NO_REDIS, "Protocol error, got"),
        (RedisConnectionError("Invalid RESP version"), "", K.NO_REDIS, "Invalid RESP version"),
        (AttributeError("'str' object has no attribute 'get'"), "", K.NO_REDIS, "its answer makes no sense"),
        (certificate_error(18), "", K.UNTRUSTED, "its own words"),
        (certificate_error(20), "", K.UNTRUSTED, "its own words"),
        (certificate_error(10), "", K.OUT_OF_DATE, "its own words"),
        (certificate_error(62), "", K.OTHER_NAME, "its own words"),
        (caused(RedisConnectionError("Error 1"), certificate_error(64)), "", K.OTHER_NAME, "its own words"),
        (tls_error("SSL", "WRONG_VERSION_NUMBER"), "", K.HANDSHAKE, "wrong version number"),
        (
            tls_error("SSL", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "",
            K.CLIENT_CERTIFICATE,
            "tlsv13 alert certificate required",
        ),
        (tls_error("X509", "NO_CERTIFICATE_OR_CRL_FOUND"), "", K.CERTIFICATE_FILE, ""),
        (FileNotFoundError(errno.ENOENT, "x"), "rediss://h", K.CERTIFICATE_FILE, "No such file or directory"),
    ],
    ids=lambda each: each.name if isinstance(each, FaultKind) else "",
)
def test_each_failure_has_its_kind(error: BaseException, url: str, kind: FaultKind, said: str) -> None:
    fault = fault_of(error, url=url, during="no answer within 1 s")
    assert fault.kind is kind
    assert said in fault.said


@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.name)
def test_each_kind_says_in_one_sentence_what_is_wrong_and_what_to_do(kind: FaultKind) -> None:
    text, to_do, is_lasting = kind.value
    assert str(RedisFault(kind, "OOM full")) == f"{text} (OOM full): {to_do}"
    assert RedisFault(kind).what == text
    assert RedisFault(kind).is_lasting is is_lasting
    for part in (text, to_do):
        assert part
        assert part[0].islower() or part.startswith("`")
        assert not part.endswith(".")


@pytest.mark.parametrize(
    ("probed", "kind"),
    [
        (1, None),
        (NoScriptError("No matching script", status_code="NOSCRIPT"), None),
        (ResponseError("WRONGTYPE Operation against a key"), K.REFUSED),
        (refusal("OOM command not allowed"), K.MEMORY_FULL),
        ("OK", K.NO_REDIS),
    ],
)
def test_a_redis_that_takes_no_writes_is_known_by_its_reply_to_a_write(probed: object, kind: FaultKind | None) -> None:
    fault = write_fault(probed)
    assert (fault.kind if fault else None) is kind
