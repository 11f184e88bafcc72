"""Why a browser did not start: the error, and the one line for it in all that the browser and Playwright printed.

Clients see that line, too: it holds no path of this host and no pid. The full text goes to the log, at debug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pwgrid.common.errors import GridError

MAX_CHARACTERS: Final = 200

_ADVICE: Final = (
    (r"executable doesn't exist", "its executable is not there: run `pwgrid setup`"),
    (r"spawn \S+ EACCES", "its executable may not be run by the grid's user"),
    (
        r"error while loading shared libraries: (?P<what>[^\s:]+)",
        "the library {what} is missing: run `playwright install-deps` as root",
    ),
    (
        r"(?P<what>lib[^\s:/]+): cannot open shared object file",
        "the library {what} is missing: run `playwright install-deps` as root",
    ),
    (r"No usable sandbox", "this host restricts user namespaces: set CHROMIUM_SANDBOX=false or allow them"),
    (
        r"Running as root without --no-sandbox",
        "the sandbox needs an ordinary user: set CHROMIUM_SANDBOX=false or do not run as root",
    ),
    (
        r"Missing X server or \$DISPLAY|no DISPLAY environment variable",
        "there is no display: set HEADLESS=true or start it under xvfb-run",
    ),
)

_SAID_BY_BROWSER: Final = re.compile(r"^\[pid=\d+\]\[err\] (?:\[[\d:/.]+:\w+:[^\]]*\] )?(.*\w.*)", re.MULTILINE)
_UNKNOWN_COMMAND: Final = re.compile(r"^Protocol error \([\w.]+\): unknown command")
_EXIT: Final = re.compile(r"<process did exit: exitCode=(\w+), signal=(\w+)>")
_PLAYWRIGHTS_OWN: Final = re.compile(
    r"^(?:browserType\.\w+: |Failed to launch: )+|\s*Failed to launch browser\.$|"
    r"^Protocol error \(Browser\.getVersion\): Internal server error, session closed\.|"
    r"^Failed to launch the browser process\."
)
_PATH: Final = re.compile(r"(?<![\w.:/])(?:(?:unix|file):)?/+(?:[^\s/'\",:;]+/+)*([^\s/'\",:;]*)")
_PID: Final = re.compile(r"\bpid[= ]\d+")


class BrowserLaunchError(GridError):
    """A browser or its browser server did not start. `evidence` is its own output, word for word; `reason` is one line
    of that, without paths and pids; `signal` is the name of the signal that ended it, or empty."""

    def __init__(self, evidence: str, what: str = "the browser") -> None:
        self.evidence = evidence
        self.reason = why(evidence) or "it gave no reason"
        ended = _EXIT.search(evidence)
        self.signal = "" if ended is None or ended[2] == "null" else ended[2]
        super().__init__(f"{what} did not start: {self.reason}")


class BrowserLate(BrowserLaunchError):
    """It did not start in time: perhaps because others had to start, or to end, before it."""


def why(said: str) -> str:
    """One line of at most MAX_CHARACTERS; empty for an empty text."""
    for sign, advice in _ADVICE:
        if match := re.search(sign, said, re.IGNORECASE):
            return advice.format(**match.groupdict())
    line = next((each for each in map(_shown, _candidates(said)) if each), "")
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 2] + " …"


def without_places(text: str) -> str:
    """The text without pids, and with only the last part of each path, for people on other hosts."""
    return _PID.sub("", _PATH.sub(r"\1", text))


def _candidates(said: str) -> Iterator[str]:
    """Lines that may be the reason, the most telling first."""
    if match := _UNKNOWN_COMMAND.search(said):  # such a browser runs, and its own output is no reason
        yield match[0]
    if match := _SAID_BY_BROWSER.search(said):
        yield match[1]
    lines = said.strip().splitlines()
    yield from (line for line in lines if re.match(r"\w*Error: ", line))
    first = _PLAYWRIGHTS_OWN.sub("", lines[0]) if lines else ""
    if first and not first.startswith("<"):
        yield first
    if match := _EXIT.search(said):
        code, signal = match.groups()
        yield f"it ended with exit code {code}" if signal == "null" else f"it was ended by {signal}"
    yield from lines


def _shown(line: str) -> str:
    return " ".join(without_places(_PLAYWRIGHTS_OWN.sub("", line)).split()).rstrip(".:; ")
