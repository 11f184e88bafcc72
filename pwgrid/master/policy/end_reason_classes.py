"""Maps the sentences that say why a worker ends to closed sets of classes, for metrics."""

from __future__ import annotations

import re
from typing import Final

RECYCLES: Final = {
    "lifetime limit": "lifetime",
    "memory": "memory",
    "age": "age",
    "canary failed": "canary",
    "configuration": "configuration",
    "upgrade": "upgrade",
    "operator": "operator",
    "asked over Redis": "operator",
}
"""Why a worker is replaced, by the text before the sentence's first colon. Other sentences tell of no replacement."""

DEATHS: Final = {
    "launch failed": re.compile(r" did not start\b"),
    "no Redis": re.compile(r"no Redis at "),
    "late": re.compile(r"not available \d"),
    "silent": re.compile(r"silent for \d"),
    "memory limit": re.compile("memory limit$"),
    "browser server hung": re.compile("browser server hung$"),
    "browser server ended": re.compile("the browser server ended|browser server lost"),
    "browser ended": re.compile("^browser (ended|crashed)"),
    "worker ended": re.compile("worker ended with "),
    "not forked": re.compile("cannot start a worker"),
}
"""How a worker dies: the first pattern that is in the sentence counts."""

OTHER: Final = "other"
NO_SIGNAL: Final = "none"
SIGNALS: Final = (  # noqa: SIM905 - as a list it is a screen
    "SIGABRT SIGALRM SIGBUS SIGFPE SIGHUP SIGILL SIGINT SIGKILL SIGPIPE SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGUSR1 "
    "SIGUSR2 SIGXCPU SIGXFSZ"
).split()
"""The signals that end processes. Any other is `other`."""

_SIGNAL: Final = re.compile(r"\bSIG[A-Z0-9]+\b")


def recycle_class(reason: str) -> str | None:
    """The class of a replacement's reason; None when the worker is not replaced, or fails."""
    return RECYCLES.get(reason.partition(":")[0])


def death_class(reason: str) -> tuple[str, str]:
    """The class of a death, and the signal in its sentence, or NO_SIGNAL."""
    found = next((name for name, pattern in DEATHS.items() if pattern.search(reason)), OTHER)
    said = _SIGNAL.search(reason)
    if said is None:
        return found, NO_SIGNAL
    return found, said[0] if said[0] in SIGNALS else OTHER
