"""Errors that reach a user: each carries a sentence and an exit code."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pwgrid.common.redis_faults import RedisFault
from pwgrid.common.wording import counted

NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What the operating system says when it has no descriptor, or no memory, for another socket: no other host's fault."""


class GridError(Exception):
    """An error that the user can act on. `str()` is the sentence, `exit_code` what a command exits with."""

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault in the configuration. `value` may be printed: secrets are masked; it is empty for unknown keys.
    `source` is empty until the one who reads that fills it in."""

    name: str
    value: str
    rule: str
    source: str = ""

    def __str__(self) -> str:
        value = f" {self.value}" if self.value else ""
        return f"{self.name}:{value} ({self.source}): {self.rule}"


class ConfigError(GridError):
    """The configuration breaks rules; `violations` has all of them, `str()` one line for each."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        faults = counted(len(self.violations), "fault")
        super().__init__("\n  ".join([f"the configuration has {faults}:", *map(str, self.violations)]), exit_code=2)


class AlreadyRunning(GridError):
    """Another master holds the runtime directory. `pid` is None when the lock does not tell."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(
            f"a grid is running here already (master pid {pid or 'unknown'}): stop it first, or choose another --port"
        )
        self.pid = pid


class NoGridError(GridError):
    """There is no running grid where a command looked for one."""


class Refused(GridError):
    """The running grid did not do what it was asked for; the sentence says why."""


class BrowserMissing(GridError):
    """A browser is not installed. `what` says only that; the sentence also says how to get it."""

    def __init__(self, what: str, to_do: str = "") -> None:
        super().__init__(f"{what}: {to_do}" if to_do else what)
        self.what = what


class BrowserServerGone(GridError):
    """The browser server ended, or closed its IPC link, while it was needed."""

    def __init__(self, sentence: str = "the browser server is gone") -> None:
        super().__init__(sentence)


class RegistryUnavailable(GridError):
    """Redis cannot be reached, did not answer in time, or takes no command for now; `fault` says which, if that is
    known."""

    def __init__(self, sentence: str, fault: RedisFault | None = None) -> None:
        super().__init__(sentence)
        self.fault = fault


class RegistryError(RegistryUnavailable):
    """Redis refused a command; the sentence is its own.

    Code that only goes on without Redis catches RegistryUnavailable. Code that repeats commands must not repeat this
    one: Redis will refuse it again.
    """


def system_error(error: OSError) -> str:
    """What the operating system has said, and of which file."""
    said, file = error.strerror or str(error), error.filename
    name = file.decode(errors="backslashreplace") if isinstance(file, bytes) else file
    return said if name is None else f"{name}: {said}"
