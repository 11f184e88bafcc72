"""With LOG_FORMAT=json, what ends a grid at its start is a line of JSON."""

import errno
import os
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.cli import start_master


def told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> MutableMapping[str, Any]:
    monkeypatch.setattr(start_master.logging, "configure", lambda *_: None)
    monkeypatch.setattr(start_master.std_logging, "captureWarnings", lambda _: None)
    with capture_logs() as lines, pytest.raises(SystemExit), start_master.errors_as_json():
        raise error
    (line,) = lines
    return line


def test_an_error_of_the_operating_system_is_a_sentence_and_a_bug_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = told(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/run/x"), monkeypatch)
    assert (full["event"], full["error"]) == ("grid_crashed", "/run/x: No space left on device")
    assert not full["exc_info"]
    bug = told(KeyError("labels"), monkeypatch)
    assert (bug["error"], bug["exc_info"]) == ("KeyError('labels')", True)
