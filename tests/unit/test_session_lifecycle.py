"""What becomes of a session's status when it is over."""

import pytest

from pwgrid.common.reasons import EndReason
from pwgrid.common.session_lifecycle import SessionStatus, how_ended


@pytest.mark.parametrize(
    ("by", "reason", "status"),
    [
        ("client", EndReason.CLIENT_DISCONNECTED, SessionStatus.COMPLETED),
        ("client", "protocol error (1003)", SessionStatus.COMPLETED),
        ("grid", EndReason.ENDED_BY_OPERATOR, SessionStatus.ENDED),
        ("grid", EndReason.DRAIN_TIMEOUT, SessionStatus.FAILED),
        ("browser", EndReason.BROWSER_CRASHED, SessionStatus.FAILED),
    ],
)
def test_who_ended_a_session_decides_how_it_is_counted(by: str, reason: str, status: SessionStatus) -> None:
    assert how_ended(by, reason) is status
