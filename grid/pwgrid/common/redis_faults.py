"""What can be wrong with a Redis: a closed set of kinds, each with a sentence for people and what to do about it.

`registry/fault_of.py` finds the kind of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple


class _Meaning(NamedTuple):
    """`text` stands behind "Redis at …: ". `is_lasting`: trying again cannot help before somebody has done `to_do`."""

    text: str
    to_do: str
    is_lasting: bool = False


@unique
class FaultKind(Enum):
    """Every answer and every failure that the grid knows by name."""

    # It answers, and takes no writes.
    MEMORY_FULL = _Meaning(
        "it takes no writes, since its memory is full",
        "raise its maxmemory, or give the grid a Redis of its own",
    )
    REPLICA = _Meaning(
        "it takes no writes, since it is a replica",
        "name its primary in the URL, or its sentinels: redis+sentinel://host:26379/name; of a cluster, some nodes:"
        " redis+cluster://host:6379,host2:6379",
    )
    DISK = _Meaning(
        "it takes no writes, since it cannot save to its disk",
        "its log says why it cannot; make room there",
    )
    FEW_REPLICAS = _Meaning(
        "it takes no writes, since it has too few replicas",
        "start them, or lower its min-replicas-to-write",
    )

    # It answers, and does nothing for now.
    BUSY = _Meaning("the script of another program keeps it busy", "`redis-cli SCRIPT KILL` ends that script")
    LOADING = _Meaning("it is still loading its data", "wait until it has")
    CLUSTER_DOWN = _Meaning("its cluster is down", "`redis-cli CLUSTER INFO` says what is missing")
    CLUSTER_MOVES = _Meaning("its cluster is moving the grid's keys to another node", "wait until it has")
    PRIMARY_AWAY = _Meaning(
        "it is a replica that has lost its primary", "start the primary, and name that in the URL, or the sentinels"
    )
    SCRIPTS_LOST = _Meaning(
        "it forgets a script as soon as it is loaded",
        "does something spread commands over several servers? name one Redis",
    )
    TOO_MANY_CLIENTS = _Meaning("it has as many clients as it takes", "raise its maxclients")

    # It answers, and refuses this grid.
    RIGHTS = _Meaning(
        "its user may not do all that the grid does",
        "`pwgrid doctor` prints the ACL line that allows it",
        is_lasting=True,
    )
    NO_PASSWORD = _Meaning(
        "it asks for a password", "put it into the URL: redis://:PASSWORD@host:6379/0", is_lasting=True
    )
    WRONG_PASSWORD = _Meaning(
        "it does not know this user with this password",
        "correct them in the URL, with a / as %2F, an @ as %40 …",
        is_lasting=True,
    )
    OTHER_NODE = _Meaning(
        "the grid's keys belong to another node of its cluster",
        "begin the URL with redis+cluster://, and set REDIS_KEY_PREFIX={pwgrid}:",
        is_lasting=True,
    )
    NO_CLUSTER = _Meaning("it is no node of a Redis Cluster", "begin the URL with redis://", is_lasting=True)
    NO_DATABASE = _Meaning(
        "it has no database of this number", "end the URL in one that it has, as /0", is_lasting=True
    )
    PROTECTED = _Meaning(
        "it is in protected mode, in which it answers its own host alone",
        "give it a password, or set its protected-mode to no",
        is_lasting=True,
    )
    TOO_OLD = _Meaning(
        "it does not know HELLO, as before version 6", "use Redis 6 or newer, or Valkey", is_lasting=True
    )
    REFUSED = _Meaning("it refused a command", "what it says in brackets is its own")

    # Something else answers, or nothing.
    NO_REDIS = _Meaning("what answers there is no Redis", "correct host and port in the URL", is_lasting=True)
    SILENT = _Meaning("it did not answer in time", "is it frozen, or that port another program's?")
    NOT_LISTENING = _Meaning("nothing listens there", "start it")
    UNKNOWN_HOST = _Meaning("its host has no address", "correct the host in the URL")
    UNREACHABLE = _Meaning("it cannot be reached", "is a network or a firewall in the way?")
    CLOSED = _Meaning("it closed the connection", "its log may say why; or has it reached its maxclients?")
    SOCKET = _Meaning(
        "this user may not open its socket", "set its unixsocketperm, and give this user its group", is_lasting=True
    )
    NO_SENTINEL = _Meaning("no sentinel names a primary", "correct hosts, password and name in the URL")

    # TLS
    WANTS_TLS = _Meaning("it speaks TLS, and the URL does not", "begin the URL with rediss://", is_lasting=True)
    HAS_NO_TLS = _Meaning(
        "it speaks no TLS, which the URL asks for", "begin the URL with redis://, or name its tls-port", is_lasting=True
    )
    HANDSHAKE = _Meaning("it does not speak TLS as this host does", "is that its tls-port?", is_lasting=True)
    UNTRUSTED = _Meaning(
        "this host trusts nobody who signed its certificate",
        "name the authority's certificate by ?ssl_ca_certs=/path/to/ca.pem behind the URL, or by SSL_CERT_FILE",
        is_lasting=True,
    )
    OTHER_NAME = _Meaning(
        "its certificate is for another name",
        "use a name of the certificate in the URL, or put ?ssl_check_hostname=no behind it",
        is_lasting=True,
    )
    OUT_OF_DATE = _Meaning(
        "its certificate is out of date", "renew it, or set the clock of this host right", is_lasting=True
    )
    CERTIFICATE_FILE = _Meaning(
        "a certificate or key that the URL names cannot be read",
        "correct ssl_ca_certs, ssl_certfile, ssl_keyfile behind the URL",
        is_lasting=True,
    )
    CLIENT_CERTIFICATE = _Meaning(
        "it closed the connection behind the TLS handshake, as it does to clients without a certificate",
        "put ?ssl_certfile=/path/to/client.pem&ssl_keyfile=/path/to/client.key behind the URL, or set its "
        "tls-auth-clients to no",
        is_lasting=True,
    )


@dataclass(frozen=True, slots=True)
class RedisFault:
    """One fault. `said` are the words of Redis or of a library, for people alone; empty where the kind says it all."""

    kind: FaultKind
    said: str = ""

    @property
    def what(self) -> str:
        """What is wrong, without what to do."""
        return f"{self.kind.value.text} ({self.said})" if self.said else self.kind.value.text

    @property
    def to_do(self) -> str:
        return self.kind.value.to_do

    @property
    def is_lasting(self) -> bool:
        """Whether trying again cannot help."""
        return self.kind.value.is_lasting

    def __str__(self) -> str:
        return f"{self.what}: {self.to_do}"
