"""What a client hears whose session is closed: a sentence that fits into a close frame."""

import pytest

from pwgrid.common.reasons import EndReason
from pwgrid.settings.model import Settings
from pwgrid.settings.value_types import MAX_SECONDS
from pwgrid.worker.close_texts import close_texts, drain_text

FRAME_BYTES = 123
LONGEST_S = MAX_SECONDS - 0.5
LIMITS = ("session_ping_timeout", "session_idle_timeout", "session_max_duration", "drain_timeout")
LIMIT = "DRAIN_TIMEOUT=30 s"


@pytest.mark.parametrize(
    ("reason", "cut", "sentence"),
    [
        ("lifetime limit", EndReason.DRAIN_TIMEOUT, "its worker was being replaced and DRAIN_TIMEOUT=30 s was over"),
        ("configuration", EndReason.DRAIN_TIMEOUT, "its worker was being replaced and DRAIN_TIMEOUT=30 s was over"),
        ("shutdown", EndReason.DRAIN_TIMEOUT, "the grid was stopping and DRAIN_TIMEOUT=30 s was over"),
        ("operator", EndReason.DRAIN_TIMEOUT, "an operator drained its worker and DRAIN_TIMEOUT=30 s was over"),
        ("scaled down", EndReason.DRAIN_TIMEOUT, "its worker was not wanted any more and DRAIN_TIMEOUT=30 s was over"),
        ("operator", EndReason.DRAINED_NOW, "an operator drained its worker, without waiting for sessions"),
        ("shutdown", EndReason.DRAINED_NOW, "the grid was stopping, without waiting for sessions"),
    ],
)
def test_who_is_cut_by_a_drain_hears_why_and_which_setting_would_help(
    reason: str, cut: EndReason, sentence: str
) -> None:
    assert drain_text(reason, cut, LIMIT) == f"the grid closed this session: {sentence}"


def test_a_crash_is_told_as_one_also_in_a_drain() -> None:
    assert drain_text("browser ended (SIGSEGV)", EndReason.BROWSER_CRASHED, LIMIT) is None
    texts = close_texts(Settings())
    assert texts["browser crashed"] == "the grid closed this session: its browser crashed"


def test_every_sentence_fits_into_a_close_frame_whatever_the_settings() -> None:
    sentences = [
        *close_texts(Settings().model_copy(update=dict.fromkeys(LIMITS, LONGEST_S))).values(),
        *(
            drain_text(reason, cut, f"RECYCLE_DRAIN_TIMEOUT={LONGEST_S:g} s") or ""
            for reason in ("lifetime limit", "shutdown", "operator", "scaled down", "no master for too long")
            for cut in (EndReason.DRAIN_TIMEOUT, EndReason.DRAINED_NOW)
        ),
    ]
    assert max(len(sentence.encode()) for sentence in sentences) <= FRAME_BYTES
