"""One table has the reasons for which sessions end: what is said elsewhere is in it, and the docs have all of it."""

import re
from pathlib import Path

from pwgrid.common.session_lifecycle import EndReason

ROOT = Path(__file__).resolve().parents[2]
REASONS = {reason.value for reason in EndReason}


def test_the_docs_name_every_reason_and_no_other() -> None:
    table = (ROOT / "docs/lifecycle.md").read_text().partition("| reason | status | when |\n|---|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    named = [reason for row in rows for reason in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert {reason.removesuffix(" (n)") for reason in named} == REASONS
    assert len(named) == len(REASONS)


def test_what_the_launcher_says_is_in_the_table() -> None:
    folder = ROOT / "grid/pwgrid/worker/browser"
    text = (folder / "launcher.cjs").read_text() + (folder / "session.cjs").read_text()
    said = set(re.findall(r"(?:end|endAll|refuse)\('\w+', '([^']+)'", text)) | set(
        re.findall(r"reason = '([^']+)'", text)
    )
    assert {"ping timeout", "idle timeout", "browser crashed", "worker stopped", "handshake refused"} <= said
    assert said <= REASONS


def test_what_the_scripts_say_is_in_the_table() -> None:
    said = {
        reason
        for path in (ROOT / "lua").glob("*.lua")
        for reason in re.findall(r"'(?:failed|expired)', '([^']+)'", path.read_text())
    }
    assert said == {"lost by worker", "lease expired"}
    assert said <= REASONS
