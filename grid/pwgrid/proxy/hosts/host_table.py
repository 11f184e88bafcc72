"""The other hosts of the grid, as their proxies have told of them: decides which of them get clients. Does no I/O, and
reads no clock: times are seconds of a monotonic one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pwgrid.proxy.roster import Roster
from pwgrid.registry.host_records import HostRecord, HostsFound

UNREACHABLE_S: Final = 5.0
"""How long a host gets no clients after nobody could connect to its proxy."""

NO_WAY_S: Final = 0.25
"""How long no host gets clients after this one had no way to any: its forwarder, say, has a successor in a moment."""

NAME_TAKEN_S: Final = 30.0
"""How long a host's name counts as taken twice after another grid was last seen to use it."""


class HostState(StrEnum):
    """Whether a host gets clients, and why not."""

    SERVING = "serving"
    DRAINED = "drained"  # an operator has asked for that
    STOPPING = "stopping"
    UNREACHABLE = "unreachable"  # from this host
    SILENT = "silent"


@dataclass(slots=True)
class OtherHost:
    """One host. `heard_at` is when its record was last seen to have changed."""

    record: HostRecord
    heard_at: float
    roster: Roster = field(default_factory=Roster)
    is_drained: bool = False
    unreachable_until: float = 0.0

    def state(self, now: float) -> HostState:
        if now - self.heard_at >= self.record.silent_s:
            return HostState.SILENT
        if self.record.is_stopping:
            return HostState.STOPPING
        if self.is_drained:
            return HostState.DRAINED
        return HostState.UNREACHABLE if now < self.unreachable_until else HostState.SERVING

    def take(self, record: HostRecord, now: float) -> None:
        """Takes over a record that may be another one than before. Raises KeyError, TypeError or ValueError for one
        that makes no sense."""
        is_another = (record.pools, record.workers) != (self.record.pools, self.record.workers)
        if is_another or not (self.roster.pools or self.roster.workers):
            roster = Roster()
            roster.replace({"pools": record.pools, "workers": record.workers})
            self.roster = roster
        if record.at != self.record.at:  # by its own clock, which may be another one than ours
            self.heard_at = now
        self.record = record


@dataclass(slots=True)
class NameWatch:
    """Notices that another grid tells of itself under this host's name: one that overwrites what this one, `instance`,
    has written, and again with another time. A record that is found once is left of an earlier grid, or Redis has it
    from a backup."""

    instance: str
    _seen: tuple[str, float] | None = None
    """Instance and time of the latest record that is another grid's."""
    _seen_at: float = 0.0
    _taken_until: float = 0.0

    def look(self, before: HostRecord | None, now: float) -> None:
        """Takes what was found in the place of this host's record."""
        if before is None or before.instance in ("", self.instance):
            return
        seen = (before.instance, before.at)
        if self._seen not in (None, seen) and now - self._seen_at < NAME_TAKEN_S:
            self._taken_until = now + NAME_TAKEN_S
        self._seen, self._seen_at = seen, now

    def is_taken(self, now: float) -> bool:
        return now < self._taken_until


@dataclass(slots=True)
class HostTable:
    """All hosts but this one, whose name is `own`."""

    own: str
    others: dict[str, OtherHost] = field(default_factory=dict)
    is_drained: bool = False
    """Whether an operator has drained this host."""
    unreadable: frozenset[str] = frozenset()
    """The names of hosts whose records make no sense: of another version, perhaps."""
    is_deaf: bool = False
    """Whether Redis is away, so that nobody can be heard. The next `take` ends that."""
    no_way_until: float = 0.0
    """Until when clients are not sent to other hosts, whose state is another matter."""

    def take(self, found: HostsFound, now: float, *, anew: bool = False) -> None:
        """Takes over what Redis says. `anew`: it was away before, and nobody could be heard meanwhile."""
        others, unreadable = {}, set()
        for name, record in found.records.items():
            if name == self.own:
                continue
            host = self.others.get(name) or OtherHost(HostRecord(name, record.address), now)
            try:
                host.take(record, now)
            except (KeyError, TypeError, ValueError, AttributeError):
                unreadable.add(name)
                continue
            if anew:
                host.heard_at = now
            host.is_drained = name in found.drained
            others[name] = host
        self.others, self.unreadable = others, frozenset(unreadable)
        self.is_drained, self.is_deaf = self.own in found.drained, False

    def states(self, now: float) -> dict[str, HostState]:
        """Returns the state of each other host, by name."""
        return {name: host.state(now) for name, host in self.others.items()}

    def offering(self, now: float) -> Iterator[OtherHost]:
        """Yields the hosts whose pools clients may ask for: those that get clients, or will again in a moment. While
        nobody can be heard that is not known: clients of their pools wait."""
        states = {HostState.SERVING, HostState.UNREACHABLE} | ({HostState.SILENT} if self.is_deaf else set())
        return (host for host in self.others.values() if host.state(now) in states)

    def avoided(self, now: float) -> frozenset[str]:
        """Returns the names of the hosts none of whose workers may be chosen, perhaps this one's, too."""
        has_way = now >= self.no_way_until
        names = {name for name, state in self.states(now).items() if not has_way or state is not HostState.SERVING}
        return frozenset(names | ({self.own} if self.is_drained else set()))

    def available_pools(self, now: float) -> frozenset[str]:
        """Returns the pools of which a host that gets clients can take a session."""
        hosts = (host.record for host in self.others.values() if host.state(now) is HostState.SERVING)
        return frozenset[str]().union(*(record.available_pools() for record in hosts))

    def heard(self, now: float) -> Iterator[OtherHost]:
        """Yields the hosts whose figures are of now."""
        return (host for host in self.others.values() if host.state(now) is not HostState.SILENT)

    def of_worker(self, worker_id: str) -> OtherHost | None:
        """Returns the other host that has this worker, whatever its state; None if none has told of it."""
        return next((host for host in self.others.values() if worker_id in host.roster.workers), None)

    def unreachable(self, name: str, now: float) -> None:
        """Notes that nobody could connect to this host's proxy."""
        if (host := self.others.get(name)) is not None:
            host.unreachable_until = now + UNREACHABLE_S

    def lost(self, now: float, after_s: float) -> list[OtherHost]:
        """Returns the silent hosts that have told nothing for so long."""
        hosts = self.others.values()
        return [host for host in hosts if now - host.heard_at >= max(after_s, host.record.silent_s)]
