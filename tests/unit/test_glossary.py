"""The glossary has every word that status, logs and API use for where something is, and no event that there is not."""

import re
from pathlib import Path

from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.worker_state_machine import Phase

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", GLOSSARY, re.MULTILINE))


def words(section: str, after: str) -> list[str]:
    """The first column of the table whose head begins with `after`."""
    table = SECTIONS[section].partition(f"| {after} |")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in table.splitlines()[2:]]


def test_every_status_of_a_worker_and_of_a_session_is_there_in_its_order() -> None:
    assert words("A worker", "status") == [status.value for status in WorkerStatus]
    assert words("A session", "status") == [status.value for status in SessionStatus]


def test_every_phase_of_a_worker_s_process_is_there() -> None:
    sentence = SECTIONS["A worker"].partition("`phase` in")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z ]+)`", sentence)) >= {phase.value for phase in Phase}


def test_every_event_that_it_names_is_logged_by_the_code() -> None:
    named = re.findall(r"`([a-z]+(?:_[a-z]+)*)`", " ".join(words("In the log", "event")))
    code = "".join(path.read_text() for path in (ROOT / "grid").rglob("*.py"))
    assert len(named) > 30
    assert [name for name in named if f'"{name}"' not in code] == []
