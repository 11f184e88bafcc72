"""A worker's end: the sentence for people, what stands for it in frames and files; no code reads the sentence."""

import re
from pathlib import Path

import pytest

from pwgrid.common.reasons import MOST_CHARACTERS, Reason, WorkerEnd

ROOT = Path(__file__).resolve().parents[2]
NONE = Reason(WorkerEnd.NOT_SAID)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason(WorkerEnd.LIFETIME), "lifetime limit"),
        (Reason(WorkerEnd.MEMORY, "900 MiB, the limit is 800 MiB"), "memory: 900 MiB, the limit is 800 MiB"),
        (
            Reason(WorkerEnd.SILENT, "5 s", note="did not end in time, killed"),
            "silent for 5 s: did not end in time, killed",
        ),
        (Reason(WorkerEnd.SHUTDOWN, note="did not end in time, killed"), "shutdown: did not end in time, killed"),
        (Reason(WorkerEnd.OPERATOR), "operator"),
        (Reason(WorkerEnd.OPERATOR, "the disk is to be replaced"), "the disk is to be replaced"),
        (Reason(WorkerEnd.WORKER_ENDED, "SIGKILL", "SIGKILL"), "worker ended with SIGKILL"),
        (Reason(WorkerEnd.BROWSER_HUNG), "browser hung"),
    ],
)
def test_people_read_a_sentence(reason: Reason, sentence: str) -> None:
    assert str(reason) == sentence


@pytest.mark.parametrize("kind", WorkerEnd)
def test_each_kind_comes_back_from_a_frame_and_has_a_sentence(kind: WorkerEnd) -> None:
    for reason in (Reason(kind), Reason(kind, "{} 5 s"), Reason(kind, "", "SIGKILL", "killed")):
        assert Reason.read(reason.as_data(), NONE) == reason
        assert str(reason)


@pytest.mark.parametrize("data", [None, "lifetime limit", 7, []])
def test_where_there_is_no_reason_the_default_stands(data: object) -> None:
    assert Reason.read(data, NONE) == NONE


def test_what_another_version_or_a_broken_child_says_is_kept_within_bounds() -> None:
    read = Reason.read({"kind": "struck by lightning", "detail": "x" * 1000, "signal": None, "more": 1}, NONE)
    assert read.kind is WorkerEnd.OTHER
    assert len(read.detail) == MOST_CHARACTERS
    assert Reason.read({"detail": "no kind"}, NONE) == Reason(WorkerEnd.OTHER, "no kind")


def test_no_code_compares_or_matches_a_sentence() -> None:
    """What a reason says to people is not what a program goes by: of a Reason only `kind` and `signal` are compared."""
    compares = re.compile(r"""str\((?:\w+\.)*reason\)\s*(?:==|!=|in\b|\.(?:startswith|endswith|partition|split))""")
    on_text = re.compile(
        r"""(?:\breason|\["reason"\])\s*(?:==|!=)\s*["']|(?:\breason|\["reason"\])\.(?:startswith|endswith|partition)"""
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "grid").rglob("*.py")
        for line in path.read_text().splitlines()
        if compares.search(line) or on_text.search(line)
    ]
    assert found == []
