"""Finds out what is wrong with a Redis from the error that redis-py, TLS or the operating system raised."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from pwgrid.common.redis_faults import FaultKind, RedisFault

MAX_CHARACTERS: Final = 120
"""Of what Redis or a library says."""

NONSENSE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What redis-py and the readers of replies raise for a reply that no Redis gives."""

_K = FaultKind
_NONSENSE: Final = "its answer makes no sense"

_OF_CODE: Final = {
    "ASK": _K.OTHER_NODE,
    "BUSY": _K.BUSY,
    "CLUSTERDOWN": _K.CLUSTER_DOWN,
    "CROSSSLOT": _K.OTHER_NODE,
    "DENIED": _K.PROTECTED,
    "LOADING": _K.LOADING,
    "MASTERDOWN": _K.PRIMARY_AWAY,
    "MISCONF": _K.DISK,
    "MOVED": _K.OTHER_NODE,
    "NOAUTH": _K.NO_PASSWORD,
    "NOPERM": _K.RIGHTS,
    "NOREPLICAS": _K.FEW_REPLICAS,
    "NOSCRIPT": _K.SCRIPTS_LOST,
    "OOM": _K.MEMORY_FULL,
    "READONLY": _K.REPLICA,
    "TRYAGAIN": _K.CLUSTER_MOVES,
    "WRONGPASS": _K.WRONG_PASSWORD,
}
"""Of a refusal, by its first word."""

_OF_TEXT: Final = {
    "DB index": _K.NO_DATABASE,
    "cluster support disabled": _K.NO_CLUSTER,
    "unknown command `HELLO`": _K.TOO_OLD,
    "unknown command 'HELLO'": _K.TOO_OLD,
    "max number of clients reached": _K.TOO_MANY_CLIENTS,
    "invalid password": _K.WRONG_PASSWORD,
    "The user executing the script can't": _K.RIGHTS,
    "ACL failure in script": _K.RIGHTS,
}
"""Of a refusal without a telling first word, by a part of it."""

_OF_CERTIFICATE: Final = {
    **dict.fromkeys((9, 10), _K.OUT_OF_DATE),  # not yet valid, or no longer
    **dict.fromkeys((62, 63, 64), _K.OTHER_NAME),  # of hosts, mail, addresses
}
"""By OpenSSL's X509_V_ERR_…; all others mean that nobody whom this host trusts vouches for it."""

_OF_ALERT: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _K.CLIENT_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": _K.CLIENT_CERTIFICATE,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _K.CLIENT_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": _K.CLIENT_CERTIFICATE,
}
"""By the reason of OpenSSL's error."""

_OF_CLASS: Final = (
    (ConnectionRefusedError, _K.NOT_LISTENING),
    (FileNotFoundError, _K.NOT_LISTENING),
    (PermissionError, _K.SOCKET),
    (ConnectionResetError, _K.CLOSED),
    (ConnectionAbortedError, _K.CLOSED),
    (BrokenPipeError, _K.CLOSED),
)
"""Of an error of the operating system; all others mean that it cannot be reached."""

# Redis 6 wraps what a script's command was told: "Error running script (call to …): … -OOM command not allowed …".
# Redis 7 says where in the script that was, behind it.
_IN_SCRIPT: Final = re.compile(r"^Error running script .*? (?:-(?=[A-Z]+ )|(?=The user ))", re.DOTALL)
_SOURCE: Final = re.compile(r" \(_ssl\.c:\d+\)")
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")
_PLACE: Final = re.compile(r" script: \w+, on @\w+:\d+\.$")


def fault_of(error: BaseException, *, url: str = "", during: str = "") -> RedisFault:
    """The fault behind this error. `url` is that of the Redis, `during` says what took too long."""
    for each in _causes(error):
        if (fault := _known(each, url, during)) is not None:
            return fault
    return RedisFault(_K.UNREACHABLE if isinstance(error, OSError) else _K.NO_REDIS, _words(error))


def write_fault(probed: object) -> RedisFault | None:
    """Why Redis takes no writes, by its reply to the `write_probe`; None if it does."""
    if probed == 1 or isinstance(probed, NoScriptError):  # who has no connection of its own may not load the script
        return None
    return _of_refusal(probed) if isinstance(probed, ResponseError) else RedisFault(_K.NO_REDIS, _NONSENSE)


def _of_refusal(error: RedisError) -> RedisFault:
    said = _said(error)
    kind = _OF_CODE.get(said.partition(" ")[0]) or next((kind for part, kind in _OF_TEXT.items() if part in said), None)
    return RedisFault(kind or _K.REFUSED, said)


def _known(error: BaseException, url: str, during: str) -> RedisFault | None:
    """The fault of one error without its causes; None where only these can tell."""
    if isinstance(error, ResponseError) or (isinstance(error, RedisConnectionError) and error.status_code):
        return _of_refusal(error)
    if (fault := _of_failure(error, url)) is not None:
        return fault
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return RedisFault(_K.SILENT, (str(error) if isinstance(error, TimeoutError) else "") or during)
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        return RedisFault(_K.NO_SENTINEL, str(error).partition(" : ")[0])  # behind that the whole client is described
    if isinstance(error, NONSENSE):
        return RedisFault(_K.NO_REDIS, _NONSENSE)
    return RedisFault(_K.CLOSED) if str(error) == SERVER_CLOSED_CONNECTION_ERROR else None


def _of_failure(error: BaseException, url: str) -> RedisFault | None:
    """The fault of an error of TLS or of the operating system; None for any other."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return RedisFault(_OF_CERTIFICATE.get(error.verify_code, _K.UNTRUSTED), said)
    if isinstance(error, ssl.SSLError):
        if error.library == "SSL" and error.reason:
            return RedisFault(_OF_ALERT.get(error.reason, _K.HANDSHAKE), error.reason.replace("_", " ").lower())
        return RedisFault(_K.CERTIFICATE_FILE, _words(error))  # no peer is asked yet: a file is read
    if isinstance(error, socket.gaierror):
        return RedisFault(_K.UNKNOWN_HOST, (error.strerror or "").rstrip("."))
    if isinstance(error, TimeoutError) or not isinstance(error, OSError):
        return None
    if error.errno is None and (numbers := _NUMBER.findall(str(error))):
        error = OSError(int(numbers[0]), "")  # asyncio has put the errors of several addresses into the text of one
    said = os.strerror(error.errno) if error.errno else ""
    if url.startswith("rediss") and isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return RedisFault(_K.CERTIFICATE_FILE, said)
    kind = next((kind for each, kind in _OF_CLASS if isinstance(error, each)), _K.UNREACHABLE)
    return RedisFault(kind, said) if said or kind is not _K.UNREACHABLE else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it: redis-py raises an error of its own for each."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _said(error: RedisError) -> str:
    """The words of Redis from the first one on, without the place in one of our scripts."""
    text = _IN_SCRIPT.sub("", str(error))
    code = error.status_code or ""
    said = text if code in ("", "ERR") or text.startswith(code) else f"{code} {text}"
    return _short(_PLACE.sub("", said))


def _words(error: BaseException) -> str:
    return _short(_SOURCE.sub("", str(error))) or type(error).__name__


def _short(text: str) -> str:
    text = text.strip()
    return (text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 2]} …").rstrip(".,:; ")
